//! SIGTERM while things are in the way: exit code and time, and what the next relay finds. Field report B81.

use std::time::Duration;

use outbox_testkit::proxy::{FaultProxy, Mode};
use tokio::time::Instant;

use crate::database::{Database, authority};
use crate::deadline::{seconds, until, within};
use crate::load;
use crate::queue::{Consumer, Queue, broker};
use crate::relay::{Relay, RelayConfig};

/// Also the events that are unconfirmed when the signal comes.
const WINDOW: usize = 200;
const EVENTS: i64 = 1_000;
const GRACE: Duration = Duration::from_secs(3);
/// Goodbyes to database and broker after the grace, and a busy machine.
const GOODBYES: Duration = Duration::from_secs(14);

struct Scene {
    db: Database,
    to_database: FaultProxy,
    to_broker: FaultProxy,
    config: RelayConfig,
    consumer: Consumer,
    _queue: Queue,
}

impl Scene {
    async fn set(name: &str) -> Option<Self> {
        let url = broker()?;
        let db = Database::shared(name).await?;
        let to_database = FaultProxy::start(db.authority()).await.unwrap();
        let to_broker = FaultProxy::start(authority(&url)).await.unwrap();
        let queue = Queue::declared(&url).await;
        let config = RelayConfig::new(&to_database.url_for(&db.url()))?;
        let config = config.with_rabbitmq(&to_broker.url_for(&url), &queue.name);
        let config = config.with("relay.window", &WINDOW.to_string()).with("relay.shutdown_grace", "3s");
        let consumer = queue.consume().await;
        load::prepare(&db).await;
        Some(Self { db, to_database, to_broker, config, consumer, _queue: queue })
    }

    /// A relay that has its connections and channels: a first event has passed.
    async fn relay(&self) -> Relay {
        let relay = self.config.start().await;
        relay.wait_owner(seconds(20)).await;
        load::fill(&self.db, 1, 1).await;
        self.consumer.wait_for(1, seconds(20)).await;
        until(seconds(10), "it is settled", || async { self.db.count("events").await == 0 }).await;
        relay
    }

    /// Asks a relay to stop; tells its exit code and how long it took.
    async fn stop(&self, mut relay: Relay, what: &str) -> (Option<i32>, Duration) {
        let asked = Instant::now();
        relay.signal("TERM");
        let code = relay.exit_code().await;
        println!("{what}: exit code {code:?} after {:?}", asked.elapsed());
        (code, asked.elapsed())
    }

    /// Faults are over: the next relay delivers what is left, with at most a window of copies. Tells how many.
    async fn rest_is_delivered(&self) -> usize {
        for proxy in [&self.to_database, &self.to_broker] {
            proxy.cut();
            proxy.apply(Mode::Pass).await;
        }
        let relay = self.config.start().await;
        until(seconds(40), "the outbox is empty", || async { self.db.count("events").await == 0 }).await;
        assert_eq!(relay.stop().await, Some(0));
        let history = load::history(&self.db).await;
        until(seconds(10), "everything was consumed", || async { history.judge(self.consumer.events()).lost == 0 })
            .await;
        let verdict = history.judge(self.consumer.events());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates <= WINDOW, "{verdict}");
        assert_eq!((self.db.count("retries").await, self.db.count("dead_letters").await), (0, 0));
        verdict.duplicates
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_broker_is_waited_for() {
    within(seconds(120), async {
        let Some(scene) = Scene::set("stop_slow").await else { return };
        // One channel, which is open when the broker becomes slow: opening more would take longer than it may.
        let config = scene.config.with("relay.shutdown_grace", "20s").with("route.0.rabbitmq.channels", "1");
        let scene = Scene { config, ..scene };
        let relay = scene.relay().await;
        scene.to_broker.set_mode(Mode::Latency(Duration::from_secs(1)));
        load::fill(&scene.db, EVENTS, EVENTS).await;
        // The window is full, and no answer has come: nothing is settled.
        scene.consumer.wait_for(2, seconds(20)).await;
        assert_eq!(scene.db.count("events").await, EVENTS);
        let (code, took) = scene.stop(relay, "a slow broker").await;
        assert_eq!(code, Some(0));
        assert!(took < seconds(20), "{took:?}");
        let left = usize::try_from(scene.db.count("events").await).unwrap();
        let events = usize::try_from(EVENTS).unwrap();
        // The one of before is among those that have come.
        assert_eq!(scene.consumer.count() + left, events + 1, "what was sent is settled, and nothing else");
        assert!(left >= events - 2 * WINDOW, "it went on sending: {left} left");
        assert_eq!(scene.rest_is_delivered().await, 0, "a stop that is waited for makes no copies");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_not_waited_for() {
    within(seconds(120), async {
        let Some(scene) = Scene::set("stop_away").await else { return };
        let relay = scene.relay().await;
        scene.to_broker.apply(Mode::Closed).await;
        load::fill(&scene.db, EVENTS, EVENTS).await;
        until(seconds(30), "it tells why", || async { relay.reason().await.starts_with("destination: ") }).await;
        let (code, took) = scene.stop(relay, "a broker that is away").await;
        assert_eq!(code, Some(0));
        assert!(took < GRACE, "{took:?}");
        assert_eq!(scene.rest_is_delivered().await, 0);
    })
    .await;
}

/// The answers are lost: the grace ends, and what is unconfirmed is left to the next relay.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_silent_is_waited_for_until_the_grace_ends() {
    within(seconds(120), async {
        let Some(scene) = Scene::set("stop_silent").await else { return };
        let relay = scene.relay().await;
        scene.to_broker.set_mode(Mode::CutReplies);
        load::fill(&scene.db, EVENTS, EVENTS).await;
        scene.consumer.wait_for(WINDOW + 1, seconds(20)).await;
        let (code, took) = scene.stop(relay, "a silent broker").await;
        assert_eq!(code, Some(0));
        assert!((GRACE..GRACE + GOODBYES).contains(&took), "{took:?}");
        assert_eq!(scene.db.count("events").await, EVENTS, "unconfirmed is not published");
        assert_eq!(scene.rest_is_delivered().await, WINDOW, "what was unconfirmed comes twice");
    })
    .await;
}

/// Confirmed, and the deletion impossible: the next relay sends it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_waited_for_until_the_grace_ends() {
    within(seconds(150), async {
        for mode in [Mode::Closed, Mode::Blackhole] {
            let Some(scene) = Scene::set("stop_database").await else { return };
            let relay = scene.relay().await;
            // So that answers are on their way when the database goes.
            scene.to_broker.set_mode(Mode::Latency(Duration::from_millis(500)));
            load::fill(&scene.db, EVENTS, EVENTS).await;
            scene.consumer.wait_for(2, seconds(20)).await;
            scene.to_database.apply(mode).await;
            scene.consumer.wait_for(WINDOW + 1, seconds(20)).await;
            let (code, took) = scene.stop(relay, &format!("a database in {mode:?}")).await;
            assert_eq!(code, Some(0));
            assert!((GRACE..GRACE + GOODBYES).contains(&took), "{took:?}");
            scene.rest_is_delivered().await;
        }
    })
    .await;
}

/// Neither has ever answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_connect_ends_soon() {
    within(seconds(150), async {
        for (database, to_broker) in
            [(Mode::Blackhole, Mode::Pass), (Mode::Pass, Mode::Blackhole), (Mode::Blackhole, Mode::Blackhole)]
        {
            let Some(scene) = Scene::set("stop_connect").await else { return };
            load::fill(&scene.db, EVENTS, EVENTS).await;
            scene.to_database.set_mode(database);
            scene.to_broker.set_mode(to_broker);
            let hanging = if database == Mode::Blackhole { &scene.to_database } else { &scene.to_broker };
            let relay = scene.config.start().await;
            hanging.wait_accepted(1).await;
            let (code, took) = scene.stop(relay, &format!("database {database:?}, broker {to_broker:?}")).await;
            assert_eq!(code, Some(0));
            assert!(took < GRACE + GOODBYES, "{took:?}");
            assert_eq!(scene.rest_is_delivered().await, 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait_for_a_silent_database() {
    within(seconds(120), async {
        let Some(scene) = Scene::set("stop_twice").await else { return };
        let scene = Scene { config: scene.config.with("relay.shutdown_grace", "60s"), ..scene };
        let mut relay = scene.relay().await;
        scene.to_broker.set_mode(Mode::Latency(Duration::from_millis(500)));
        load::fill(&scene.db, EVENTS, EVENTS).await;
        scene.consumer.wait_for(2, seconds(20)).await;
        scene.to_database.set_mode(Mode::Blackhole);
        relay.signal("TERM");
        until(seconds(20), "it waits", || std::future::ready(relay.logged("asked to stop") == 1)).await;
        scene.consumer.wait_for(WINDOW + 1, seconds(20)).await;
        assert!(relay.is_alive());
        relay.signal("TERM");
        let second = Instant::now();
        assert_eq!(relay.exit_code().await, Some(1));
        assert!(second.elapsed() < seconds(2), "{:?}", second.elapsed());
        scene.rest_is_delivered().await;
    })
    .await;
}
