//! Exchanges that come and go, connections that the user brings, and logins that are refused.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use outbox_core::{ErrorKind, Publisher};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, EVENT_TYPE};
use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish, until, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_stops_the_destination_until_it_is_declared() {
    let Some(url) = url() else { return };
    let broker = Broker::bare(&url).await;
    let publisher = broker.publisher();
    let batch = events(300);
    let missing = || async {
        let check = publisher.check().await.unwrap_err();
        assert_eq!((check.kind(), check.topic()), (ErrorKind::Misconfigured, None), "{}", check.report());
        assert!(check.report().contains("no exchange"), "{}", check.report());
        for outcome in publish(&publisher, &batch).await {
            let error = error(&outcome);
            assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, None), "{}", error.report());
        }
    };
    missing().await;
    broker.declare_exchange(&[]).await;
    broker.declare_queue(Kind::Classic, &[]).await;
    broker.bind(&format!("{AGGREGATE_TYPE}.{EVENT_TYPE}")).await;
    publisher.check().await.unwrap();
    let outcomes = publish(&publisher, &batch).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(arrived_ids(&broker.take().await), ids(&batch));

    broker.delete_exchange().await;
    missing().await;
    assert_eq!(broker.take().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_login_is_an_outage_and_shows_no_password() {
    let Some(url) = url() else { return };
    let (scheme, rest) = url.split_once("://").unwrap();
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let wrong = RabbitMqConfig::new(format!("{scheme}://nobody:hunter2@{place}"), "x");
    let mut no_vhost = RabbitMqConfig::new(&url, "x");
    no_vhost.url = format!("{}/no-such-vhost", url.rsplit_once('/').unwrap().0);
    for config in [wrong, no_vhost] {
        let publisher = RabbitMqPublisher::connect(config).unwrap();
        let check = publisher.check().await.unwrap_err();
        assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
        let outcomes = publish(&publisher, &events(1)).await;
        let error = error(&outcomes[0]);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
        for text in [error.report(), format!("{error:?}"), check.report(), format!("{publisher:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

/// What `docs/brokers/rabbitmq.md` tells operators to grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_to_write_to_the_exchange_is_enough() {
    let node = tokio::task::block_in_place(|| require_or_skip("amqp", RabbitMq::start()));
    let Some(node) = node else { return };
    let broker = Broker::bound(&node.url(), Kind::Quorum).await;
    tokio::task::block_in_place(|| {
        node.ctl(&["add_user", "relay", "hunter2"]).unwrap();
        let exchange = format!("^{}$", broker.exchange);
        node.ctl(&["set_permissions", "-p", "/", "relay", "^$", &exchange, "^$"]).unwrap();
    });
    let connect = |exchange: &str| {
        let url = node.url().replace("guest:guest@", "relay:hunter2@");
        RabbitMqPublisher::connect(RabbitMqConfig::new(url, exchange)).unwrap()
    };
    let publisher = connect(&broker.exchange);
    publisher.check().await.unwrap();
    let batch = events(100);
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    assert_eq!(arrived_ids(&broker.take().await), ids(&batch));

    let outcomes = publish(&connect("amq.topic"), &batch).await;
    for outcome in &outcomes {
        let error = error(outcome);
        assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, None), "{}", error.report());
    }
    assert!(error(&outcomes[0]).report().contains("ACCESS_REFUSED"), "{}", error(&outcomes[0]).report());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_the_users_own_is_used_until_it_ends() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Classic).await;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let publisher = RabbitMqPublisher::from_connection(connection, broker.config()).unwrap();
    let batch = events(10);
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    publisher.check().await.unwrap();
    publisher.close().await;
    assert_eq!(error(&publish(&publisher, &batch).await[0]).kind(), ErrorKind::Unavailable);
    assert_eq!(arrived_ids(&broker.take().await), ids(&batch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_works_again_after_the_runtime_that_opened_the_connection_has_ended() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Classic).await;
    let short = Duration::from_millis(1500);
    let config = broker.config().with_confirm_timeout(short).with_connect_timeout(short);
    let publisher = std::sync::Arc::new(RabbitMqPublisher::connect(config).unwrap());
    let first = std::sync::Arc::clone(&publisher);
    let batch = events(2);
    let in_first = batch[0].clone();
    let other_runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { assert!(publish(&*first, &[in_first]).await[0].is_ok()) });
    });
    tokio::task::block_in_place(|| other_runtime.join().unwrap());
    until(|| async { publish(&*publisher, &batch[1..]).await[0].is_ok() }).await;
    let arrived = arrived_ids(&broker.take().await);
    assert!(ids(&batch).iter().all(|id| arrived.contains(id)));
}
