//! The database goes away under load: restarted, cut off, silent.

use std::time::Duration;

use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::services::postgres;
use tokio::task::{JoinSet, block_in_place};

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Consumer, Queue, broker};
use crate::relay::{Relay, RelayConfig};

const WINDOW: usize = 500;

/// The most log lines of one outage: the first error, a repetition every 20 s, what ended it.
const MAX_LINES: usize = 40;

/// A relay between a database and a broker, with writers at work.
struct Scene {
    db: Database,
    proxy: FaultProxy,
    relay: Relay,
    _queue: Queue,
    consumer: Consumer,
    writers: JoinSet<()>,
}

impl Scene {
    async fn set(events: usize) -> Option<Self> {
        let url = broker()?;
        let db = Database::own().await?;
        let port = db.url().rsplit_once(':').map(|(_, rest)| rest.split('/').next().unwrap().to_owned()).unwrap();
        let proxy = FaultProxy::start(format!("127.0.0.1:{port}")).await.unwrap();
        let config = RelayConfig::new(&proxy.url_for(&db.url()))?;
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        load::prepare(&db).await;
        load::fill(&db, 2_000, 100).await;
        let relay = config.with_rabbitmq(&url, &queue.name).with("relay.window", &WINDOW.to_string()).start().await;
        relay.wait_owner(seconds(20)).await;
        let writers = load::spawn(&db.url(), &Load { writers: 6, pause_ms: 0..11, ..Load::ordinary(events) });
        Some(Self { db, proxy, relay, _queue: queue, consumer, writers })
    }

    async fn more_arrive(&self, messages: usize) {
        self.consumer.wait_for(self.consumer.count() + messages, seconds(40)).await;
    }

    /// All is delivered, in order; no more copies than the faults explain; nobody was charged.
    async fn end(self, faults: usize) {
        let (db, relay) = (&self.db, self.relay);
        load::finish(self.writers).await;
        let history = load::history(db).await;
        until(seconds(40), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert!(relay.is_alive());
        until(seconds(10), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        let lines = relay.logged("");
        assert!(lines < faults * MAX_LINES, "{lines} lines: {:?}", relay.log());
        assert_eq!(relay.stop().await, Some(0));
        let consumer = &self.consumer;
        until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        let verdict = history.judge(consumer.events());
        println!("{faults} faults: {verdict}; {lines} log lines");
        assert!(verdict.holds(), "{verdict}");
        assert!(verdict.duplicates <= faults * WINDOW, "{verdict}");
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_restarted_under_load() {
    within(seconds(150), async {
        let Some(mut scene) = Scene::set(6_000).await else { return };
        for _ in 0..2 {
            scene.more_arrive(800).await;
            block_in_place(|| scene.db.server().restart(postgres::Mode::Immediate)).unwrap();
        }
        scene.more_arrive(500).await;
        scene.end(2).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_the_database_that_are_cut_again_and_again() {
    const CUTS: usize = 8;
    within(seconds(150), async {
        let Some(scene) = Scene::set(6_000).await else { return };
        for _ in 0..CUTS {
            scene.more_arrive(500).await;
            let before = scene.proxy.accepted();
            scene.proxy.cut();
            scene.proxy.wait_accepted(before + 1).await;
        }
        scene.end(CUTS).await;
    })
    .await;
}

/// No reset, no answer: only the deadlines of the calls end this.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_falls_silent() {
    within(seconds(200), async {
        let Some(scene) = Scene::set(4_000).await else { return };
        scene.more_arrive(500).await;
        scene.proxy.set_mode(Mode::Blackhole);
        until(seconds(45), "the relay tells why it is not ready", || async {
            scene.relay.reason().await.starts_with("database: ")
        })
        .await;
        assert_eq!(scene.relay.probe("/livez").await.0, 200);
        scene.proxy.set_mode(Mode::Pass);
        let passes = tokio::time::Instant::now();
        scene.more_arrive(1).await;
        println!("delivery went on {:?} after the silence", passes.elapsed());
        assert!(passes.elapsed() < Duration::from_secs(20));
        scene.end(1).await;
    })
    .await;
}

/// The relay is there before its database.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_comes_after_the_relay() {
    let Some(url) = broker() else { return };
    let Some(mut db) = Database::own().await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        load::prepare(&db).await;
        load::fill(&db, 100, 10).await;
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        block_in_place(|| db.server().stop(postgres::Mode::Fast)).unwrap();
        let relay = config.with_rabbitmq(&url, &queue.name).start().await;
        until(seconds(20), "the relay tells why it is not ready", || async {
            relay.reason().await.starts_with("database: ")
        })
        .await;
        block_in_place(|| db.server().start_again()).unwrap();
        consumer.wait_for(100, seconds(10)).await;
        assert_eq!(relay.stop().await, Some(0));
        assert!(load::history(&db).await.judge(consumer.events()).holds());
    })
    .await;
}
