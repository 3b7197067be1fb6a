//! kill -9 of the relay, and a relay that was there before its broker.

use std::time::Duration;

use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;
use tokio::task::block_in_place;

use crate::database::Database;
use crate::deadline::{is_full, seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

const WINDOW: usize = 500;

/// Field report B13.
#[tokio::test(flavor = "multi_thread")]
async fn relays_killed_in_the_middle_lose_nothing_and_send_at_most_a_window_twice() {
    let (events, kills) = if is_full() { (60_000, 20) } else { (20_000, 4) };
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("kills").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(280), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let config = config.with_rabbitmq(&url, &queue.name).with("relay.window", &WINDOW.to_string());
        load::prepare(&db).await;
        load::fill(&db, i64::try_from(events - 6_000).unwrap(), 300).await;
        let writers = load::spawn(&db.url(), &Load { pause_ms: 0..6, ..Load::ordinary(6_000) });
        let mut copies = 0;
        for kill in 1..=kills {
            let relay = config.start().await;
            let before = consumer.count();
            // Not at a quiet moment: so many have gone out, and the rest is on its way.
            consumer.wait_for(before + events / (2 * kills), seconds(30)).await;
            assert!(db.count("events").await > 0, "kill {kill} came too late");
            // Those of the kill before: a relay sends what its predecessor left open first.
            let so_far = consumer.copies();
            assert!(so_far - copies <= WINDOW, "{} copies before kill {kill}", so_far - copies);
            copies = so_far;
            relay.kill9().await;
        }
        let relay = config.start().await;
        load::finish(writers).await;
        let history = load::history(&db).await;
        until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(relay.stop().await, Some(0));
        let committed = db.number("SELECT count(*) FROM ledger").await;
        until(seconds(10), "everything was consumed", || async {
            history.judge(consumer.events()).delivered == usize::try_from(committed).unwrap()
        })
        .await;
        let verdict = history.judge(consumer.events());
        assert!(verdict.holds(), "{verdict}");
        assert!(verdict.committed >= events, "{verdict}");
        assert!(verdict.duplicates - copies <= WINDOW, "{copies} before the last kill; {verdict}");
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0), "a kill charges nothing");
        println!("{kills} kills: {verdict}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_broker_that_comes_after_the_relay_is_waited_for() {
    let Some(mut node) = block_in_place(|| require_or_skip("amqp", RabbitMq::start())) else { return };
    let Some(db) = Database::shared("broker_late").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(150), async {
        let mut queue = Queue::declared(&node.url()).await;
        block_in_place(|| node.stop()).unwrap();
        load::prepare(&db).await;
        load::fill(&db, 100, 10).await;
        let relay = config.with_rabbitmq(&node.url(), &queue.name).start().await;
        until(seconds(10), "the relay tells why it is not ready", || async {
            relay.reason().await.starts_with("destination: ") && !relay.reason().await.contains("not checked")
        })
        .await;
        assert_eq!(relay.probe("/livez").await.0, 200);
        block_in_place(|| node.start_again()).unwrap();
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        until(seconds(5), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        queue.connect_again().await;
        let consumer = queue.consume().await;
        consumer.wait_for(100, Duration::from_secs(10)).await;
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(consumer.events());
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
    })
    .await;
}
