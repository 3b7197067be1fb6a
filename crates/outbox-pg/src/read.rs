//! A lane: the one reader of a route, with its cursor, its notes and its memory of ids.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Claimed, Lane, ReadBatch, ReadRequest, ReadScope, StoreError, StoreErrorKind, SweepPage};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::time::Instant;

use crate::SchemaName;
use crate::notes::{Holder, Notes, Snapshot};
use crate::row;
use crate::session::{CallError, Session, Sessions};

/// The longest time for a read: 16 MiB over a slow link, or a page through many dead rows.
const READ_DEADLINE: Duration = Duration::from_secs(20);

/// Rows that one read of spilled keys looks at: some tens of milliseconds.
const KEYS_SPAN: i64 = 100_000;

/// Rows of one page of a full sweep.
const SWEEP_PAGE: i64 = 10_000;

/// The statements of a lane, with the schema's name in them.
#[derive(Debug)]
pub(crate) struct ReadSql {
    note: Arc<str>,
    begin: Arc<str>,
    forward: Arc<str>,
    keys: Arc<str>,
    span: Arc<str>,
    sweep: Arc<str>,
}

impl ReadSql {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        Self {
            note: schema.sql(include_str!("sql/note.sql")),
            begin: schema.sql(include_str!("sql/read_begin.sql")),
            forward: schema.sql(include_str!("sql/read_forward.sql")),
            keys: schema.sql(include_str!("sql/read_keys.sql")),
            span: schema.sql(include_str!("sql/read_span.sql")),
            sweep: schema.sql(include_str!("sql/sweep.sql")),
        }
    }
}

pub(crate) struct PgLane {
    sessions: Arc<Sessions>,
    sql: Arc<ReadSql>,
    /// Every event at or below it that was visible has been returned; later ones below it are found by the look-back.
    cursor: i64,
    notes: Notes,
    /// Ids that were returned and are somewhere in the relay, or left the table a moment ago.
    known: BTreeSet<i64>,
    /// Ids above `low` that the relay dropped: no forward read returns them again.
    dropped: BTreeSet<i64>,
    /// The server's start time and the sequence's value at the last note.
    server: Option<(String, i64)>,
}

impl fmt::Debug for PgLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgLane")
            .field("cursor", &self.cursor)
            .field("low", &self.notes.low())
            .field("known", &self.known.len())
            .field("dropped", &self.dropped.len())
            .finish_non_exhaustive()
    }
}

impl PgLane {
    pub(crate) fn new(sessions: Arc<Sessions>, sql: Arc<ReadSql>) -> Self {
        Self {
            sessions,
            sql,
            cursor: 0,
            notes: Notes::default(),
            known: BTreeSet::new(),
            dropped: BTreeSet::new(),
            server: None,
        }
    }

    async fn forward(&mut self, max_events: usize, max_bytes: usize) -> Result<ReadBatch, StoreError> {
        let sessions = Arc::clone(&self.sessions);
        let read = async {
            let mut session = sessions.open().await?;
            self.note(session.connection()).await?;
            let snapshot = self.begin(session.connection()).await?;
            let start = self.notes.look_back_to(&snapshot).min(self.cursor);
            let known: Vec<i64> = self.above(start);
            let rows = sqlx::query(AssertSqlSafe(&*self.sql.forward))
                .persistent(false)
                .bind(start)
                .bind(known)
                .bind(limit(max_events))
                .bind(limit(max_bytes));
            let rows = session.connection().fetch_all(rows).await?;
            commit(session).await?;
            Ok((snapshot, decode(&rows)?))
        };
        let (snapshot, events) = sessions.within("reading events", READ_DEADLINE, read).await?;
        let complete = !is_full(&events, max_events, max_bytes);
        let late = events.iter().take_while(|claimed| claimed.envelope.id <= self.cursor).count();
        if let Some(last) = events.last() {
            // A page that did not hold everything puts the cursor back: what lies above it is read in order.
            self.cursor = if complete { self.cursor.max(last.envelope.id) } else { last.envelope.id };
        }
        self.notes.read_made(&snapshot);
        self.learn(&events);
        // At and below where reads begin nothing can be come across again.
        let passed = self.notes.low().min(self.cursor);
        self.dropped = self.dropped.split_off(&passed.saturating_add(1));
        Ok(ReadBatch { events, complete, late, covered_through: self.cursor })
    }

    async fn keys(
        &mut self,
        keys: &[u64],
        after: i64,
        through: i64,
        max_events: usize,
        max_bytes: usize,
    ) -> Result<ReadBatch, StoreError> {
        let sessions = Arc::clone(&self.sessions);
        let read = async {
            let mut session = sessions.open().await?;
            self.begin(session.connection()).await?;
            let known: Vec<i64> = self.known.range(after.saturating_add(1)..).copied().collect();
            let keys: Vec<i64> = keys.iter().map(|key| key.cast_signed()).collect();
            let rows = sqlx::query(AssertSqlSafe(&*self.sql.keys))
                .persistent(false)
                .bind(after)
                .bind(known)
                .bind(limit(max_events))
                .bind(limit(max_bytes))
                .bind(through)
                .bind(keys)
                .bind(KEYS_SPAN);
            let rows = session.connection().fetch_all(rows).await?;
            let events = decode(&rows)?;
            let covered = match events.last() {
                Some(last) if is_full(&events, max_events, max_bytes) => last.envelope.id,
                _ => {
                    let end = sqlx::query_scalar(AssertSqlSafe(&*self.sql.span))
                        .persistent(false)
                        .bind(after)
                        .bind(through)
                        .bind(KEYS_SPAN - 1)
                        .fetch_optional(session.connection());
                    end.await?.unwrap_or(through)
                }
            };
            commit(session).await?;
            Ok((events, covered))
        };
        let (events, covered_through) = sessions.within("reading events again", READ_DEADLINE, read).await?;
        self.learn(&events);
        Ok(ReadBatch { events, complete: covered_through >= through, late: 0, covered_through })
    }

    /// Makes a note, and finds out whether what is known about ids still holds.
    async fn note(&mut self, connection: &mut PgConnection) -> Result<(), CallError> {
        let row = connection.fetch_one(sqlx::query(AssertSqlSafe(&*self.sql.note)).persistent(false)).await?;
        let value: i64 = row.try_get("value")?;
        let started: String = row.try_get("started")?;
        if let Some((started_before, value_before)) = &self.server
            && (*started_before != started || value < *value_before)
        {
            let detail = if value < *value_before {
                format!("the ids of events were reset: the sequence went from {value_before} back to {value}")
            } else {
                "the database server was restarted or replaced".to_owned()
            };
            return Err(StoreError::new(StoreErrorKind::Restarted, detail).into());
        }
        let holders: Vec<String> = row.try_get("holders")?;
        let xids: Vec<String> = row.try_get("xids")?;
        self.server = Some((started, value));
        self.notes.note(value, with_xids(holders, &xids), Instant::now());
        Ok(())
    }

    async fn begin(&self, connection: &mut PgConnection) -> Result<Snapshot, CallError> {
        let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(&*self.sql.begin))).await?;
        let text: String = row.try_get(0)?;
        let unreadable = || StoreError::new(StoreErrorKind::Failed, format!("unreadable snapshot `{text}`"));
        Ok(Snapshot::parse(&text).ok_or_else(unreadable)?)
    }

    fn above(&self, start: i64) -> Vec<i64> {
        let from = start.saturating_add(1);
        self.known.range(from..).chain(self.dropped.range(from..)).copied().collect()
    }

    fn learn(&mut self, events: &[Claimed]) {
        for claimed in events {
            let id = claimed.envelope.id;
            self.dropped.remove(&id);
            self.known.insert(id);
        }
    }
}

#[async_trait]
impl Lane for PgLane {
    async fn read(&mut self, request: ReadRequest) -> Result<ReadBatch, StoreError> {
        for id in &request.forget {
            self.known.remove(id);
        }
        for id in request.dropped {
            if self.known.remove(&id) {
                self.dropped.insert(id);
            }
        }
        match request.scope {
            ReadScope::Forward => self.forward(request.max_events, request.max_bytes).await,
            ReadScope::Keys { keys, after, through } => {
                self.keys(&keys, after, through, request.max_events, request.max_bytes).await
            }
        }
    }

    async fn sweep(&mut self, after: i64) -> Result<SweepPage, StoreError> {
        let sessions = Arc::clone(&self.sessions);
        let through = self.notes.settled_below().min(self.cursor);
        let read = async {
            let mut session = sessions.open().await?;
            self.begin(session.connection()).await?;
            let page = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(&*self.sql.sweep))
                .persistent(false)
                .bind(after)
                .bind(through)
                .bind(SWEEP_PAGE)
                .fetch_all(session.connection())
                .await?;
            commit(session).await?;
            Ok(page)
        };
        let page = sessions.within("sweeping", READ_DEADLINE, read).await?;
        let full = i64::try_from(page.len()).is_ok_and(|rows| rows >= SWEEP_PAGE);
        let next = page.last().filter(|_| full).map(|(id, _)| *id);
        let unknown = page.into_iter().filter(|(id, _)| !self.known.contains(id) && !self.dropped.contains(id));
        Ok(SweepPage { unknown: unknown.map(|(id, key)| (id, key.cast_unsigned())).collect(), next })
    }
}

async fn commit(mut session: Session<'_>) -> Result<(), CallError> {
    session.connection().execute(sqlx::raw_sql("COMMIT")).await?;
    session.keep();
    Ok(())
}

fn decode(rows: &[PgRow]) -> Result<Vec<Claimed>, sqlx::Error> {
    rows.iter().map(row::claimed).collect()
}

fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Whether a page was ended by a limit. Bytes are counted as the statement counts them, so no less than there.
fn is_full(events: &[Claimed], max_events: usize, max_bytes: usize) -> bool {
    let bytes: usize = events.iter().map(|claimed| 256 + claimed.envelope.bytes()).sum();
    events.len() >= max_events || bytes >= max_bytes
}

/// Joins the holders with their transaction ids. A transaction with savepoints holds several; the top one was assigned
/// first, so it is the oldest.
fn with_xids(holders: Vec<String>, xids: &[String]) -> Vec<Holder> {
    let older = |a: u32, b: u32| if a.wrapping_sub(b) > u32::MAX / 2 { a } else { b };
    holders
        .into_iter()
        .map(|vxid| {
            let own = xids.iter().filter_map(|entry| entry.split_once(' ')).filter(|(holder, _)| *holder == vxid);
            let xid = own.filter_map(|(_, xid)| xid.parse().ok()).reduce(older);
            Holder { vxid, xid }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_transaction_id_is_the_top_one() {
        let xids = ["3/7 4294967295".to_owned(), "3/7 2".to_owned(), "9/1 5".to_owned()];
        let holders = with_xids(vec!["3/7".into(), "4/4".into()], &xids);
        assert_eq!(holders[0], Holder { vxid: "3/7".into(), xid: Some(u32::MAX) });
        assert_eq!(holders[1], Holder { vxid: "4/4".into(), xid: None });
    }
}
