//! The relays to compare with: the article's, which marks row by row, and the same with one UPDATE a batch.

use std::time::{Duration, Instant};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::Outcome;

/// The article's table: processed rows stay, a partial index covers the pending ones.
const TABLE: &str = "
    CREATE TABLE article_outbox (
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      event_id uuid NOT NULL DEFAULT gen_random_uuid(),
      aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
      payload jsonb NOT NULL, attempts int NOT NULL DEFAULT 0,
      created_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz);
    CREATE INDEX article_pending ON article_outbox (id) WHERE processed_at IS NULL;";

const FILL: &str = "
    INSERT INTO article_outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', (n % 10000)::text, 'order.placed', jsonb_build_object('order', n, 'total_cents', n * 7)
      FROM generate_series(1, $1::bigint) AS n";

const CLAIM: &str = "
    SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload::text
      FROM article_outbox WHERE processed_at IS NULL
     ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";

async fn prepare(url: &str, events: i64) -> Outcome<PgConnection> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(sqlx::raw_sql(TABLE)).await?;
    sqlx::query(FILL).bind(events).execute(&mut connection).await?;
    connection.execute(sqlx::raw_sql("VACUUM ANALYZE article_outbox")).await?;
    connection.execute(sqlx::raw_sql("CHECKPOINT")).await?;
    Ok(connection)
}

/// Claims 100 rows, publishes each, and marks each with an UPDATE of its own, all in one transaction.
pub(crate) async fn row_by_row(url: &str, events: i64) -> Outcome<Duration> {
    let mut connection = prepare(url, events).await?;
    let begun = Instant::now();
    loop {
        let mut transaction = connection.begin().await?;
        let rows = sqlx::query(CLAIM).bind(100_i64).fetch_all(&mut *transaction).await?;
        if rows.is_empty() {
            return Ok(begun.elapsed());
        }
        for row in &rows {
            publish(row)?;
            sqlx::query("UPDATE article_outbox SET processed_at = now() WHERE id = $1")
                .bind(row.try_get::<i64, _>("id")?)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
    }
}

/// Claims 1000 rows and marks them with one UPDATE.
pub(crate) async fn set_based(url: &str, events: i64) -> Outcome<Duration> {
    let mut connection = prepare(url, events).await?;
    let begun = Instant::now();
    loop {
        let mut transaction = connection.begin().await?;
        let rows = sqlx::query(CLAIM).bind(1_000_i64).fetch_all(&mut *transaction).await?;
        if rows.is_empty() {
            return Ok(begun.elapsed());
        }
        let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
        for row in &rows {
            publish(row)?;
            ids.push(row.try_get("id")?);
        }
        sqlx::query("UPDATE article_outbox SET processed_at = now() WHERE id = ANY ($1)")
            .bind(ids)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
    }
}

/// What a publisher needs at the least: the texts of the event.
fn publish(row: &sqlx::postgres::PgRow) -> Outcome {
    let texts: [String; 4] = [row.try_get(2)?, row.try_get(3)?, row.try_get(4)?, row.try_get(5)?];
    std::hint::black_box(texts);
    Ok(())
}

pub(crate) async fn server_version(url: &str) -> Outcome<String> {
    let mut connection = PgConnection::connect(url).await?;
    Ok(sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?)
}
