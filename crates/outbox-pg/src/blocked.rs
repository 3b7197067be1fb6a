//! Blocked events: given up under `on_dead = "block"`, they stay in their place and hold up their aggregates until an
//! operator lets them go or skips them.
//!
//! A running relay sees what is done here within its poll interval, or a second where that is longer or much waits.
//! Several operators may act at once: each event is changed by one of them.

use std::time::Duration;

use outbox_core::EventId;
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use crate::SchemaName;
use crate::session::Begin;

/// The most events that one transaction changes: it takes below a second, and no lock is held for longer.
pub const MAX_CHANGED: u32 = 10_000;

/// The longest time for one statement, waiting for another operator included.
const STATEMENT_LIMIT: Duration = Duration::from_secs(20);

/// How often a transaction is begun anew that the server broke off in favour of another.
const TRIES: usize = 5;

/// Which blocked events. All conditions must hold; without any it is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Selector {
    /// One of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_ids: Vec<EventId>,
    /// Of aggregates of this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_type: Option<String>,
    /// Of aggregates with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
}

/// Who acts, and why: for the table `audit`, beside the database's own user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// The user of the operating system.
    pub os_user: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// A blocked event: the first one of its aggregate, unless its route keeps no order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// Its row; pages are in this order.
    pub id: i64,
    /// Its identity.
    pub event_id: EventId,
    /// What it is about.
    pub aggregate_type: String,
    /// Which one.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// Charged attempts.
    pub attempts: u32,
    /// Charged crashes.
    pub crashes: u32,
    /// Name of the last error's kind.
    pub kind: String,
    /// The last error.
    pub error: String,
    /// How long it has been blocked, by the database's clock.
    pub since: Duration,
}

/// What a change has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// So many events.
    pub affected: u64,
    /// Where to go on, `None` at the end: one transaction changes at most [`MAX_CHANGED`].
    pub next: Option<i64>,
}

type Row = (i64, Uuid, String, String, String, i32, i32, String, String, i64);

/// Lists up to `most` blocked events with ids above `after`, in order; from 0 for the first page.
///
/// # Errors
/// What the database said.
pub async fn list(
    conn: &mut PgConnection,
    schema: &SchemaName,
    selector: &Selector,
    after: i64,
    most: u32,
) -> Result<Vec<Blocked>, sqlx::Error> {
    let sql = schema.sql(include_str!("sql/blocked_list.sql"));
    let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(sql))
        .persistent(false)
        .bind(after)
        .bind(i64::from(most))
        .bind(selector.event_ids())
        .bind(selector.aggregate_type.as_deref())
        .bind(selector.aggregate_id.as_deref())
        .fetch_all(conn)
        .await?;
    Ok(rows.into_iter().map(Blocked::from).collect())
}

/// Lets blocked events with ids above `after` go again: no attempts, no crashes, due now. Writes a row of `audit`.
///
/// # Errors
/// What the database said; then nothing was changed, unless the connection was lost.
pub async fn retry(
    conn: &mut PgConnection,
    schema: &SchemaName,
    selector: &Selector,
    operator: &Operator,
    after: i64,
) -> Result<Changed, sqlx::Error> {
    let change = Change { action: "blocked retry", sql: include_str!("sql/blocked_retry.sql") };
    change.make(conn, schema, selector, operator, after).await
}

/// Moves blocked events with ids above `after` to the dead letters, with the error that blocked them: their aggregates go
/// on without them. Writes a row of `audit`.
///
/// # Errors
/// As [`retry`].
pub async fn skip(
    conn: &mut PgConnection,
    schema: &SchemaName,
    selector: &Selector,
    operator: &Operator,
    after: i64,
) -> Result<Changed, sqlx::Error> {
    let change = Change { action: "blocked skip", sql: include_str!("sql/blocked_skip.sql") };
    change.make(conn, schema, selector, operator, after).await
}

/// What is done to the events that are locked.
struct Change {
    action: &'static str,
    sql: &'static str,
}

impl Change {
    async fn make(
        &self,
        conn: &mut PgConnection,
        schema: &SchemaName,
        selector: &Selector,
        operator: &Operator,
        after: i64,
    ) -> Result<Changed, sqlx::Error> {
        let mut tries = 1;
        loop {
            match self.once(conn, schema, selector, operator, after).await {
                Err(error) if tries < TRIES && is_broken_off(&error) => tries += 1,
                made => return made,
            }
        }
    }

    async fn once(
        &self,
        conn: &mut PgConnection,
        schema: &SchemaName,
        selector: &Selector,
        operator: &Operator,
        after: i64,
    ) -> Result<Changed, sqlx::Error> {
        let begin = Begin::new(schema).sql(STATEMENT_LIMIT);
        let mut transaction = conn.begin_with(AssertSqlSafe(begin)).await?;
        let locked: Vec<(i64, Uuid)> = sqlx::query_as(AssertSqlSafe(schema.sql(include_str!("sql/blocked_lock.sql"))))
            .persistent(false)
            .bind(after)
            .bind(i64::from(MAX_CHANGED))
            .bind(selector.event_ids())
            .bind(selector.aggregate_type.as_deref())
            .bind(selector.aggregate_id.as_deref())
            .fetch_all(&mut *transaction)
            .await?;
        let full = u32::try_from(locked.len()).is_ok_and(|rows| rows >= MAX_CHANGED);
        let next = locked.last().filter(|_| full).map(|(id, _)| *id);
        let (ids, event_ids): (Vec<i64>, Vec<Uuid>) = locked.into_iter().unzip();
        let affected: i64 = sqlx::query_scalar(AssertSqlSafe(schema.sql(self.sql)))
            .persistent(false)
            .bind(ids)
            .bind(event_ids)
            .fetch_one(&mut *transaction)
            .await?;
        if affected > 0 {
            let filter = serde_json::to_string(selector).map_err(|error| sqlx::Error::Encode(error.into()))?;
            let audit = sqlx::query(AssertSqlSafe(schema.sql(include_str!("sql/audit.sql"))))
                .persistent(false)
                .bind(self.action)
                .bind(filter)
                .bind(affected)
                .bind(operator.reason.as_deref())
                .bind(operator.os_user.as_deref());
            transaction.execute(audit).await?;
        }
        transaction.commit().await?;
        Ok(Changed { affected: affected.unsigned_abs(), next })
    }
}

/// A deadlock, or a serialization failure: the other side goes on, and it may be tried again.
fn is_broken_off(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40P01" | "40001"))
}

impl Selector {
    /// `None` for all.
    fn event_ids(&self) -> Option<Vec<Uuid>> {
        let ids: Vec<Uuid> = self.event_ids.iter().map(|id| id.as_uuid()).collect();
        (!ids.is_empty()).then_some(ids)
    }
}

impl From<Row> for Blocked {
    fn from(row: Row) -> Self {
        let (id, event_id, aggregate_type, aggregate_id, event_type, attempts, crashes, kind, error, since) = row;
        let count = |number| u32::try_from(number).unwrap_or(0); // not negative, by a constraint
        Self {
            id,
            event_id: EventId::from_uuid(event_id),
            aggregate_type,
            aggregate_id,
            event_type,
            attempts: count(attempts),
            crashes: count(crashes),
            kind,
            error,
            since: Duration::from_micros(u64::try_from(since).unwrap_or(0)),
        }
    }
}
