//! A destination that is not there yet costs nothing: it pauses, and goes on soon after it was made (field report B46).

use std::time::Duration;

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::destination::{Destination, KafkaTopic, NatsStream, RabbitMqQueue, SqsKind, SqsQueue, WebhookEndpoint};
use crate::load;
use crate::relay::RelayConfig;

/// The promise: `probe_max` and a margin.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_exchange_and_queue() {
    if let Some(queue) = RabbitMqQueue::shared().await {
        pauses_until_it_is_made(queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_stream() {
    if let Some(stream) = NatsStream::shared().await {
        pauses_until_it_is_made(stream).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_stream_with_an_ordinary_subscriber_in_its_place() {
    if let Some(stream) = NatsStream::shared().await {
        pauses_until_it_is_made(stream.overheard().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_topic() {
    if let Some(topic) = KafkaTopic::shared() {
        pauses_until_it_is_made(topic).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqs_queue() {
    for kind in [SqsKind::Standard, SqsKind::Fifo] {
        if let Some(queue) = SqsQueue::shared(kind) {
            pauses_until_it_is_made(queue.not_made_yet().await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_path() {
    pauses_until_it_is_made(WebhookEndpoint::own().await).await;
}

async fn pauses_until_it_is_made(mut destination: impl Destination) {
    let Some(db) = Database::shared(&format!("missing_{}", destination.kind())).await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        load::prepare(&db).await;
        load::fill(&db, 500, 20).await;
        let relay = destination.lead(config).start().await;
        until(seconds(30), "the relay tells what is missing", || async {
            relay.reason().await.contains(destination.name_when_missing())
        })
        .await;
        // Several probes later nothing has changed.
        let pauses = async { until(seconds(60), "it is over", || async { relay.reason().await.is_empty() }).await };
        assert!(tokio::time::timeout(SOON, pauses).await.is_err(), "ready without a destination");
        assert_eq!((db.count("events").await, db.count("retries").await, db.count("dead_letters").await), (500, 0, 0));
        assert!(relay.logged("") < 40, "{:?}", relay.log());

        destination.make().await;
        until(SOON, "the first event is delivered", || async { db.count("events").await < 500 }).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        until(seconds(5), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(destination.arrived().await);
        assert_eq!((verdict.lost, verdict.invented, verdict.duplicates), (0, 0, 0), "{verdict}");
        assert!(verdict.order_violations == 0 || !destination.promises_order(), "{verdict}");
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
    })
    .await;
}
