//! Two relays, and how one ends.

use std::time::{Duration, Instant};

use outbox_testkit::proxy::{FaultProxy, Mode};

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Queue, broker};
use crate::relay::{PATIENCE, Relay, RelayConfig};

const WINDOW: usize = 200;

/// The lease of [`RelayConfig`].
const LEASE: Duration = Duration::from_secs(3);

/// Both are ready and own one half each.
async fn wait_shared(one: &Relay, other: &Relay) {
    until(seconds(20), "the relays share the route", || async {
        (one.buckets().await, other.buckets().await) == (32, 32)
    })
    .await;
    other.wait_owner(seconds(20)).await;
}

/// Owns all.
async fn wait_alone(relay: &Relay, limit: Duration) {
    until(limit, "the relay owns the route alone", || async { relay.buckets().await == 64 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_relay_takes_over_after_a_stop_and_after_a_kill() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("standby").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(150), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let config = config.with_rabbitmq(&url, &queue.name).with("relay.window", &WINDOW.to_string());
        load::prepare(&db).await;
        let first = config.start().await;
        first.wait_owner(seconds(20)).await;
        let second = config.start().await;
        wait_shared(&first, &second).await;
        // Light: how soon a relay takes over is the question, not how soon a busy machine lets it.
        let load = Load { writers: 3, ..Load::ordinary(3_000) };
        let writers = load::spawn(&db.url(), &load);
        consumer.wait_for(500, seconds(30)).await;

        assert_eq!(first.stop().await, Some(0));
        let stopped = Instant::now();
        wait_alone(&second, seconds(2)).await;
        println!("taken over {:?} after a stop", stopped.elapsed());
        let history = load::history(&db).await;
        assert_eq!(history.judge(consumer.events()).duplicates, 0, "a stop makes no copies");

        let third = config.start().await;
        wait_shared(&second, &third).await;
        consumer.wait_for(consumer.count() + 500, seconds(30)).await;
        second.kill9().await;
        let killed = Instant::now();
        wait_alone(&third, LEASE + seconds(3)).await;
        println!("taken over {:?} after a kill", killed.elapsed());

        load::finish(writers).await;
        until(seconds(30), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(third.stop().await, Some(0));
        let history = load::history(&db).await;
        until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        let verdict = history.judge(consumer.events());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates <= WINDOW, "{verdict}");
        assert_eq!(db.number("SELECT count(owner) FROM outbox.buckets").await, 0);
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
    })
    .await;
}

/// What is on its way to the broker is waited for and settled: no copy, no loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_what_is_in_flight() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("stop").await else { return };
    within(seconds(60), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let (_, rest) = url.split_once('@').unwrap();
        let proxy = FaultProxy::start(rest.split('/').next().unwrap()).await.unwrap();
        let Some(config) = RelayConfig::new(&db.url()) else { return };
        let config = config.with_rabbitmq(&proxy.url_for(&url), &queue.name).with("relay.window", &WINDOW.to_string());
        let relay = config.start().await;
        relay.wait_owner(seconds(20)).await;
        proxy.set_mode(Mode::Latency(Duration::from_millis(400)));
        load::prepare(&db).await;
        load::fill(&db, 2_000, 2_000).await;
        consumer.wait_for(1, seconds(20)).await;
        assert_eq!(relay.stop().await, Some(0));
        let left = usize::try_from(db.count("events").await).unwrap();
        assert!(left > 0, "the stop came too late");
        // Everything that was sent was settled: sent and left make all.
        until(seconds(10), "what was sent is consumed", || std::future::ready(consumer.count() >= 2_000 - left)).await;
        assert_eq!(consumer.count() + left, 2_000);
        proxy.set_mode(Mode::Pass);
        let relay = config.start().await;
        consumer.wait_for(2_000, seconds(20)).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(consumer.events());
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait_for_a_silent_broker() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("second_signal").await else { return };
    within(seconds(60), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let (_, rest) = url.split_once('@').unwrap();
        let proxy = FaultProxy::start(rest.split('/').next().unwrap()).await.unwrap();
        let Some(config) = RelayConfig::new(&db.url()) else { return };
        let config = config.with_rabbitmq(&proxy.url_for(&url), &queue.name);
        let mut relay = config.start().await;
        relay.wait_owner(seconds(20)).await;
        load::prepare(&db).await;
        // With the first ones the channels are opened.
        load::fill(&db, 100, 100).await;
        consumer.wait_for(100, seconds(20)).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        proxy.set_mode(Mode::CutReplies);
        load::fill(&db, 100, 100).await;
        consumer.wait_for(101, seconds(20)).await;
        relay.signal("TERM");
        until(PATIENCE, "it waits for the broker", || std::future::ready(relay.logged("asked to stop") == 1)).await;
        assert!(relay.is_alive());
        relay.signal("TERM");
        let second = Instant::now();
        assert_eq!(relay.exit_code().await, Some(1));
        assert!(second.elapsed() < seconds(2), "{:?}", second.elapsed());
        assert!(db.count("events").await > 0, "unconfirmed is not published");
    })
    .await;
}
