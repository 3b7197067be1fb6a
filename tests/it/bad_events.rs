//! One bad event in a batch of a hundred, of each kind that a broker knows: it alone becomes a dead letter, with the
//! figures, and the relay goes on.

use outbox_core::{EventId, Headers, NewEvent, Payload};
use outbox_pg::Outbox;
use outbox_testkit::history::History;
use sqlx::Connection as _;
use uuid::Uuid;

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::destination::{Destination, KafkaTopic, NatsStream, RabbitMqQueue, SqsKind, SqsQueue, WebhookEndpoint, key};
use crate::relay::RelayConfig;

/// Where the bad one stands among a hundred.
const BAD: i64 = 37;

/// The header that topics are made of, and what good events have there.
const PART: (&str, &str) = ("part", "it-");

/// What a kind of bad event changes.
struct Draft {
    payload: Payload,
    headers: Headers,
}

/// A kind of bad event, and what its dead letter must tell.
type Bad = (fn(&mut Draft), &'static [&'static str]);

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq() {
    let Some(queue) = RabbitMqQueue::shared().await else { return };
    let kinds: [Bad; 4] = [
        (oversize, &["70000 bytes", "65536"]),
        (|event| set(event, &"n".repeat(300), "v"), &["header name", "300 bytes"]),
        (|event| set(event, PART.0, &"s".repeat(300)), &["the topic has", "255"]),
        (without_part, &["needs header `part`"]),
    ];
    each_dies_alone(queue, &[("topic", "{header:part}")], &kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats() {
    let Some(stream) = NatsStream::shared().await else { return };
    let kinds: [Bad; 5] = [
        (oversize, &["70000 bytes", "65536"]),
        (|event| set(event, "bad name", "v"), &["header name `bad name`", "8 bytes"]),
        (|event| set(event, "padding", &"p".repeat(65_536)), &["headers take", "65535"]),
        (|event| set(event, PART.0, &"s".repeat(4_100)), &["bytes, the broker allows 4000"]),
        (without_part, &["needs header `part`"]),
    ];
    let topic = format!("{}.{{header:part}}", stream.name_when_missing());
    each_dies_alone(stream, &[("topic", &topic)], &kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka() {
    let Some(topic) = KafkaTopic::shared() else { return };
    let kinds: [Bad; 4] = [
        (oversize, &["70000 bytes", "65536"]),
        (|event| set(event, "padding", &"p".repeat(70_000)), &["with key and headers", "65536"]),
        (|event| set(event, PART.0, &"s".repeat(300)), &["the topic has", "249"]),
        (without_part, &["needs header `part`"]),
    ];
    let template = format!("{{header:part}}{}", topic.name_when_missing().strip_prefix(PART.1).unwrap());
    each_dies_alone(topic, &[("topic", &template)], &kinds).await;
}

/// No template, and what SQS can't take as a group or an attribute is encoded: keys and headers can't be bad here.
#[tokio::test(flavor = "multi_thread")]
async fn sqs() {
    let kinds: [Bad; 2] = [(oversize, &["70000", "65536"]), (|event| event.payload = bytes(0), &["empty"])];
    for kind in [SqsKind::Fifo, SqsKind::Standard] {
        let Some(queue) = SqsQueue::shared(kind) else { return };
        each_dies_alone(queue, &[], &kinds).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook() {
    let endpoint = WebhookEndpoint::own().await;
    let kinds: [Bad; 5] = [
        (oversize, &["70000 bytes", "65536"]),
        (|event| set(event, "bad name", "v"), &["\"bad name\"", "8 bytes"]),
        (|event| set(event, "padding", &"p".repeat(20_000)), &["16384"]),
        (|event| set(event, PART.0, &"s".repeat(8_100)), &["8000"]),
        (without_part, &["needs header `part`"]),
    ];
    let url = format!("{}/{{header:part}}", endpoint.url());
    each_dies_alone(endpoint, &[("url", &url)], &kinds).await;
}

fn oversize(event: &mut Draft) {
    event.payload = bytes(70_000);
}

fn without_part(event: &mut Draft) {
    event.headers.remove(PART.0);
}

fn bytes(count: usize) -> Payload {
    Payload::bytes(vec![b'x'; count], "text/plain")
}

fn set(event: &mut Draft, name: &str, value: &str) {
    event.headers.insert(name.to_owned(), value.to_owned());
}

/// Beside the given kinds, headers that are no flat object, which only SQL can write.
async fn each_dies_alone(mut destination: impl Destination, keys: &[(&str, &str)], kinds: &[Bad]) {
    let Some(db) = Database::shared(&format!("bad_{}", destination.kind())).await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        destination.make().await;
        let mut config = destination.lead(config).with(&key(&destination, "max_message_bytes"), "64KiB");
        for (name, value) in keys {
            config = config.with(&key(&destination, name), value);
        }
        let relay = config.start().await;
        let mut history = History::default();
        let nested: Bad = (|_| {}, &["headers must be a flat JSON object", "line 1"]);
        for (round, (spoil, reasons)) in kinds.iter().chain([&nested]).enumerate() {
            let spoilt_by_sql = round == kinds.len();
            let bad = commit(&db, &mut history, round, *spoil, spoilt_by_sql).await;
            until(seconds(30), "the outbox is empty", || async { db.count("events").await == 0 }).await;
            let sql = format!("SELECT reason_kind, attempts, reason FROM outbox.dead_letters WHERE event_id = '{bad}'");
            let dead = db.psql(&sql);
            let kind = if spoilt_by_sql { "undecodable" } else { "rejected" };
            assert!(dead.starts_with(&format!("{kind}|0|")), "{reasons:?}: {dead}");
            assert!(reasons.iter().all(|figure| dead.contains(figure)), "{reasons:?}: {dead}");
            assert_eq!(db.count("dead_letters").await, i64::try_from(round + 1).unwrap(), "it alone");
            assert!(relay.reason().await.is_empty(), "one event is no trouble of the destination");
        }
        assert_eq!(db.count("retries").await, 0);
        assert!(relay.logged("") < 40, "{:?}", relay.log());
        assert_eq!(relay.stop().await, Some(0));
        let verdict = history.judge(destination.arrived().await);
        assert_eq!(verdict.committed, 99 * (kinds.len() + 1));
        assert_eq!((verdict.lost, verdict.invented, verdict.duplicates), (0, 0, 0), "{verdict}");
        assert!(verdict.order_violations == 0 || !destination.promises_order(), "{verdict}");
    })
    .await;
}

/// Commits a hundred events of ten aggregates in one transaction and returns the bad one, which the history leaves out.
async fn commit(
    db: &Database,
    history: &mut History,
    round: usize,
    spoil: fn(&mut Draft),
    spoilt_by_sql: bool,
) -> EventId {
    let before = 100 * i64::try_from(round).unwrap();
    let mut bad = None;
    let mut events = Vec::new();
    for number in 0..100 {
        let id = EventId::from_uuid(Uuid::now_v7());
        let aggregate = format!("a{}", number % 10);
        let headers = Headers::from([(PART.0.to_owned(), PART.1.to_owned())]);
        let mut draft = Draft { payload: Payload::raw_json(number.to_string()), headers };
        if number == BAD {
            spoil(&mut draft);
            bad = Some(id);
        } else {
            history.committed(id, &aggregate, before + number);
        }
        let event = NewEvent::new("order", aggregate, "order.changed", draft.payload).with_event_id(id);
        events.push(draft.headers.iter().fold(event, |event, (name, value)| event.with_header(name, value)));
    }
    let bad = bad.unwrap();
    let mut conn = db.connect().await;
    let mut tx = conn.begin().await.unwrap();
    Outbox::default().enqueue_many(&mut tx, &events).await.unwrap();
    if spoilt_by_sql {
        let sql = "UPDATE outbox.events SET headers = '{\"part\":{\"a\":1}}' WHERE event_id = $1";
        let spoilt = sqlx::query(sql).bind(bad.as_uuid()).execute(&mut *tx).await.unwrap();
        assert_eq!(spoilt.rows_affected(), 1);
    }
    tx.commit().await.unwrap();
    bad
}
