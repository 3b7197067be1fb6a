//! Where events go: topics that are missing, appear and vanish, partitions, and a client that the user brings.

use std::time::{Duration, Instant};

use krafka::Kafka;
use outbox_core::{ErrorKind, Publisher};
use outbox_kafka::{KafkaConfig, KafkaPublisher};

use crate::broker::{PARTITIONS, Topic, address, arrived_ids, connect, error, events, ids, publish, until};

/// Field report B46. The missing topic is named, holds nobody else up, and is used once it exists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_topic_fails_alone_and_is_used_once_it_is_there() {
    let Some(address) = address() else { return };
    let there = Topic::created(&address).await;
    let missing = Topic::bare(&address).await;
    let publisher = connect(KafkaConfig::new(&address).with_topic("{header:topic}"));
    let mut batch = events(100);
    for (number, event) in batch.iter_mut().enumerate() {
        let topic = if number % 10 == 3 { &missing.name } else { &there.name };
        event.headers.insert("topic".into(), topic.clone());
    }
    let (lost, sent): (Vec<_>, Vec<_>) =
        batch.iter().cloned().partition(|event| event.headers["topic"] == missing.name);
    let begun = Instant::now();
    for (event, outcome) in batch.iter().zip(publish(&publisher, &batch).await) {
        if event.headers["topic"] == there.name {
            assert!(outcome.is_ok(), "{outcome:?}");
            continue;
        }
        let error = error(&outcome);
        assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some(missing.name.as_str())));
        assert_eq!(error.topic(), Some(&*publisher.topic(event)));
        assert!(error.report().contains("UnknownTopicOrPartition"), "{}", error.report());
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "no time-out is waited for: {:?}", begun.elapsed());
    publisher.check().await.unwrap();

    missing.create(&missing.name).await;
    until(|| async { publish(&publisher, &lost).await.iter().all(Result::is_ok) }).await;
    assert_eq!(arrived_ids(&there.arrived(sent.len()).await), ids(&sent));
    let mut arrived = arrived_ids(&missing.arrived(lost.len()).await);
    arrived.dedup();
    assert_eq!(arrived, ids(&lost));
}

/// The broker here goes on confirming what is sent to a topic that was deleted, which Apache Kafka does not; so it is
/// the check that notices. What the refusals of Apache Kafka lead to is tested in `answers`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_vanishes_is_misconfigured_until_it_is_back() {
    let Some(address) = address() else { return };
    let topic = Topic::created(&address).await;
    let publisher = connect(KafkaConfig::new(&address).with_topic(&topic.name));
    assert!(publish(&publisher, &events(3)).await.iter().all(Result::is_ok));
    topic.delete().await;
    let missing = (ErrorKind::Misconfigured, Some(topic.name.as_str()));
    let check = publisher.check().await.unwrap_err();
    assert_eq!((check.kind(), check.topic()), missing);
    for outcome in publish(&publisher, &events(3)).await {
        assert_eq!((error(&outcome).kind(), error(&outcome).topic()), missing);
    }
    topic.create(&topic.name).await;
    until(|| async { publish(&publisher, &events(3)).await.iter().all(Result::is_ok) }).await;
    publisher.check().await.unwrap();
}

/// The broker puts each key where Java's client would have put it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_aggregate_keeps_to_the_partition_of_javas_client() {
    let Some(address) = address() else { return };
    let topic = Topic::created(&address).await;
    let publisher = connect(KafkaConfig::new(&address).with_topic(&topic.name));
    let mut batch = events(300);
    batch[0].aggregate_id = "21".into();
    batch[1].aggregate_id = "abc".into();
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    let records = topic.records(batch.len()).await;
    assert_eq!(records.len(), batch.len());
    for record in &records {
        let key = record.key.as_deref().unwrap();
        let positive = krafka::producer::murmur2(key).cast_signed() & 0x7fff_ffff;
        assert_eq!(record.partition, positive % PARTITIONS);
    }
    let partition_of = |key: &[u8]| records.iter().find(|r| r.key.as_deref() == Some(key)).unwrap().partition;
    // Hashes of Java's own test: -973932308 and 479470107.
    assert_eq!((partition_of(b"21"), partition_of(b"abc")), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_the_user_brings_stays_the_users() {
    let Some(address) = address() else { return };
    let topic = Topic::created(&address).await;
    let second = Duration::from_secs(1);
    let client = |timeout| Kafka::builder(&address).request_timeout(timeout).connect_timeout(second).connect();
    let options = KafkaConfig::default().with_topic(&topic.name);
    let brought = client(Duration::from_secs(10)).await.unwrap();
    let publisher = KafkaPublisher::from_client(brought.clone(), options.clone()).unwrap();
    publisher.check().await.unwrap();
    let batch = events(20);
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    publisher.close().await;
    assert_eq!(error(&publish(&publisher, &batch).await[0]).kind(), ErrorKind::Unavailable);
    let again = KafkaPublisher::from_client(brought, options.clone()).unwrap();
    let more = events(20);
    assert!(publish(&again, &more).await.iter().all(Result::is_ok), "the client lives on");
    assert_eq!(arrived_ids(&topic.arrived(40).await), ids(batch.iter().chain(&more)));

    let slow = client(Duration::from_secs(60)).await.unwrap();
    let contradicting = KafkaPublisher::from_client(slow, options.clone()).unwrap();
    let outcome = publish(&contradicting, &batch).await.remove(0);
    assert_eq!(error(&outcome).kind(), ErrorKind::Misconfigured);
    assert!(error(&outcome).report().contains("request_timeout"), "{}", error(&outcome).report());
    let brought = client(second).await.unwrap();
    let errors = KafkaPublisher::from_client(brought, options.with_topic("a b")).unwrap_err();
    assert_eq!(errors.iter().map(|error| error.field).collect::<Vec<_>>(), ["topic"]);
}
