//! Sizes and names at the edge of what Kafka takes.

use outbox_core::{ErrorKind, Headers, Payload};
use outbox_kafka::KafkaConfig;

use crate::broker::{Topic, address, arrived_ids, connect, error, events, ids, publish};

/// Field report B28, and rows 2 and 3 of what makes an event poison: one of a hundred, ninety-nine delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_event_of_each_kind_leaves_ninety_nine() {
    let Some(address) = address() else { return };
    let topic = Topic::created(&address).await;
    let config = KafkaConfig::new(&address).with_topic(format!("{{header:prefix}}{}", &topic.name[2..]));
    let publisher = connect(config);
    let long = |bytes: usize| "x".repeat(bytes);
    let mut delivered = Vec::new();
    let mut check = async |bad: usize, headers: Headers, payload: Option<Payload>, report: &str| {
        let mut batch = events(100);
        for event in &mut batch {
            event.headers = Headers::from([("prefix".into(), "t-".into())]);
        }
        batch[bad].headers = headers;
        batch[bad].payload = payload.unwrap_or_else(|| batch[bad].payload.clone());
        let outcomes = publish(&publisher, &batch).await;
        let failed: Vec<_> = (0..100).filter(|index| outcomes[*index].is_err()).collect();
        assert_eq!(failed, [bad], "{report}: {outcomes:?}");
        assert_eq!(error(&outcomes[bad]).kind(), ErrorKind::Rejected);
        assert_eq!(error(&outcomes[bad]).report(), report);
        batch.remove(bad);
        delivered.extend(batch);
    };
    let prefix = || ("prefix".to_owned(), "t-".to_owned());
    let too_large = Payload::bytes(long(1_047_553), "text/plain");
    let leaves = "the payload has 1047553 bytes, max_message_bytes (1048576) leaves 1047552 for it";
    check(17, Headers::from([prefix()]), Some(too_large), leaves).await;
    let headers = Headers::from([prefix(), ("big".into(), long(1_100_000))]);
    let size = "with key and headers the message has 1100292 bytes, max_message_bytes allows 1048576";
    check(0, headers, None, size).await;
    let many = (0..10_000).map(|number| (number.to_string(), String::new())).chain([prefix()]).collect();
    check(99, many, None, "the event has 10007 headers, at most 10000 are sent").await;
    let missing = "the topic template needs header `prefix`, which the event does not have";
    check(50, Headers::new(), None, missing).await;
    let headers = Headers::from([("prefix".into(), long(240))]);
    check(51, headers, None, "the topic has 272 bytes, the broker allows 249").await;

    let arrived = topic.arrived(delivered.len()).await;
    assert_eq!(arrived_ids(&arrived), ids(&delivered), "each once, and none of the bad ones");
}

/// Kafka carries any bytes in keys and headers: nothing is encoded, nothing starts another header (field report B32).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_text_in_keys_and_headers_arrives_as_it_is() {
    let Some(address) = address() else { return };
    let topic = Topic::created(&address).await;
    let publisher = connect(KafkaConfig::new(&address).with_topic(&topic.name));
    let mut batch = events(100);
    let ids_of_aggregates = ["ключ\r\n\0", " ", "%2F%", "😀"].map(str::to_owned);
    let long = "k".repeat(255);
    for (event, id) in batch.iter_mut().zip(ids_of_aggregates.into_iter().chain([long])) {
        event.aggregate_id = id;
    }
    batch[7].headers = Headers::from([
        ("a".into(), "one\r\nevent-id: other".into()),
        ("bad name:\n".into(), "\0\u{1}\r".into()),
        ("ключ".into(), "😀".into()),
        ("".into(), "".into()),
        ("n".repeat(300), "v".repeat(10_000)),
    ]);
    let outcomes = publish(&publisher, &batch).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let arrived = topic.arrived(100).await;
    assert_eq!(arrived_ids(&arrived), ids(&batch));
    for event in &batch {
        let id = event.event_id.to_string();
        let message = arrived.iter().find(|message| message.event_id == id).unwrap();
        assert_eq!(message.headers["aggregate-id"], event.aggregate_id);
        assert_eq!(message.headers.len(), 6 + event.headers.len());
        for (name, value) in &event.headers {
            assert_eq!(message.headers.get(name), Some(value), "{name}");
        }
    }
}
