//! Databases that are not in UTF-8: what a broker says about an event may hold characters that they lack.

use outbox_core::{Change, Store, WriteBack, WriteBackStatus};
use outbox_pg::{SchemaName, migrate};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::database::{Database, number, run};
use crate::lane::{Reader, insert};

#[tokio::test]
async fn an_error_is_written_back_whatever_the_encoding_lacks() {
    let Some(database) = Database::empty("encodings") else { return };
    let mut admin = database.connect().await;
    for encoding in ["LATIN1", "SQL_ASCII", "EUC_JP"] {
        let name = format!("{}_{encoding}", database.name());
        let options = format!("ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
        run(&mut admin, &format!("CREATE DATABASE \"{name}\" {options}")).await.unwrap();
        let url = database.url().replace(database.name(), &name);
        let mut conn = PgConnection::connect(&url).await.unwrap();
        migrate::up(&mut conn, &SchemaName::default()).await.unwrap();
        for aggregate in ["a", "b"] {
            insert(&mut conn, aggregate).await;
        }
        let mut reader = Reader::open(&url).await;
        let events = reader.read(10).await.events;
        let texts = ["refused…: zażółć 🦀".to_owned(), "…".repeat(1365)];
        let changes: Vec<WriteBack> = (events.iter().zip(texts))
            .zip([Change::Dead, Change::Retry { delay: std::time::Duration::ZERO }])
            .map(|((event, error), change)| WriteBack {
                id: event.envelope.id,
                event_id: event.envelope.event_id,
                bucket: event.bucket,
                attempts: 1,
                crashes: 0,
                kind: "failed",
                error,
                change,
            })
            .collect();
        let done = reader.store.write_back(&reader.ownership, &changes).await;
        assert_eq!(done.unwrap(), [WriteBackStatus::Done; 2], "{encoding}");
        let reason: String =
            sqlx::query_scalar("SELECT reason FROM outbox.dead_letters").fetch_one(&mut conn).await.unwrap();
        assert!(reason.starts_with("refused") && reason.ends_with(['🦀', '}']), "{encoding}: {reason}");
        assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.retries").await, 1, "{encoding}");
        reader.store.close().await;
        conn.close().await.unwrap();
        run(&mut admin, &format!("DROP DATABASE \"{name}\" WITH (FORCE)")).await.unwrap();
    }
}

/// Ids begin anew, and a producer that makes its event ids itself writes the same event again.
#[tokio::test]
async fn an_event_is_given_up_beside_an_older_dead_letter_of_the_same_ids() {
    let Some(database) = Database::migrated("same_letter").await else { return };
    let mut conn = database.connect().await;
    let insert = "INSERT INTO outbox.events (event_id, aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('00000000-0000-0000-0000-000000000001', 'order', '1', 'placed', '{}')";
    for round in 1..=2_i64 {
        run(&mut conn, "TRUNCATE outbox.events RESTART IDENTITY").await.unwrap();
        run(&mut conn, insert).await.unwrap();
        let mut reader = Reader::open(database.url()).await;
        let event = reader.read(1).await.events.remove(0);
        let dead = WriteBack {
            id: event.envelope.id,
            event_id: event.envelope.event_id,
            bucket: event.bucket,
            attempts: 1,
            crashes: 0,
            kind: "rejected",
            error: format!("round {round}"),
            change: Change::Dead,
        };
        let done = reader.store.write_back(&reader.ownership, &[dead]).await.unwrap();
        assert_eq!(done, [WriteBackStatus::Done], "round {round}");
        assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.dead_letters WHERE id = 1").await, round);
        reader.release().await;
    }
    let back: bool = sqlx::query_scalar(AssertSqlSafe("SELECT outbox.redrive('00000000-0000-0000-0000-000000000001')"))
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert!(back, "both go back");
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.events").await, 2);
}
