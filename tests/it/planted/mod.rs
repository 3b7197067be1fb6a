//! Defects planted on purpose: in each scene the history checker must tell them, and find nothing wrong without them.
//!
//! Scenes run on silent servers, since others' work hides the worst holes. What can't be planted from outside is left
//! out of the models instead: bounds from snapshots, forgetting at the settle (`outbox-pg/src/memory_tests.rs`), notifying
//! before the unlock (`outbox-pg/src/doorbell/bell_tests.rs`).

mod store;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher, Receipt, Store};
use outbox_relay::{Route, RouteConfig, RouteHealth};
use outbox_testkit::history::Verdict;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::store::{Bug, Gate, Planted};
use crate::database::{Database, run};
use crate::deadline::{pass, seconds, until, within};
use crate::embedded::config;
use crate::load;
use crate::recorder::Recorder;

/// A defect is seen by what does not come: so long it is waited for.
const WATCHED: Duration = Duration::from_secs(2);

/// A relay in this process that can be dropped as a crash drops it.
struct Running {
    health: RouteHealth,
    task: JoinHandle<()>,
}

impl Running {
    fn start(config: RouteConfig, store: Arc<dyn Store>, publisher: Arc<dyn Publisher>) -> Self {
        let route = Route::new(config, store, publisher).unwrap();
        let health = route.health();
        let task = tokio::spawn(async move { route.run(CancellationToken::new()).await.unwrap() });
        Self { health, task }
    }

    async fn owns(&self) {
        until(seconds(30), "the relay owns its share", || async { self.health.status().owner }).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A destination with a gate: nothing is answered while it is closed.
#[derive(Debug)]
struct Gated {
    recorder: Arc<Recorder>,
    gate: Gate,
    /// Answers as soon as it has taken the events, and sends them when the gate opens.
    hasty: bool,
    /// The kind of failure of the first so many calls.
    fails: Option<(ErrorKind, AtomicUsize)>,
    capabilities: Capabilities,
}

impl Gated {
    fn new(recorder: &Arc<Recorder>) -> Self {
        let (recorder, gate, capabilities) = (Arc::clone(recorder), Gate::open(), Capabilities::CAUTIOUS);
        Self { recorder, gate, hasty: false, fails: None, capabilities }
    }
}

#[async_trait]
impl Publisher for Gated {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed("gated")
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        if self.hasty {
            let (recorder, gate, events) = (Arc::clone(&self.recorder), self.gate.clone(), events.to_vec());
            let taken = events.len();
            tokio::spawn(async move {
                gate.pass().await;
                recorder.publish(&events).await
            });
            let mut report = PublishReport::unfilled(taken);
            (0..taken).for_each(|index| report.set(index, Ok(Receipt::confirmed())));
            return report;
        }
        self.gate.pass().await;
        let failing = self
            .fails
            .as_ref()
            .filter(|(_, left)| left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok());
        let Some((kind, _)) = failing else { return self.recorder.publish(events).await };
        // The first one fails, the others pass.
        let passed = self.recorder.publish(&events[1..]).await;
        let mut report = PublishReport::unfilled(events.len());
        report.set(0, Err(PublishError::new(*kind, "planted")));
        for (index, outcome) in passed.into_outcomes(events.len() - 1).into_iter().enumerate() {
            report.set(index + 1, outcome);
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

async fn scene() -> Option<(Database, Arc<Recorder>)> {
    let db = Database::own().await?;
    load::prepare(&db).await;
    Some((db, Recorder::new()))
}

/// Waits until one live relay owns every bucket, and this one is it.
async fn owns_all(relay: &Running, db: &Database) {
    relay.owns().await;
    let all = "SELECT count(*) FROM (SELECT FROM outbox.buckets AS b JOIN outbox.relays AS r ON r.id = b.owner
                GROUP BY b.owner HAVING count(*) = 64 AND (SELECT count(*) FROM outbox.relays) = 1) AS owners";
    until(seconds(30), "one relay has all", || async { db.number(all).await == 1 }).await;
}

async fn commit(conn: &mut PgConnection, aggregate: &str) {
    let mut tx = conn.begin().await.unwrap();
    load::write(&mut tx, aggregate).await.unwrap();
    tx.commit().await.unwrap();
}

/// What the checker says when all that comes has come.
async fn verdict(db: &Database, recorder: &Recorder) -> Verdict {
    pass(WATCHED).await;
    let verdict = load::history(db).await.judge(recorder.arrivals());
    println!("{verdict}");
    verdict
}

/// An open transaction holds the first event of an aggregate; another aggregate's event passes it; then it commits, and
/// with it the next event of its aggregate, both between two reads.
async fn late_commit(bug: Bug) -> Option<Verdict> {
    let (db, recorder) = scene().await?;
    let store = Planted::new(&db.url(), bug);
    let relay = Running::start(config(), Arc::<Planted>::clone(&store), Arc::<Recorder>::clone(&recorder));
    relay.owns().await;
    let (mut first, mut second) = (db.connect().await, db.connect().await);
    let mut late = first.begin().await.unwrap();
    load::write(&mut late, "late").await.unwrap();
    commit(&mut db.connect().await, "other").await;
    recorder.wait_distinct(1, seconds(10)).await;
    store.reads.set_open(false);
    late.commit().await.unwrap();
    commit(&mut second, "late").await;
    store.reads.set_open(true);
    Some(verdict(&db, &recorder).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_leave_out_the_look_back_or_part_it() {
    within(seconds(90), async {
        let Some(sound) = late_commit(Bug::None).await else { return };
        assert!(sound.holds() && sound.committed == 3, "{sound}");
        assert_eq!(late_commit(Bug::NoLookBack).await.unwrap().lost, 1);
        assert_eq!(late_commit(Bug::LookBackByTimer).await.unwrap().order_violations, 1);
        assert_eq!(late_commit(Bug::OtherSnapshot).await.unwrap().order_violations, 1);
    })
    .await;
}

/// The destination has taken events and not sent them when the relay dies.
async fn death_before_the_answer(hasty: bool) -> Option<Verdict> {
    let (db, recorder) = scene().await?;
    let mut dying = Gated::new(&recorder);
    dying.hasty = hasty;
    dying.gate.set_open(false);
    let relay = Running::start(config(), Planted::new(&db.url(), Bug::None), Arc::new(dying));
    relay.owns().await;
    for number in 0..5 {
        commit(&mut db.connect().await, &format!("a{number}")).await;
    }
    if hasty {
        until(seconds(10), "all is settled", || async { db.count("events").await == 0 }).await;
    } else {
        until(seconds(10), "all is at the publisher", || async { relay.health.gauges().in_flight.load(Relaxed) == 5 })
            .await;
    }
    drop(relay);
    let next = Running::start(config(), Planted::new(&db.url(), Bug::None), Arc::<Recorder>::clone(&recorder));
    owns_all(&next, &db).await;
    Some(verdict(&db, &recorder).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_answers_before_its_broker() {
    within(seconds(120), async {
        let Some(sound) = death_before_the_answer(false).await else { return };
        assert!(sound.holds() && sound.committed == 5, "{sound}");
        assert_eq!(death_before_the_answer(true).await.unwrap().lost, 5);
    })
    .await;
}

/// Two relays share the route; one holds its events back until it dies, while the other passes them.
async fn death_of_a_neighbour(bug: Bug) -> Option<Verdict> {
    let (db, recorder) = scene().await?;
    let mut config = config();
    config.lease = RouteConfig::MIN_LEASE;
    let survivor = Running::start(config.clone(), Planted::new(&db.url(), bug), Arc::<Recorder>::clone(&recorder));
    survivor.owns().await;
    let silent = Gated::new(&recorder);
    silent.gate.set_open(false);
    let dying = Running::start(config, Planted::new(&db.url(), Bug::None), Arc::new(silent));
    dying.owns().await;
    let halves = "SELECT count(*) FROM (SELECT FROM outbox.buckets GROUP BY owner HAVING count(*) = 32) AS owners";
    until(seconds(30), "each has a half", || async { db.number(halves).await == 2 }).await;
    for number in 0..40 {
        commit(&mut db.connect().await, &format!("a{number}")).await;
    }
    until(seconds(20), "the survivor has delivered its own", || async {
        let held = dying.health.gauges().in_flight.load(Relaxed);
        held > 0 && recorder.distinct() as u64 + held == 40
    })
    .await;
    drop(dying);
    owns_all(&survivor, &db).await;
    Some(verdict(&db, &recorder).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_without_catching_up() {
    within(seconds(180), async {
        let Some(sound) = death_of_a_neighbour(Bug::None).await else { return };
        assert!(sound.holds() && sound.committed == 40, "{sound}");
        assert!(death_of_a_neighbour(Bug::NoCatchUp).await.unwrap().lost > 0);
    })
    .await;
}

/// A relay gives an event up and freezes before it has written that; another one takes over and is about to send it.
async fn late_write_back(bug: Bug) -> Option<Verdict> {
    let (db, recorder) = scene().await?;
    let mut config = config();
    config.lease = RouteConfig::MIN_LEASE;
    let frozen = Planted::new(&db.url(), bug);
    let mut rejecting = Gated::new(&recorder);
    rejecting.fails = Some((ErrorKind::Rejected, AtomicUsize::new(1)));
    let rejecting = Arc::new(rejecting);
    let first = Running::start(config.clone(), Arc::<Planted>::clone(&frozen), Arc::<Gated>::clone(&rejecting));
    first.owns().await;
    frozen.write_backs.set_open(false);
    commit(&mut db.connect().await, "a").await;
    let left = || rejecting.fails.as_ref().map_or(0, |(_, left)| left.load(Relaxed));
    until(seconds(10), "it was rejected", || async { left() == 0 }).await;
    frozen.renewals.set_open(false);
    let second = Gated::new(&recorder);
    second.gate.set_open(false);
    let gate = second.gate.clone();
    let second = Running::start(config, Planted::new(&db.url(), Bug::None), Arc::new(second));
    until(seconds(30), "the second is about to send it", || async {
        second.health.gauges().in_flight.load(Relaxed) == 1
    })
    .await;
    frozen.write_backs.set_open(true);
    pass(WATCHED).await;
    // Its own process dies before the broker has the event.
    drop(second);
    gate.set_open(false);
    drop(first);
    let third = Running::start(
        crate::embedded::config(),
        Planted::new(&db.url(), Bug::None),
        Arc::<Recorder>::clone(&recorder),
    );
    owns_all(&third, &db).await;
    Some(verdict(&db, &recorder).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_back_without_a_fence() {
    within(seconds(180), async {
        let Some(sound) = late_write_back(Bug::None).await else { return };
        assert!(sound.holds() && sound.committed == 1, "{sound}");
        assert_eq!(late_write_back(Bug::NoFencing).await.unwrap().lost, 1);
    })
    .await;
}

/// Ids begin anew while a confirmed event is about to be deleted.
async fn ids_that_return(bug: Bug) -> Option<Verdict> {
    let (db, recorder) = scene().await?;
    let store = Planted::new(&db.url(), bug);
    let relay = Running::start(config(), Arc::<Planted>::clone(&store), Arc::<Recorder>::clone(&recorder));
    relay.owns().await;
    store.settles.set_open(false);
    commit(&mut db.connect().await, "a").await;
    recorder.wait_distinct(1, seconds(10)).await;
    store.reads.set_open(false);
    let mut conn = db.connect().await;
    run(&mut conn, "TRUNCATE outbox.events RESTART IDENTITY").await;
    commit(&mut conn, "b").await;
    store.settles.set_open(true);
    pass(WATCHED).await;
    store.reads.set_open(true);
    Some(verdict(&db, &recorder).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_by_id_alone() {
    within(seconds(90), async {
        let Some(sound) = ids_that_return(Bug::None).await else { return };
        assert!(sound.holds() && sound.committed == 2, "{sound}");
        assert_eq!(ids_that_return(Bug::SettlesById).await.unwrap().lost, 1);
    })
    .await;
}

/// The first of two events of an aggregate fails, and the second was sent with it.
async fn failed_head(keeps_order_in_batch: bool) -> Option<Verdict> {
    let (db, recorder) = scene().await?;
    let store = Planted::new(&db.url(), Bug::None);
    store.reads.set_open(false);
    let mut failing = Gated::new(&recorder);
    failing.fails = Some((ErrorKind::Failed, AtomicUsize::new(1)));
    failing.capabilities.keeps_order_in_batch = keeps_order_in_batch;
    let relay = Running::start(config(), Arc::<Planted>::clone(&store), Arc::new(failing));
    relay.owns().await;
    commit(&mut db.connect().await, "a").await;
    commit(&mut db.connect().await, "a").await;
    store.reads.set_open(true);
    recorder.wait_distinct(2, seconds(20)).await;
    Some(verdict(&db, &recorder).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_is_overtaken() {
    within(seconds(90), async {
        let Some(sound) = failed_head(false).await else { return };
        assert!(sound.holds() && sound.committed == 2, "{sound}");
        assert_eq!(failed_head(true).await.unwrap().order_violations, 1);
    })
    .await;
}
