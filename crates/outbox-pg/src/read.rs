//! A lane: the one reader of a route, with its cursor, its notes and its memory of ids.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Buckets, Claimed, Lane, ReadBatch, ReadRequest, ReadScope, StoreError, StoreErrorKind, SweepPage};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Executor as _, Postgres, Row as _};
use tokio::time::Instant;

use crate::SchemaName;
use crate::identity::Identity;
use crate::matching::Matching;
use crate::memory::{End, Memory, Start};
use crate::notes::{Holder, Snapshot};
use crate::pace::Pace;
use crate::reach::Reach;
use crate::row::{self, Place};
use crate::session::{self, CallError, Session, Sessions};

/// The longest time for a page of a sweep, which carries ids and keys only.
const SWEEP_DEADLINE: Duration = Duration::from_secs(20);

/// Rows that one read of spilled keys looks at: some tens of milliseconds.
const KEYS_SPAN: i64 = 100_000;

/// PostgreSQL compresses values of rows over some 2 kB only (`TOAST_TUPLE_THRESHOLD`), and an event counts for more
/// than its row.
const NEVER_COMPRESSED_BYTES: usize = 2000;

/// Rows of one page of a full sweep.
const SWEEP_PAGE: i64 = 10_000;

/// The statements of a lane, with the schema's name in them.
#[derive(Debug)]
pub(crate) struct ReadSql {
    note_and_begin: Arc<str>,
    begin: Arc<str>,
    patience: Arc<str>,
    forward: Arc<str>,
    forward_sized: Arc<str>,
    keys: Arc<str>,
    span: Arc<str>,
    sweep: Arc<str>,
    forward_matching: Arc<str>,
    forward_sized_matching: Arc<str>,
    keys_matching: Arc<str>,
    sweep_matching: Arc<str>,
}

impl ReadSql {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        Self {
            note_and_begin: schema.sql(concat!(
                include_str!("sql/note.sql"),
                ";\n",
                include_str!("sql/read_begin.sql")
            )),
            begin: schema.sql(include_str!("sql/read_begin.sql")),
            patience: schema.sql(include_str!("sql/read_patience.sql")),
            forward: schema.sql(include_str!("sql/read_forward.sql")),
            forward_sized: schema.sql(include_str!("sql/read_forward_sized.sql")),
            keys: schema.sql(include_str!("sql/read_keys.sql")),
            span: schema.sql(include_str!("sql/read_span.sql")),
            sweep: schema.sql(include_str!("sql/sweep.sql")),
            forward_matching: schema.sql(include_str!("sql/read_forward_matching.sql")),
            forward_sized_matching: schema.sql(include_str!("sql/read_forward_sized_matching.sql")),
            keys_matching: schema.sql(include_str!("sql/read_keys_matching.sql")),
            sweep_matching: schema.sql(include_str!("sql/sweep_matching.sql")),
        }
    }
}

pub(crate) struct PgLane {
    sessions: Arc<Sessions>,
    sql: Arc<ReadSql>,
    matching: Matching,
    /// Whose events are returned.
    buckets: Buckets,
    memory: Memory,
    reach: Reach,
    pace: Pace,
    /// Rows of the last page were too large, or too likely to be compressed, for a limit for each.
    large_rows: bool,
    /// As the last note told it.
    identity: Option<Identity>,
}

impl fmt::Debug for PgLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgLane")
            .field("cursor", &self.memory.cursor())
            .field("low", &self.memory.notes().low())
            .field("aside", &self.memory.notes().aside())
            .finish_non_exhaustive()
    }
}

impl PgLane {
    pub(crate) fn new(sessions: Arc<Sessions>, sql: Arc<ReadSql>, matching: Matching, buckets: Buckets) -> Self {
        let (memory, reach, pace) = (Memory::default(), Reach::default(), Pace::default());
        Self { sessions, sql, matching, buckets, memory, reach, pace, large_rows: false, identity: None }
    }

    /// Whether rows must be looked at to tell whether they are to be returned.
    fn is_filtered(&self) -> bool {
        self.matching.is_needed(self.buckets)
    }

    async fn forward(&mut self, max_events: usize, max_bytes: usize) -> Result<ReadBatch, StoreError> {
        let sessions = Arc::clone(&self.sessions);
        let (max_bytes, patience, begun) = (self.pace.bytes(max_bytes), self.pace.patience(), Instant::now());
        let max_row_bytes = max_bytes / max_events.max(1);
        let filtered = self.is_filtered();
        let read = async {
            let mut session = sessions.open().await?;
            let snapshot = self.note_and_begin(session.connection()).await?;
            let start = self.memory.forward(&snapshot, filtered.then_some(self.reach.ids()));
            let (small, sized) = match filtered {
                false => (&self.sql.forward, &self.sql.forward_sized),
                true => (&self.sql.forward_matching, &self.sql.forward_sized_matching),
            };
            let mut page = Page::default();
            if !self.large_rows {
                let rows = self.rows(session.connection(), small, &start, max_events, max_row_bytes);
                page = Page::of(&rows.await?, max_events)?;
                self.large_rows = page.is_cut;
            }
            if self.large_rows {
                let rows = self.rows(session.connection(), sized, &start, max_events, max_bytes);
                page = Page::of(&rows.await?, max_events)?;
                let is_large = |event: &Claimed| event.envelope.bytes() > max_row_bytes.min(NEVER_COMPRESSED_BYTES);
                self.large_rows = page.is_cut || page.events.iter().any(is_large);
            }
            if filtered && page.end == End::Nothing {
                page.end = self.memory.filtered_end(&start);
            }
            commit(session).await?;
            Ok((snapshot, page.events, page.end))
        };
        let read = sessions.within("reading events", patience, read).await;
        match &read {
            Ok((_, _, End::Reach(_))) => self.reach.crossed(begun.elapsed()),
            Ok((_, _, End::Limit)) => {}
            _ => self.reach.begin_small(),
        }
        let (snapshot, events, end) = self.paced(read, begun)?;
        let late = self.memory.forward_made(&snapshot, &ids(&events), end);
        let complete = matches!(end, End::Nothing | End::NothingOfOurs);
        Ok(ReadBatch { events, complete, late, covered_through: self.memory.cursor() })
    }

    async fn rows(
        &self,
        connection: &mut PgConnection,
        sql: &str,
        start: &Start,
        max_events: usize,
        max_bytes: usize,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let rows = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(start.after)
            .bind(&start.leave_out)
            .bind(limit(max_events))
            .bind(limit(max_bytes))
            .bind(start.through);
        self.matching(rows).fetch_all(connection).await
    }

    /// Binds the filter, which the statements of a lane with one have last.
    fn matching<'q>(&self, rows: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        if self.is_filtered() { self.matching.bind(rows, self.buckets) } else { rows }
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
        let (max_bytes, patience, begun) = (self.pace.bytes(max_bytes), self.pace.patience(), Instant::now());
        let read = async {
            let mut session = sessions.open().await?;
            self.begin(session.connection()).await?;
            let start = self.memory.keys(after);
            let keys: Vec<i64> = keys.iter().map(|key| key.cast_signed()).collect();
            let sql = if self.is_filtered() { &self.sql.keys_matching } else { &self.sql.keys };
            let rows = sqlx::query(AssertSqlSafe(&**sql))
                .persistent(false)
                .bind(start.after)
                .bind(start.leave_out)
                .bind(limit(max_events))
                .bind(limit(max_bytes))
                .bind(through)
                .bind(keys)
                .bind(KEYS_SPAN);
            let rows = session.connection().fetch_all(self.matching(rows)).await?;
            let Page { events, end, .. } = Page::of(&rows, max_events)?;
            let covered = match events.last() {
                Some(last) if end == End::Limit => last.envelope.id,
                _ => {
                    let span = sqlx::query_scalar(AssertSqlSafe(&*self.sql.span))
                        .persistent(false)
                        .bind(after)
                        .bind(through)
                        .bind(KEYS_SPAN - 1)
                        .fetch_optional(session.connection());
                    span.await?.unwrap_or(through)
                }
            };
            commit(session).await?;
            Ok((events, covered))
        };
        let read = sessions.within("reading events again", patience, read).await;
        let (events, covered_through) = self.paced(read, begun)?;
        self.memory.learn(&ids(&events));
        Ok(ReadBatch { events, complete: covered_through >= through, late: 0, covered_through })
    }

    /// Learns from how a read went.
    fn paced<T>(&mut self, read: Result<T, StoreError>, begun: Instant) -> Result<T, StoreError> {
        match &read {
            Ok(_) => self.pace.succeeded(),
            Err(_) => self.pace.failed(begun.elapsed()),
        }
        read
    }

    /// Makes a note, finds out whether what is known about ids still holds, and begins the snapshot.
    async fn note_and_begin(&mut self, connection: &mut PgConnection) -> Result<Snapshot, CallError> {
        let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(&*self.sql.note_and_begin))).await?;
        let [note, snapshot] = rows.as_slice() else {
            let problem = format!("a note and a snapshot were expected, {} rows came", rows.len());
            return Err(StoreError::new(StoreErrorKind::Failed, problem).into());
        };
        if note.try_get("is_replica")? {
            return Err(session::replica().into());
        }
        let identity = Identity {
            started: note.try_get("started")?,
            processes: note.try_get("processes")?,
            sequence_file: note.try_get("sequence_file")?,
            value: note.try_get("value")?,
        };
        if let Some(detail) = self.identity.as_ref().and_then(|before| before.broken_by(&identity)) {
            return Err(StoreError::new(StoreErrorKind::Restarted, detail).into());
        }
        let holders: Vec<String> = note.try_get("holders")?;
        let xids: Vec<String> = note.try_get("xids")?;
        self.memory.note(identity.value, with_xids(holders, &xids), Instant::now());
        self.identity = Some(identity);
        self.begun(connection, snapshot).await
    }

    async fn begin(&self, connection: &mut PgConnection) -> Result<Snapshot, CallError> {
        let snapshot = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(&*self.sql.begin))).await?;
        self.begun(connection, &snapshot).await
    }

    /// A transaction has begun, in this snapshot.
    async fn begun(&self, connection: &mut PgConnection, snapshot: &PgRow) -> Result<Snapshot, CallError> {
        let text: String = snapshot.try_get(0)?;
        if self.pace.is_slow() {
            let milliseconds = self.pace.patience().as_millis().to_string();
            let patience = sqlx::query(AssertSqlSafe(&*self.sql.patience)).persistent(false).bind(milliseconds);
            connection.execute(patience).await?;
        }
        let unreadable = || StoreError::new(StoreErrorKind::Failed, format!("unreadable snapshot `{text}`"));
        Ok(Snapshot::parse(&text).ok_or_else(unreadable)?)
    }
}

#[async_trait]
impl Lane for PgLane {
    async fn read(&mut self, request: ReadRequest) -> Result<ReadBatch, StoreError> {
        self.memory.take_in(&request.forget, &request.dropped);
        match request.scope {
            ReadScope::Forward => self.forward(request.max_events, request.max_bytes).await,
            ReadScope::Keys { keys, after, through } => {
                self.keys(&keys, after, through, request.max_events, request.max_bytes).await
            }
        }
    }

    async fn sweep(&mut self, after: i64) -> Result<SweepPage, StoreError> {
        let sessions = Arc::clone(&self.sessions);
        let through = self.memory.swept_through();
        let read = async {
            let mut session = sessions.open().await?;
            self.begin(session.connection()).await?;
            let sql = if self.is_filtered() { &self.sql.sweep_matching } else { &self.sql.sweep };
            let rows = sqlx::query(AssertSqlSafe(&**sql)).persistent(false).bind(after).bind(through).bind(SWEEP_PAGE);
            let rows = session.connection().fetch_all(self.matching(rows)).await?;
            commit(session).await?;
            let filtered = self.is_filtered();
            let row = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?, !filtered || row.try_get(2)?));
            Ok(rows.iter().map(row).collect::<Result<Vec<(i64, i64, bool)>, sqlx::Error>>()?)
        };
        let page = sessions.within("sweeping", SWEEP_DEADLINE, read).await?;
        let full = i64::try_from(page.len()).is_ok_and(|rows| rows >= SWEEP_PAGE);
        let next = page.last().filter(|_| full).map(|(id, ..)| *id);
        let unknown = page.into_iter().filter(|(id, _, own)| *own && self.memory.is_unknown(*id));
        Ok(SweepPage { unknown: unknown.map(|(id, key, _)| (id, key.cast_unsigned())).collect(), next })
    }

    fn turn_to(&mut self, buckets: Buckets, gained: Buckets) {
        self.buckets = buckets;
        if !gained.is_empty() {
            self.memory.rewind();
            self.reach.begin_small();
        }
    }
}

async fn commit(mut session: Session<'_>) -> Result<(), CallError> {
    session.connection().execute(sqlx::raw_sql("COMMIT")).await?;
    session.keep();
    Ok(())
}

fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What one statement returned.
#[derive(Debug)]
struct Page {
    events: Vec<Claimed>,
    end: End,
    /// Rows came without their bodies.
    is_cut: bool,
}

impl Default for Page {
    fn default() -> Self {
        Self { events: Vec::new(), end: End::Nothing, is_cut: false }
    }
}

impl Page {
    /// The rows up to the first without its body. Whether bytes ended the page is told by the statement that counted
    /// them.
    fn of(rows: &[PgRow], max_events: usize) -> Result<Self, sqlx::Error> {
        let mut page = Self { events: Vec::with_capacity(rows.len()), ..Self::default() };
        if rows.len() >= max_events {
            page.end = End::Limit;
        }
        for row in rows {
            match row::place(row)? {
                Place::Within => {}
                Place::Last => page.end = End::Limit,
                Place::Beyond => {
                    (page.end, page.is_cut) = (End::Limit, true);
                    break;
                }
            }
            page.events.push(row::claimed(row)?);
        }
        Ok(page)
    }
}

fn ids(events: &[Claimed]) -> Vec<i64> {
    events.iter().map(|claimed| claimed.envelope.id).collect()
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
