//! A broker that dies and comes back, with its queues or without (field report B45, publisher side).

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use outbox_core::{Envelope, ErrorKind, Outcome, Publisher};
use outbox_rabbitmq::RabbitMqPublisher;
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, EVENT_TYPE};
use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish, until};

fn node() -> Option<RabbitMq> {
    tokio::task::block_in_place(|| require_or_skip("amqp", RabbitMq::start()))
}

fn kill_and_restart(node: &mut RabbitMq) {
    tokio::task::block_in_place(|| {
        node.kill9().unwrap();
        node.start_again().unwrap();
    });
}

/// Publishes in parts of 100; gives the events that were not confirmed, with why.
async fn publish_parts(publisher: &RabbitMqPublisher, all: &[Envelope]) -> Vec<(Envelope, Outcome)> {
    let mut left = Vec::new();
    for part in all.chunks(100) {
        let outcomes = publish(publisher, part).await;
        left.extend(part.iter().cloned().zip(outcomes).filter(|(_, outcome)| outcome.is_err()));
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_durable_queue_confirmed_outlives_the_broker() {
    let Some(mut node) = node() else { return };
    let bound = [Broker::bound(&node.url(), Kind::Classic).await, Broker::bound(&node.url(), Kind::Quorum).await];
    // RabbitMQ 3.10 writes down that there is a new quorum queue some seconds later: one that is killed before that
    // has lost the queue and what it had confirmed. A queue older than the crash is what this is about.
    tokio::task::block_in_place(|| {
        node.stop().unwrap();
        node.start_again().unwrap();
    });
    let publishers = bound.each_ref().map(Broker::publisher);
    let all = events(1000);
    for publisher in &publishers {
        assert!(publish_parts(publisher, &all).await.is_empty());
    }
    kill_and_restart(&mut node);
    for (broker, publisher) in bound.iter().zip(&publishers) {
        // Nobody tells it to connect again.
        let after = events(1);
        until(|| async { publish(publisher, &after).await[0].is_ok() }).await;
        let again = Broker::existing(broker, &node.url()).await;
        let mut arrived = Vec::new();
        again.take_until(&mut arrived, 1001).await;
        let mut found = arrived_ids(&arrived);
        found.dedup(); // the one after the restart was sent until it was confirmed
        assert_eq!(found, ids(all.iter().chain(&after)), "{}", broker.queue);
    }
}

/// Nothing counts as published while there is nowhere to put it, and the rest goes out once there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_had_a_queue_only_until_the_restart_waits_for_a_new_one() {
    let Some(mut node) = node() else { return };
    let broker = Broker::bare(&node.url()).await;
    declare_transient(&broker).await;
    let publisher = broker.publisher();
    let all = events(1000);
    let (before, after) = all.split_at(500);
    assert!(publish_parts(&publisher, before).await.is_empty());
    kill_and_restart(&mut node);

    until(|| async { publisher.check().await.is_err_and(|error| error.kind() == ErrorKind::Misconfigured) }).await;
    let left = publish_parts(&publisher, after).await;
    assert_eq!(left.len(), after.len(), "none may count as published");
    for (_, outcome) in &left {
        assert_eq!(error(outcome).kind(), ErrorKind::Misconfigured, "{}", error(outcome).report());
    }

    // The exchange alone is not enough.
    let again = Broker::existing(&broker, &node.url()).await;
    let options = ExchangeDeclareOptions { durable: false, ..ExchangeDeclareOptions::default() };
    let name = || again.exchange.as_str().into();
    again.channel.exchange_declare(name(), ExchangeKind::Topic, options, FieldTable::default()).await.unwrap();
    let left = publish_parts(&publisher, after).await;
    assert_eq!(left.len(), after.len(), "none may count as published without a queue");

    declare_transient(&again).await;
    assert!(publish_parts(&publisher, after).await.is_empty());
    let mut arrived = Vec::new();
    again.take_until(&mut arrived, after.len()).await;
    assert_eq!(arrived_ids(&arrived), ids(after));
}

/// An exchange and a queue that the broker forgets when it ends.
async fn declare_transient(broker: &Broker) {
    let (exchange, queue) = (|| broker.exchange.as_str().into(), || broker.queue.as_str().into());
    let options = ExchangeDeclareOptions { durable: false, ..ExchangeDeclareOptions::default() };
    broker.channel.exchange_declare(exchange(), ExchangeKind::Topic, options, FieldTable::default()).await.unwrap();
    let options = QueueDeclareOptions { durable: false, ..QueueDeclareOptions::default() };
    broker.channel.queue_declare(queue(), options, FieldTable::default()).await.unwrap();
    let key = format!("{AGGREGATE_TYPE}.{EVENT_TYPE}");
    let options = QueueBindOptions::default();
    broker.channel.queue_bind(queue(), exchange(), key.into(), options, FieldTable::default()).await.unwrap();
}
