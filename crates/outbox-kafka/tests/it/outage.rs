//! A broker that is killed while events are on their way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::{Envelope, ErrorKind, Publisher};
use outbox_kafka::KafkaConfig;
use outbox_testkit::services::kafka::{Kafka, Options};
use outbox_testkit::services::require_or_skip;

use crate::broker::{Topic, connect, events, publish, until};

const AGGREGATES: i64 = 500;
const ROUNDS: i64 = 40;
const EVENTS: usize = 20_000;
const KILLS: usize = 3;

/// What a relay does: of one aggregate the next event only when the one before it is confirmed. Twenty thousand events,
/// three kills, the data in a store that outlives the broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_broker_killed_three_times_loses_nothing_and_keeps_order() {
    let started = tokio::task::block_in_place(|| require_or_skip("kafka", Kafka::start(Options::default().durable())));
    let Some(mut broker) = started else { return };
    let topic = Topic::created(&broker.address()).await;
    let second = Duration::from_secs(1);
    let config = KafkaConfig::new(broker.address()).with_topic(&topic.name);
    let publisher = Arc::new(connect(config.with_confirm_timeout(2 * second).with_connect_timeout(second)));
    let confirmed = Arc::new(AtomicUsize::new(0));
    let sending = {
        let (publisher, confirmed) = (Arc::clone(&publisher), Arc::clone(&confirmed));
        tokio::spawn(async move { send_all(&*publisher, &confirmed).await })
    };
    let mut kinds = HashSet::new();
    for kill in 1..=KILLS {
        until(|| async { confirmed.load(Ordering::Relaxed) >= EVENTS * kill / (KILLS + 1) }).await;
        tokio::task::block_in_place(|| broker.kill9()).unwrap();
        until(|| async { publisher.check().await.is_err() }).await;
        kinds.insert(publisher.check().await.unwrap_err().kind());
        tokio::task::block_in_place(|| broker.start_again()).unwrap();
    }
    let (sent, failures) = sending.await.unwrap();
    kinds.extend(failures.keys());
    let passing = [ErrorKind::Unavailable, ErrorKind::Unconfirmed];
    assert!(kinds.iter().all(|kind| passing.contains(kind)), "nothing that costs an attempt: {failures:?}");
    assert!(failures.values().sum::<usize>() > 0, "the kills were felt");

    let arrived = topic.arrived(EVENTS).await;
    let mut first = HashSet::new();
    let mut last_of: HashMap<String, i64> = HashMap::new();
    for message in &arrived {
        if first.insert(message.event_id.clone()) {
            let number = sent[&message.event_id];
            let before = last_of.insert(message.headers["aggregate-id"].clone(), number);
            assert!(before.is_none_or(|before| before < number), "out of order: {number} after {before:?}");
        }
    }
    assert_eq!(first.len(), EVENTS, "all have arrived, {} copies beside", arrived.len() - first.len());
    println!("{EVENTS} events, {} copies, refusals on the way: {failures:?}", arrived.len() - EVENTS);
    publisher.close().await;
}

/// Sends round after round until all is confirmed; returns the number of each event, and how often it failed how.
async fn send_all(
    publisher: &dyn Publisher,
    confirmed: &AtomicUsize,
) -> (HashMap<String, i64>, HashMap<ErrorKind, usize>) {
    let (mut sent, mut failures) = (HashMap::new(), HashMap::new());
    for round in 1..=ROUNDS {
        let mut left: Vec<Envelope> = events(AGGREGATES);
        sent.extend(left.iter().map(|event| (event.event_id.to_string(), round)));
        while !left.is_empty() {
            let outcomes = publish(publisher, &left).await;
            let mut again = Vec::new();
            for (event, outcome) in left.into_iter().zip(outcomes) {
                match outcome {
                    Ok(_) => {
                        confirmed.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        *failures.entry(error.kind()).or_default() += 1;
                        again.push(event);
                    }
                }
            }
            left = again;
            if !left.is_empty() {
                // As a relay does, it waits for a sign of life.
                until(|| async { publisher.check().await.is_ok() }).await;
            }
        }
    }
    (sent, failures)
}
