//! What leaves `events`: confirmed events unfenced, everything else behind the fence of its bucket.

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::{Buckets, Change, Confirmed, EventId, Ownership, RetryState, StoreError, WriteBack, WriteBackStatus};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use uuid::Uuid;

use crate::error::Refusal;
use crate::row;
use crate::schema::SchemaName;
use crate::session::{Begin, CallError, Sessions};

/// The longest time for one statement over some thousand rows, waiting for locks included.
const DEADLINE: Duration = Duration::from_secs(15);

/// The most bytes that the columns `last_error` and `reason` take.
const MAX_ERROR_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct SettleSql {
    deadline: Duration,
    begin: Begin,
    /// Whether the last settle got no answer in time.
    in_doubt: AtomicBool,
    settle: Arc<str>,
    settle_range: Arc<str>,
    settle_retried: Arc<str>,
    fence: Arc<str>,
    retry: Arc<str>,
    acquit: Arc<str>,
    retry_gone: Arc<str>,
    bury: Arc<str>,
    retry_states: Arc<str>,
}

impl SettleSql {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        Self {
            deadline: DEADLINE,
            begin: Begin::new(schema),
            in_doubt: AtomicBool::new(false),
            settle: schema.sql(include_str!("sql/settle.sql")),
            settle_range: schema.sql(include_str!("sql/settle_range.sql")),
            settle_retried: schema.sql(include_str!("sql/settle_retried.sql")),
            fence: schema.sql(include_str!("sql/fence.sql")),
            retry: schema.sql(include_str!("sql/retry.sql")),
            acquit: schema.sql(include_str!("sql/acquit.sql")),
            retry_gone: schema.sql(include_str!("sql/retry_gone.sql")),
            bury: schema.sql(include_str!("sql/bury.sql")),
            retry_states: schema.sql(include_str!("sql/retry_states.sql")),
        }
    }
}

pub(crate) async fn settle(sessions: &Sessions, sql: &SettleSql, confirmed: &[Confirmed]) -> Result<(), StoreError> {
    if confirmed.is_empty() {
        return Ok(());
    }
    let (ids, event_ids) = pairs(confirmed.iter().map(|event| (event.id, event.event_id)));
    let retried = confirmed.iter().filter(|event| event.retried);
    let (retried_ids, retried_event_ids) = pairs(retried.map(|event| (event.id, event.event_id)));
    let in_doubt = sql.in_doubt.load(Ordering::Relaxed);
    let range = close_together(&ids);
    let work = async {
        let mut session = sessions.open().await?;
        if retried_ids.is_empty() {
            let statement = if range.is_some() { &sql.settle_range } else { &sql.settle };
            let mut settle = sqlx::query(AssertSqlSafe(&**statement)).persistent(false).bind(ids).bind(event_ids);
            if let Some((lowest, highest)) = range {
                settle = settle.bind(lowest).bind(highest);
            }
            if !in_doubt {
                // One message, the usual case. The server sets it no limit, so it is not the one that is repeated.
                session.connection().execute(settle).await?;
                session.keep();
                return Ok(());
            }
            session.begin(&sql.begin, sql.deadline).await?;
            session.connection().execute(settle).await?;
        } else {
            session.begin(&sql.begin, sql.deadline).await?;
            let settle = sqlx::query(AssertSqlSafe(&*sql.settle_retried))
                .persistent(false)
                .bind(ids)
                .bind(event_ids)
                .bind(retried_ids)
                .bind(retried_event_ids);
            session.connection().execute(settle).await?;
        }
        session.commit().await
    };
    let settled = sessions.within("settling confirmed events", sql.deadline, work).await;
    sql.in_doubt.store(settled.is_err(), Ordering::Relaxed);
    settled
}

/// The lowest and the highest id, if at most every second one between them is not to be settled.
fn close_together(ids: &[i64]) -> Option<(i64, i64)> {
    let (lowest, highest) = (*ids.iter().min()?, *ids.iter().max()?);
    let most = i64::try_from(ids.len()).ok()?.saturating_mul(2);
    (highest.checked_sub(lowest)? < most).then_some((lowest, highest))
}

pub(crate) async fn write_back(
    sessions: &Sessions,
    sql: &SettleSql,
    ownership: &Ownership,
    changes: &[WriteBack],
) -> Result<Vec<WriteBackStatus>, StoreError> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let (ours, there) = match write(sessions, sql, ownership, changes).await {
        Err(error) if is_about_a_value(&error) => {
            // The errors' texts are the only values that come from elsewhere: a database that is not in UTF-8 may lack
            // their characters, or need more bytes for them. They must not keep an event from being written back.
            let in_ascii: Vec<WriteBack> = changes.iter().map(in_ascii).collect();
            write(sessions, sql, ownership, &in_ascii).await?
        }
        written => written?,
    };
    let status = |change: &WriteBack| match (ours.contains(&change.bucket), there.contains(&change.id)) {
        (false, _) => WriteBackStatus::Fenced,
        (true, true) => WriteBackStatus::Done,
        (true, false) => WriteBackStatus::Gone,
    };
    Ok(changes.iter().map(status).collect())
}

/// The buckets that are still ours, and the ids whose event was there.
async fn write(
    sessions: &Sessions,
    sql: &SettleSql,
    ownership: &Ownership,
    changes: &[WriteBack],
) -> Result<(HashSet<u16>, HashSet<i64>), StoreError> {
    let work = async {
        let mut session = sessions.open().await?;
        session.begin(&sql.begin, sql.deadline).await?;
        let connection = session.connection();
        let ours = fence(connection, sql, ownership, changes).await?;
        let (behind, _): (Vec<_>, Vec<_>) = changes.iter().partition(|change| ours.contains(&change.bucket));
        // Events before retries, as everywhere: what is buried comes first.
        let (dead, there_still): (Vec<&WriteBack>, Vec<&WriteBack>) =
            behind.into_iter().partition(|change| change.change == Change::Dead);
        let (acquitted, retries): (Vec<&WriteBack>, Vec<&WriteBack>) =
            there_still.into_iter().partition(|change| change.change == Change::Acquit);
        let mut there = bury(connection, sql, &dead).await?;
        there.extend(retry(connection, sql, &retries).await?);
        there.extend(acquit(connection, sql, &acquitted).await?);
        session.commit().await?;
        Ok((ours, there))
    };
    sessions.within("writing back failed events", sql.deadline, work).await
}

/// Whether PostgreSQL refused a value: untranslatable character, character not in repertoire, check violation.
fn is_about_a_value(error: &StoreError) -> bool {
    let refusal = error.source().and_then(|source| source.downcast_ref::<Refusal>());
    let code = refusal.and_then(|refusal| refusal.0.as_database_error()).and_then(DatabaseError::code);
    matches!(code.as_deref(), Some("22P05" | "22021" | "23514"))
}

/// The change with its error in ASCII, other characters as `\u{2026}`.
fn in_ascii(change: &WriteBack) -> WriteBack {
    let mut error = String::with_capacity(change.error.len());
    for character in change.error.chars() {
        if character.is_ascii() {
            error.push(character);
        } else {
            error.extend(character.escape_unicode());
        }
    }
    error.truncate(MAX_ERROR_BYTES);
    WriteBack { error, ..change.clone() }
}

/// The buckets of these changes that are still ours; they stay so until the transaction ends.
async fn fence(
    connection: &mut PgConnection,
    sql: &SettleSql,
    ownership: &Ownership,
    changes: &[WriteBack],
) -> Result<HashSet<u16>, CallError> {
    let concerned: Buckets = changes.iter().map(|change| change.bucket).collect();
    // What is not owned has no token, and none of what it guards is written.
    let tokens = ownership.tokens.iter().filter(|(bucket, _)| concerned.contains(**bucket));
    let (buckets, tokens): (Vec<i16>, Vec<i64>) =
        tokens.filter_map(|(bucket, token)| Some((i16::try_from(*bucket).ok()?, *token))).unzip();
    let ours: Vec<i16> = sqlx::query_scalar(AssertSqlSafe(&*sql.fence))
        .persistent(false)
        .bind(ownership.route())
        .bind(buckets)
        .bind(tokens)
        .fetch_all(connection)
        .await?;
    Ok(ours.into_iter().filter_map(|bucket| u16::try_from(bucket).ok()).collect())
}

async fn retry(
    connection: &mut PgConnection,
    sql: &SettleSql,
    changes: &[&WriteBack],
) -> Result<HashSet<i64>, CallError> {
    if changes.is_empty() {
        return Ok(HashSet::new());
    }
    let (ids, event_ids) = pairs(changes.iter().map(|change| (change.id, change.event_id)));
    let delays: Vec<f64> = changes
        .iter()
        .map(|change| match change.change {
            Change::Retry { delay } => delay.as_secs_f64(),
            Change::Acquit | Change::Block | Change::Dead => 0.0,
        })
        .collect();
    let there: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(&*sql.retry))
        .persistent(false)
        .bind(&ids)
        .bind(&event_ids)
        .bind(numbers(changes, |change| change.attempts))
        .bind(numbers(changes, |change| change.crashes))
        .bind(delays)
        .bind(changes.iter().map(|change| change.kind).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.error.as_str()).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.change == Change::Block).collect::<Vec<_>>())
        .fetch_all(&mut *connection)
        .await?;
    forget_gone(connection, sql, &ids, &event_ids, there).await
}

async fn acquit(
    connection: &mut PgConnection,
    sql: &SettleSql,
    changes: &[&WriteBack],
) -> Result<HashSet<i64>, CallError> {
    if changes.is_empty() {
        return Ok(HashSet::new());
    }
    let (ids, event_ids) = pairs(changes.iter().map(|change| (change.id, change.event_id)));
    let there: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(&*sql.acquit))
        .persistent(false)
        .bind(&ids)
        .bind(&event_ids)
        .fetch_all(&mut *connection)
        .await?;
    forget_gone(connection, sql, &ids, &event_ids, there).await
}

/// Removes the retry rows of events that are no longer there. The others' ids.
async fn forget_gone(
    connection: &mut PgConnection,
    sql: &SettleSql,
    ids: &[i64],
    event_ids: &[Uuid],
    there: Vec<i64>,
) -> Result<HashSet<i64>, CallError> {
    let there: HashSet<i64> = there.into_iter().collect();
    if there.len() < ids.len() {
        let gone = ids.iter().zip(event_ids).filter(|(id, _)| !there.contains(id));
        let (ids, event_ids): (Vec<i64>, Vec<Uuid>) = gone.map(|(id, event_id)| (*id, *event_id)).unzip();
        let delete = sqlx::query(AssertSqlSafe(&*sql.retry_gone)).persistent(false).bind(ids).bind(event_ids);
        connection.execute(delete).await?;
    }
    Ok(there)
}

async fn bury(
    connection: &mut PgConnection,
    sql: &SettleSql,
    changes: &[&WriteBack],
) -> Result<HashSet<i64>, CallError> {
    if changes.is_empty() {
        return Ok(HashSet::new());
    }
    let (ids, event_ids) = pairs(changes.iter().map(|change| (change.id, change.event_id)));
    let moved: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(&*sql.bury))
        .persistent(false)
        .bind(ids)
        .bind(event_ids)
        .bind(numbers(changes, |change| change.attempts))
        .bind(changes.iter().map(|change| change.kind).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| change.error.as_str()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(moved.into_iter().collect())
}

pub(crate) async fn retry_states(
    sessions: &Sessions,
    sql: &SettleSql,
    waiting: &[(i64, EventId)],
) -> Result<Vec<RetryState>, StoreError> {
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let (ids, event_ids) = pairs(waiting.iter().copied());
    let work = async {
        let mut session = sessions.open().await?;
        session.begin(&sql.begin, sql.deadline).await?;
        let rows = sqlx::query(AssertSqlSafe(&*sql.retry_states)).persistent(false).bind(ids).bind(event_ids);
        let rows = session.connection().fetch_all(rows).await?;
        session.commit().await?;
        let state = |row| {
            Ok(match (sqlx::postgres::PgRow::try_get(row, 0)?, row::retrying(row, 1)?) {
                (false, _) => RetryState::Gone,
                (true, None) => RetryState::Clear,
                (true, Some(retrying)) => RetryState::Waiting(retrying),
            })
        };
        Ok(rows.iter().map(state).collect::<Result<Vec<_>, sqlx::Error>>()?)
    };
    sessions.within("looking at waiting events", sql.deadline, work).await
}

fn pairs(events: impl Iterator<Item = (i64, EventId)>) -> (Vec<i64>, Vec<Uuid>) {
    events.map(|(id, event_id)| (id, event_id.as_uuid())).unzip()
}

fn numbers(changes: &[&WriteBack], of: impl Fn(&WriteBack) -> u32) -> Vec<i32> {
    changes.iter().map(|change| i32::try_from(of(change)).unwrap_or(i32::MAX)).collect()
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
