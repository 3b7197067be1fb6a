//! Producers. What they committed stands in a business table, `ledger`, written in the same transactions: so it is
//! known even where the answer to a COMMIT was lost.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use outbox_core::{EventId, NewEvent, Payload};
use outbox_pg::{EnqueueError, Outbox};
use outbox_testkit::history::History;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};
use uuid::Uuid;

use crate::database::{Database, run};

const TABLES: &str = "
    CREATE TABLE aggregates (name text PRIMARY KEY, version bigint NOT NULL);
    CREATE TABLE ledger (event_id uuid PRIMARY KEY, aggregate text NOT NULL, version bigint NOT NULL);";

const FILL: &str = "
    WITH made AS (
      INSERT INTO ledger (event_id, aggregate, version)
      SELECT gen_random_uuid(), 'filled-' || n % $2, n FROM generate_series($3 + 1, $3 + $1) AS n RETURNING *
    )
    INSERT INTO outbox.events (event_id, aggregate_type, aggregate_id, event_type, payload)
    SELECT event_id, 'order', aggregate, 'order.changed', json_build_object('version', version)
      FROM made ORDER BY version";

/// What writers do, all together.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Events to commit at least.
    pub(crate) events: usize,
    pub(crate) writers: usize,
    /// Few: the writers wait for each other.
    pub(crate) aggregates: usize,
    /// Events of one transaction, all of one aggregate.
    pub(crate) batch: i64,
    /// How long a transaction stays open after its events were written, in milliseconds.
    pub(crate) pause_ms: Range<u64>,
}

impl Load {
    /// As in the demo: 16 writers over 40 aggregates that commit 0 to 20 ms after they wrote.
    pub(crate) const fn ordinary(events: usize) -> Self {
        Self { events, writers: 16, aggregates: 40, batch: 1, pause_ms: 0..21 }
    }
}

/// Makes the business tables.
pub(crate) async fn prepare(db: &Database) {
    run(&mut db.connect().await, TABLES).await;
}

/// Commits so many events at once, over so many aggregates.
pub(crate) async fn fill(db: &Database, events: i64, aggregates: i64) {
    // Later calls go on with later versions.
    let before = db.number("SELECT coalesce(max(version), 0) FROM ledger").await;
    let query = sqlx::query(FILL).bind(events).bind(aggregates).bind(before);
    query.execute(&mut db.connect().await).await.unwrap();
}

/// What the database says was committed.
pub(crate) async fn history(db: &Database) -> History {
    let mut history = History::default();
    let rows: Vec<(Uuid, String, i64)> =
        sqlx::query_as("SELECT * FROM ledger").fetch_all(&mut db.connect().await).await.unwrap();
    for (event, aggregate, version) in rows {
        history.committed(EventId::from_uuid(event), &aggregate, version);
    }
    history
}

/// Starts the writers and returns a handle that waits for them. They go on through outages of the database.
pub(crate) fn spawn(url: &str, load: &Load) -> JoinSet<()> {
    let left = Arc::new(AtomicUsize::new(load.events));
    let mut writers = JoinSet::new();
    for number in 0..load.writers {
        let writer = Writer { url: url.to_owned(), load: load.clone(), left: Arc::clone(&left), step: number };
        writers.spawn(writer.run());
    }
    writers
}

/// Commits one event each time this much has passed, over so many aggregates, until it is aborted. It goes on through
/// outages of the database.
pub(crate) fn trickle(url: &str, gap: Duration, aggregates: u64) -> JoinSet<()> {
    let (url, mut trickle) = (url.to_owned(), JoinSet::new());
    trickle.spawn(async move {
        // What was late is made up for: so many a second on average.
        let mut ticks = interval(gap);
        loop {
            ticks.tick().await;
            let Ok(mut conn) = PgConnection::connect(&url).await else { continue };
            loop {
                ticks.tick().await;
                let name = format!("trickled-{}", fastrand::u64(0..aggregates));
                let written = async {
                    let mut tx = conn.begin().await?;
                    write(&mut tx, &name).await?;
                    tx.commit().await.map_err(EnqueueError::from)
                };
                if written.await.is_err() {
                    break; // Whether it was committed, the ledger tells.
                }
            }
        }
    });
    trickle
}

/// Writes one event of an aggregate into the caller's transaction, which must not be one of the writers'.
pub(crate) async fn write(tx: &mut PgConnection, aggregate: &str) -> Result<(), EnqueueError> {
    events(tx, &Outbox::default(), aggregate, 1).await.map(|_| ())
}

/// Waits until all writers are done.
pub(crate) async fn finish(mut writers: JoinSet<()>) {
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
}

struct Writer {
    url: String,
    load: Load,
    left: Arc<AtomicUsize>,
    step: usize,
}

impl Writer {
    async fn run(mut self) {
        let outbox = Outbox::default();
        let mut retry = interval(Duration::from_millis(20));
        while self.left.load(Relaxed) > 0 {
            let Ok(mut conn) = PgConnection::connect(&self.url).await else {
                retry.tick().await;
                continue;
            };
            while self.left.load(Relaxed) > 0 {
                if self.transaction(&mut conn, &outbox).await.is_err() {
                    break; // Whether it was committed, the ledger tells.
                }
            }
        }
    }

    /// Locks the aggregate, writes its events, waits, commits; one in twenty is rolled back.
    async fn transaction(&mut self, conn: &mut PgConnection, outbox: &Outbox) -> Result<(), EnqueueError> {
        // Every writer takes another way through aggregates and pauses; no two runs interleave alike anyhow.
        self.step = self.step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = self.step >> 33;
        let name = format!("written-{}", random % self.load.aggregates);
        let pause =
            self.load.pause_ms.start + (random as u64 / 64) % (self.load.pause_ms.end - self.load.pause_ms.start);
        let mut tx = conn.begin().await?;
        let done = events(&mut tx, outbox, &name, self.load.batch).await?;
        if pause > 0 {
            // Between insert and commit: the time in which a place in the order is taken and not visible yet.
            sleep_until(Instant::now() + Duration::from_millis(pause)).await;
        }
        if random.is_multiple_of(20) {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
            // An error would mean that the closure gave nothing.
            let _ = self.left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(done)));
        }
        Ok(())
    }
}

/// Locks the aggregate and writes its next events, in the caller's transaction. Tells how many.
async fn events(tx: &mut PgConnection, outbox: &Outbox, name: &str, batch: i64) -> Result<usize, EnqueueError> {
    let sql = "INSERT INTO aggregates VALUES ($1, $2)
               ON CONFLICT (name) DO UPDATE SET version = aggregates.version + $2 RETURNING version";
    let last: i64 = sqlx::query_scalar(sql).bind(name).bind(batch).fetch_one(&mut *tx).await?;
    let versions = last - batch + 1..=last;
    let (ids, versions): (Vec<_>, Vec<_>) = versions.map(|version| (Uuid::now_v7(), version)).unzip();
    let sql = "INSERT INTO ledger SELECT event_id, $2, version FROM unnest($1::uuid[], $3::bigint[]) AS u (event_id, version)";
    sqlx::query(sql).bind(&ids).bind(name).bind(&versions).execute(&mut *tx).await?;
    let events: Vec<NewEvent> = ids.iter().zip(&versions).map(|(id, version)| event(*id, name, *version)).collect();
    outbox.enqueue_many(tx, &events).await?;
    Ok(events.len())
}

/// An event of an order with a known id.
pub(crate) fn event(id: Uuid, aggregate: &str, version: i64) -> NewEvent {
    let payload = Payload::raw_json(format!("{{\"version\":{version}}}"));
    NewEvent::new("order", aggregate, "order.changed", payload).with_event_id(EventId::from_uuid(id))
}
