//! Confirms of messages that no queue takes: an acknowledgement is no success (field report B40).

use lapin::ExchangeKind;
use outbox_core::{Envelope, ErrorKind, Publisher};
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, EVENT_TYPE};

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish, publish_until_confirmed, url};

/// With a hundred in flight the client library hands the return to somebody else's confirm: only the message itself
/// tells. Many positions and many messages late on disk make that certain to happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unroutable_of_a_hundred_is_the_only_one_not_published() {
    let Some(url) = url() else { return };
    for kind in Kind::ALL {
        let broker = Broker::bound(&url, kind).await;
        let publisher = broker.publisher();
        for astray in (0..100).step_by(7) {
            let mut batch = events(100);
            batch[astray].event_type = "chnaged".to_owned();
            let outcomes = publish(&publisher, &batch).await;
            for (index, outcome) in outcomes.iter().enumerate() {
                assert_eq!(outcome.is_ok(), index != astray, "{kind:?}: event {index}, astray {astray}: {outcome:?}");
            }
            let error = error(&outcomes[astray]);
            assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some("suite.chnaged")));
            assert_eq!(error.topic(), Some(&*publisher.topic(&batch[astray])));
            assert!(error.report().contains("NO_ROUTE (312)"), "{}", error.report());
            batch.remove(astray);
            assert_eq!(arrived_ids(&broker.take().await), ids(&batch));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_unroutable_among_many_calls_at_once() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Quorum).await;
    let publisher = std::sync::Arc::new(broker.publisher());
    let mut calls = tokio::task::JoinSet::new();
    for (call, astray) in (0..30).zip([0, 1, 2].into_iter().cycle()) {
        let publisher = std::sync::Arc::clone(&publisher);
        calls.spawn(async move {
            let mut batch = events(20 + call);
            batch.iter_mut().skip(astray).step_by(3).for_each(|event| event.event_type = "astray".into());
            let outcomes = publish(&*publisher, &batch).await;
            for (event, outcome) in batch.iter().zip(&outcomes) {
                assert_eq!(outcome.is_ok(), event.event_type == EVENT_TYPE, "{outcome:?}");
            }
            batch.retain(|event| event.event_type == EVENT_TYPE);
            batch
        });
    }
    let routed: Vec<Envelope> = calls.join_all().await.into_iter().flatten().collect();
    assert_eq!(arrived_ids(&broker.take().await), ids(&routed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_without_a_binding_takes_nothing_until_it_has_one() {
    let Some(url) = url() else { return };
    let broker = Broker::bare(&url).await;
    broker.declare_exchange(&[]).await;
    broker.declare_queue(Kind::Classic, &[]).await;
    let publisher = broker.publisher();
    publisher.check().await.unwrap();
    let batch = events(20);
    for outcome in publish(&publisher, &batch).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Misconfigured);
    }
    let key = format!("{AGGREGATE_TYPE}.{EVENT_TYPE}");
    broker.bind(&key).await;
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    assert_eq!(arrived_ids(&broker.take().await), ids(&batch), "nothing of the first try was kept");

    broker.unbind(&key).await;
    for outcome in publish(&publisher, &batch).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Misconfigured);
    }
    broker.bind(&key).await;
    publish_until_confirmed(&publisher, &batch[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alternate_exchange_counts_as_a_route_when_it_has_a_queue() {
    let Some(url) = url() else { return };
    let broker = Broker::bare(&url).await;
    let alternate = format!("{}-alternate", broker.exchange);
    broker.declare_exchange_named(&alternate, ExchangeKind::Fanout, &[]).await;
    broker.declare_exchange(&[("alternate-exchange", &alternate)]).await;
    broker.declare_queue(Kind::Classic, &[]).await;
    let publisher = broker.publisher();
    let batch = events(20);
    for outcome in publish(&publisher, &batch).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Misconfigured);
    }
    broker.bind_to(&alternate, "").await;
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    assert_eq!(arrived_ids(&broker.take().await), ids(&batch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_exchange_routes_to_the_queue_of_that_name() {
    let Some(url) = url() else { return };
    let broker = Broker::bare(&url).await;
    broker.declare_queue(Kind::Classic, &[]).await;
    let mut config = broker.config().with_topic(&broker.queue);
    config.exchange = String::new();
    let publisher = outbox_rabbitmq::RabbitMqPublisher::connect(config).unwrap();
    publisher.check().await.unwrap();
    let batch = events(3);
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    assert_eq!(arrived_ids(&broker.take().await), ids(&batch));
}
