//! Events whose transactions commit after their successors were delivered, on a server that is silent otherwise: there
//! nothing but the proof finds them. The full sweep is set to an hour.

use std::time::{Duration, Instant};

use outbox_core::EventId;
use outbox_pg::Outbox;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::database::{Database, run};
use crate::deadline::{seconds, until, within};
use crate::embedded::{Embedded, config};
use crate::load::event;
use crate::recorder::Recorder;

/// How soon after its commit a late event must be there.
const SOON: Duration = Duration::from_secs(1);

struct Scene {
    db: Database,
    recorder: std::sync::Arc<Recorder>,
    relay: Embedded,
    outbox: Outbox,
}

impl Scene {
    async fn set() -> Option<Self> {
        let db = Database::own().await?;
        let recorder = Recorder::new();
        let relay = Embedded::start(&db.url(), config(), &recorder).await;
        Some(Self { db, recorder, relay, outbox: Outbox::default() })
    }

    async fn enqueue(&self, conn: &mut PgConnection, aggregate: &str) -> EventId {
        self.outbox.enqueue(conn, &event(Uuid::now_v7(), aggregate, 1)).await.unwrap()
    }

    /// A committed event of somebody else, delivered.
    async fn successor(&self) -> EventId {
        let committed = self.enqueue(&mut self.db.connect().await, "other").await;
        self.recorder.wait_for(committed, seconds(10)).await;
        committed
    }

    async fn arrives_soon(&self, event: EventId, committed: Instant) {
        let at = self.recorder.wait_for(event, seconds(10)).await;
        let took = at.saturating_duration_since(committed);
        println!("delivered {took:?} after its commit");
        assert!(took < SOON, "{took:?}");
    }

    /// Ends the scene: nothing was delivered twice, nothing is left, and no sweep was needed.
    async fn end(self, events: usize, late: u64) {
        let db = &self.db;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!((self.recorder.arrivals().len(), self.recorder.distinct()), (events, events));
        assert_eq!(self.relay.late_by_full_sweep(), 0);
        assert_eq!(self.relay.late_by_look_back(), late);
        self.relay.stop().await;
    }
}

/// Id n commits after n + 1 was delivered, `open` later.
async fn committed_late(open: Duration) {
    let Some(scene) = Scene::set().await else { return };
    let mut conn = scene.db.connect().await;
    let mut tx = conn.begin().await.unwrap();
    let late = scene.enqueue(&mut tx, "late").await;
    scene.successor().await;
    scene.recorder.stays_away(late, open).await;
    tx.commit().await.unwrap();
    scene.arrives_soon(late, Instant::now()).await;
    scene.end(2, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_commits_right_after_its_successor_was_delivered() {
    within(seconds(60), committed_late(Duration::from_millis(20))).await;
}

/// Long enough to be kept aside.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_commits_three_seconds_after_its_successor_was_delivered() {
    within(seconds(60), committed_late(seconds(3))).await;
}

/// Many more are written and delivered while the late one is kept aside: `low` goes far beyond it meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_commits_after_thousands_of_successors() {
    within(seconds(60), async {
        let Some(scene) = Scene::set().await else { return };
        let mut conn = scene.db.connect().await;
        let mut tx = conn.begin().await.unwrap();
        let late = scene.enqueue(&mut tx, "late").await;
        scene.recorder.stays_away(late, seconds(3)).await;
        let mut other = scene.db.connect().await;
        for _ in 0..30 {
            let events: Vec<_> = (0..100).map(|number| event(Uuid::now_v7(), &format!("a{number}"), 1)).collect();
            let ids = scene.outbox.enqueue_many(&mut other, &events).await.unwrap();
            scene.recorder.wait_for(ids[99], seconds(10)).await;
        }
        tx.commit().await.unwrap();
        scene.arrives_soon(late, Instant::now()).await;
        scene.end(3001, 1).await;
    })
    .await;
}

/// The id is taken, and then the INSERT itself pauses for five seconds: it holds no row yet that anybody could see.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_pauses_in_a_before_insert_trigger() {
    const TRIGGER: &str = "
        CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF NEW.aggregate_id = 'late' THEN PERFORM pg_advisory_xact_lock(1); END IF;
          RETURN NEW;
        END $$;
        CREATE TRIGGER pause BEFORE INSERT ON outbox.events FOR EACH ROW EXECUTE FUNCTION pause();";
    within(seconds(60), async {
        let Some(scene) = Scene::set().await else { return };
        run(&mut scene.db.connect().await, TRIGGER).await;
        let mut gate = scene.db.connect().await;
        run(&mut gate, "SELECT pg_advisory_lock(1)").await;
        let (mut conn, outbox, id) = (scene.db.connect().await, Outbox::default(), Uuid::now_v7());
        let inserting = tokio::spawn(async move {
            let inserted = outbox.enqueue(&mut conn, &event(id, "late", 1)).await.unwrap();
            (inserted, Instant::now())
        });
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        until(seconds(10), "the producer pauses", || async { scene.db.number(waiting).await == 1 }).await;
        scene.successor().await;
        scene.recorder.stays_away(EventId::from_uuid(id), seconds(5)).await;
        assert!(!inserting.is_finished());
        run(&mut gate, "SELECT pg_advisory_unlock(1)").await;
        let (late, committed) = inserting.await.unwrap();
        scene.arrives_soon(late, committed).await;
        scene.end(2, 1).await;
    })
    .await;
}

/// T2 writes its business row, T1 writes its row and its event, T2 writes its event and commits, T1 commits `open`
/// later: T1 has the later transaction id and the earlier event id.
async fn overtaken_by_an_older_transaction(open: Duration) {
    let Some(scene) = Scene::set().await else { return };
    run(&mut scene.db.connect().await, "CREATE TABLE business (row integer)").await;
    let (mut one, mut two) = (scene.db.connect().await, scene.db.connect().await);
    let (mut t1, mut t2) = (one.begin().await.unwrap(), two.begin().await.unwrap());
    run(&mut t2, "INSERT INTO business VALUES (2)").await;
    run(&mut t1, "INSERT INTO business VALUES (1)").await;
    let late = scene.enqueue(&mut t1, "late").await;
    let early = scene.enqueue(&mut t2, "early").await;
    t2.commit().await.unwrap();
    scene.recorder.wait_for(early, seconds(10)).await;
    scene.recorder.stays_away(late, open).await;
    t1.commit().await.unwrap();
    scene.arrives_soon(late, Instant::now()).await;
    scene.end(2, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_overtaken_by_an_older_one() {
    within(seconds(60), overtaken_by_an_older_transaction(Duration::from_millis(500))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_overtaken_by_an_older_one_for_ten_seconds() {
    within(seconds(60), overtaken_by_an_older_transaction(seconds(10))).await;
}

/// A savepoint gives the insert a transaction id of its own; a prepared transaction has no session at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_with_savepoints_that_commits_late() {
    within(seconds(60), async {
        let Some(scene) = Scene::set().await else { return };
        let mut conn = scene.db.connect().await;
        run(&mut conn, "BEGIN; SAVEPOINT a").await;
        let late = scene.enqueue(&mut conn, "late").await;
        run(&mut conn, "RELEASE a; PREPARE TRANSACTION 'late'").await;
        conn.close().await.unwrap();
        scene.successor().await;
        scene.recorder.stays_away(late, seconds(3)).await;
        run(&mut scene.db.connect().await, "COMMIT PREPARED 'late'").await;
        scene.arrives_soon(late, Instant::now()).await;
        scene.end(2, 1).await;
    })
    .await;
}
