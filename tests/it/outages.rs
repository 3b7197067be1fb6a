//! Brokers killed three times while producers write and the relay publishes: nothing is lost, nothing overtakes, and
//! nobody pays for it.

use outbox_testkit::services::nats::Version;

use crate::database::Database;
use crate::deadline::{is_full, seconds, until, within};
use crate::destination::{KafkaTopic, Mortal, NatsStream, RabbitMqQueue, SqsKind, SqsQueue, WebhookEndpoint};
use crate::load::{self, Load};
use crate::relay::RelayConfig;

const KILLS: usize = 3;
const AGGREGATES: usize = 300;
/// The events that may be at the broker at once, and so the copies that one kill may make.
const WINDOW: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn own_broker_rabbitmq() {
    if let Some(queue) = RabbitMqQueue::own().await {
        is_killed_again_and_again(queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_new_server() {
    if let Some(stream) = NatsStream::own(Version::New).await {
        is_killed_again_and_again(stream).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_old_server() {
    if let Some(stream) = NatsStream::own(Version::Old).await {
        is_killed_again_and_again(stream).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka() {
    if let Some(topic) = KafkaTopic::own() {
        is_killed_again_and_again(topic).await;
    }
}

/// Stopped politely, not killed: no emulator of SQS keeps its data through a kill.
#[tokio::test(flavor = "multi_thread")]
async fn sqs_fifo_queue() {
    if let Some(queue) = SqsQueue::own(SqsKind::Fifo) {
        is_killed_again_and_again(queue).await;
    }
}

/// Stopped politely as well. A standard queue promises no order, so none is judged.
#[tokio::test(flavor = "multi_thread")]
async fn sqs_standard_queue() {
    if let Some(queue) = SqsQueue::own(SqsKind::Standard) {
        is_killed_again_and_again(queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook() {
    is_killed_again_and_again(WebhookEndpoint::own().await).await;
}

async fn is_killed_again_and_again(mut destination: impl Mortal) {
    // Twenty thousand with `--full`.
    let part = if is_full() { 5_000 } else { 1_250 };
    let Some(db) = Database::shared(&format!("outage_{}", destination.kind())).await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    // An emulator of SQS takes tens of events a second on a busy machine.
    let patience = seconds(if is_full() { 240 } else { 60 });
    within(patience * 4 + seconds(40), async {
        load::prepare(&db).await;
        destination.make().await;
        let relay = destination.lead(config).with("relay.window", &WINDOW.to_string()).start().await;
        let load = Load { events: part, writers: 8, aggregates: AGGREGATES, batch: 1, pause_ms: 0..4 };
        for kill in 1..=KILLS {
            let before = delivered(&db).await;
            let writers = load::spawn(&db.url(), &load);
            let third = before + i64::try_from(part / 3).unwrap();
            until(patience, "a third of the events is delivered", || async { delivered(&db).await > third }).await;
            destination.go_down().await;
            until(seconds(30), "the relay tells why it is not ready", || async {
                relay.reason().await.starts_with("destination: ")
            })
            .await;
            load::finish(writers).await;
            let left = db.count("events").await;
            assert!(left > 0, "kill {kill} came too late");
            assert_nothing_is_charged(&db).await;
            destination.come_back().await;
            let back = tokio::time::Instant::now();
            until(seconds(30), "delivery goes on", || async { db.count("events").await < left }).await;
            println!("kill {kill}: {left} events waited, delivery went on {:?} after the return", back.elapsed());
        }
        load::finish(load::spawn(&db.url(), &load)).await;
        until(patience, "the outbox is empty", || async { db.count("events").await == 0 }).await;
        until(seconds(10), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        assert_nothing_is_charged(&db).await;
        assert!(relay.is_alive());
        assert!(relay.logged("") < 40 * KILLS, "{:?}", relay.log());
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(destination.arrived().await);
        println!("{}: {verdict}", destination.kind());
        assert!(verdict.committed >= part * (KILLS + 1), "{verdict}");
        assert_eq!((verdict.lost, verdict.invented, verdict.contradictory), (0, 0, 0), "{verdict}");
        assert!(verdict.order_violations == 0 || !destination.promises_order(), "{verdict}");
        assert!(verdict.duplicates <= KILLS * WINDOW, "{verdict}");
    })
    .await;
}

/// Committed and not in the outbox any more.
async fn delivered(db: &Database) -> i64 {
    db.number("SELECT (SELECT count(*) FROM ledger) - (SELECT count(*) FROM outbox.events)").await
}

async fn assert_nothing_is_charged(db: &Database) {
    assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0), "an outage charges nothing");
}
