//! A broker that wants less: full queues and blocked connections.

use std::time::{Duration, Instant};

use lapin::types::AMQPValue;
use outbox_core::{ErrorKind, Publisher};
use outbox_rabbitmq::RabbitMqPublisher;
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, EVENT_TYPE};
use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish, until, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_throttles_and_all_arrive_once_it_is_drained() {
    let Some(url) = url() else { return };
    for kind in Kind::ALL {
        let broker = Broker::bare(&url).await;
        broker.declare_exchange(&[]).await;
        let limits =
            [("x-max-length", AMQPValue::LongInt(50)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
        broker.declare_queue(kind, &limits).await;
        broker.bind(&format!("{AGGREGATE_TYPE}.{EVENT_TYPE}")).await;
        let publisher = broker.publisher();
        let all = events(120);
        let (mut left, mut arrived, mut throttled) = (all.clone(), Vec::new(), 0);
        for round in 0..100 {
            let mut refused = Vec::new();
            // In parts: a quorum queue counts only what it has written, so one long pipeline slips through.
            for part in left.chunks(20) {
                for (event, outcome) in part.iter().zip(publish(&publisher, part).await) {
                    if outcome.is_err() {
                        assert_eq!(error(&outcome).kind(), ErrorKind::Throttled, "{kind:?}: {outcome:?}");
                        refused.push(event.clone());
                    }
                }
            }
            throttled += refused.len();
            if round == 0 {
                assert!(!refused.is_empty(), "{kind:?}: 120 events did not fill a queue of 50");
            }
            left = refused;
            arrived.extend(broker.take().await);
            if left.is_empty() {
                break;
            }
        }
        assert!(throttled > 0 && left.is_empty(), "{kind:?}: {} are left, {throttled} refusals", left.len());
        assert_eq!(arrived_ids(&arrived), ids(&all), "{kind:?}: each once, for a refused one was not kept");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_connection_throttles_at_once_and_goes_on_when_it_is_unblocked() {
    let node = tokio::task::block_in_place(|| require_or_skip("amqp", RabbitMq::start()));
    let Some(node) = node else { return };
    let broker = Broker::bound(&node.url(), Kind::Classic).await;
    let config = broker.config().with_confirm_timeout(Duration::from_secs(30));
    let publisher = RabbitMqPublisher::connect(config).unwrap();
    let first = events(3);
    assert!(publish(&publisher, &first).await.iter().all(Result::is_ok));

    tokio::task::block_in_place(|| node.block_memory()).unwrap();
    // The broker tells a connection when it publishes for the first time during the alarm.
    until(|| async { publish(&publisher, &events(1)).await[0].is_err() }).await;
    let begun = Instant::now();
    for outcome in publish(&publisher, &events(500)).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Throttled);
    }
    let check = publisher.check().await.unwrap_err();
    assert_eq!(check.kind(), ErrorKind::Throttled, "{}", check.report());
    assert!(begun.elapsed() < Duration::from_secs(5), "it must not wait for confirms: {:?}", begun.elapsed());
    // A publisher that is new to the broker learns it by its first batch, long before its confirm_timeout. Of that
    // batch nobody knows whether the broker has read it.
    let newcomer = RabbitMqPublisher::connect(broker.config()).unwrap();
    for outcome in publish(&newcomer, &events(100)).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Unconfirmed, "{outcome:?}");
    }
    for outcome in publish(&newcomer, &events(100)).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Throttled, "{outcome:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());

    tokio::task::block_in_place(|| node.unblock_memory()).unwrap();
    until(|| async { publisher.check().await.is_ok() }).await;
    let last = events(200);
    let outcomes = publish(&publisher, &last).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let arrived = arrived_ids(&broker.take().await);
    assert!(ids(first.iter().chain(&last)).iter().all(|id| arrived.contains(id)));
    newcomer.close().await;
}
