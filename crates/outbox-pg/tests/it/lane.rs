//! A relay's store with one lane, as tests read through it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Claimed, Confirmed, Lane, Ownership, ReadBatch, ReadRequest, ReadScope, Selection, Store};
use outbox_pg::{PgConfig, PgStore, SchemaName, migrate};
use outbox_testkit::services::postgres::{Options, Postgres};
use outbox_testkit::services::require_or_skip;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::database::run;

pub(crate) const ROUTE: &str = "orders";

/// A migrated server that nobody else uses: a hole in the proof of `low` shows only where nothing else commits.
pub(crate) fn silent(options: Options) -> Option<Postgres> {
    require_or_skip("pg", Postgres::start(options))
}

pub(crate) async fn migrated(server: &Postgres) -> PgConnection {
    let mut conn = connect(server).await;
    migrate::up(&mut conn, &SchemaName::default()).await.unwrap();
    conn
}

pub(crate) async fn connect(server: &Postgres) -> PgConnection {
    PgConnection::connect(&server.url()).await.unwrap()
}

pub(crate) struct Reader {
    pub(crate) store: Arc<PgStore>,
    pub(crate) ownership: Ownership,
    pub(crate) lane: Box<dyn Lane>,
    forget: Vec<i64>,
}

impl Reader {
    pub(crate) async fn open(url: &str) -> Self {
        let store = Arc::new(PgStore::new(&PgConfig::new(url), "test").unwrap());
        let ownership =
            store.acquire(&Selection::everything(ROUTE), Duration::from_secs(600)).await.unwrap().owned().unwrap();
        let lane = store.open_lane(&ownership).await.unwrap();
        Self { store, ownership, lane, forget: Vec::new() }
    }

    pub(crate) async fn read(&mut self, max_events: usize) -> ReadBatch {
        let request = ReadRequest { forget: std::mem::take(&mut self.forget), ..forward(max_events) };
        self.lane.read(request).await.unwrap()
    }

    /// Ids of one read.
    pub(crate) async fn ids(&mut self, max_events: usize) -> Vec<i64> {
        ids(&self.read(max_events).await.events)
    }

    /// Settles what was read, as an engine does after the confirms.
    pub(crate) async fn settle(&mut self, events: &[Claimed]) {
        let confirmed: Vec<_> = events.iter().map(confirmed).collect();
        self.store.settle(ROUTE, &confirmed).await.unwrap();
        self.forget.extend(ids(events));
    }

    /// Another lane of the same ownership.
    pub(crate) async fn store_lane(&self) -> Box<dyn Lane> {
        self.store.open_lane(&self.ownership).await.unwrap()
    }

    pub(crate) async fn release(&self) {
        self.store.release(&self.ownership).await.unwrap();
    }

    /// Nothing comes again, and no sweep finds what reads have passed.
    pub(crate) async fn assert_quiet(&mut self) {
        for _ in 0..3 {
            assert_eq!(self.ids(100).await, [0; 0], "an event was read twice, or late");
        }
        let page = self.lane.sweep(0).await.unwrap();
        assert!(page.unknown.is_empty() && page.next.is_none(), "{page:?}");
    }
}

pub(crate) fn forward(max_events: usize) -> ReadRequest {
    let (scope, max_bytes) = (ReadScope::Forward, 16 * 1024 * 1024);
    ReadRequest { scope, max_events, max_bytes, forget: Vec::new(), dropped: Vec::new() }
}

pub(crate) fn ids(events: &[Claimed]) -> Vec<i64> {
    events.iter().map(|event| event.envelope.id).collect()
}

pub(crate) fn confirmed(event: &Claimed) -> Confirmed {
    let (id, event_id) = (event.envelope.id, event.envelope.event_id);
    Confirmed { id, event_id, retried: event.retrying.is_some() }
}

/// Inserts an event of this aggregate by SQL, as a producer in any language, and returns its id.
pub(crate) async fn insert(conn: &mut PgConnection, aggregate_id: &str) -> i64 {
    insert_with(conn, aggregate_id, "'{}'", "NULL").await
}

pub(crate) async fn insert_with(conn: &mut PgConnection, aggregate_id: &str, payload: &str, headers: &str) -> i64 {
    let sql = format!(
        "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers) \
         VALUES ('order', '{aggregate_id}', 'changed', {payload}, {headers}) RETURNING id"
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await.unwrap()
}

/// An open transaction.
pub(crate) async fn begin(server: &Postgres) -> PgConnection {
    let mut conn = connect(server).await;
    run(&mut conn, "BEGIN").await.unwrap();
    conn
}

/// Asks until a query answers true.
pub(crate) async fn until(conn: &mut PgConnection, sql: &'static str) {
    let asked = async {
        while !sqlx::query_scalar::<_, bool>(sql).persistent(false).fetch_one(&mut *conn).await.unwrap() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asked).await.unwrap_or_else(|_| panic!("never true: {sql}"));
}
