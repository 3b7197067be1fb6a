//! Servers that are killed, paused and started again, and connections that are cut.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_nats::NatsPublisher;
use outbox_testkit::proxy::FaultProxy;
use outbox_testkit::services::nats::{Options, Version};

use crate::server::{
    LINES, Place, arrived_ids, assert_all_ok, error, events, ids, own, publish, publish_until_confirmed, until, url,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_reconnects_after_a_kill_and_all_that_was_confirmed_is_there() {
    for line in LINES {
        let Some(mut server) = own(line, Options::default()) else { return };
        let place = Place::with_stream(&server.url()).await;
        let short = Duration::from_secs(2);
        let publisher = Arc::new(NatsPublisher::connect(place.config().with_connect_timeout(short)).unwrap());
        let mut confirmed = Vec::new();
        for _ in 0..3 {
            let batch = events(500);
            let call = {
                let (publisher, batch) = (Arc::clone(&publisher), batch.clone());
                tokio::spawn(async move { publish(&*publisher, &batch).await })
            };
            tokio::task::yield_now().await;
            tokio::task::block_in_place(|| server.kill9()).unwrap();
            let outcomes = call.await.unwrap();
            for (event, outcome) in batch.iter().zip(&outcomes) {
                match outcome {
                    Ok(_) => confirmed.push(event.clone()),
                    Err(error) => {
                        let free = matches!(error.kind(), ErrorKind::Unconfirmed | ErrorKind::Unavailable);
                        assert!(free, "{}", error.report());
                    }
                }
            }
            // Nothing is sent once the check has failed, and the answer comes at once.
            let check = publisher.check().await.unwrap_err();
            assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
            assert!(check.report().contains("refused"), "the cause is named: {}", check.report());
            let begun = Instant::now();
            for outcome in publish(&*publisher, &events(10)).await {
                assert_eq!(error(&outcome).kind(), ErrorKind::Unavailable);
            }
            assert!(begun.elapsed() < Duration::from_secs(2));

            tokio::task::block_in_place(|| server.start_again()).unwrap();
            until(|| async { publisher.check().await.is_ok() }).await;
            assert_all_ok(&publish(&*publisher, &batch).await);
            confirmed.extend(batch);
        }
        let place = Place { jetstream: Place::bare(&server.url()).await.jetstream, ..place };
        let arrived = arrived_ids(&place.arrived().await);
        let mut expected = ids(&confirmed);
        expected.dedup();
        assert_eq!(arrived, expected, "each once: the stream drops second copies");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_while_the_server_is_away() {
    let Some(mut server) = own(Version::New, Options::default()) else { return };
    let place = Place::with_stream(&server.url()).await;
    tokio::task::block_in_place(|| server.stop()).unwrap();
    let publisher = place.publisher();
    let batch = events(1);
    assert_eq!(error(&publish(&publisher, &batch).await[0]).kind(), ErrorKind::Unavailable);
    tokio::task::block_in_place(|| server.start_again()).unwrap();
    assert_all_ok(&publish(&publisher, &batch).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_is_unconfirmed_in_time_and_then_goes_on() {
    let Some(server) = own(Version::New, Options::default()) else { return };
    let place = Place::with_stream(&server.url()).await;
    let short = Duration::from_millis(800);
    let config = place.config().with_confirm_timeout(short).with_connect_timeout(short);
    let publisher = NatsPublisher::connect(config).unwrap();
    assert_all_ok(&publish(&publisher, &events(1)).await);
    server.pause().unwrap();
    let begun = Instant::now();
    let batch = events(50);
    for outcome in publish(&publisher, &batch).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Unconfirmed);
    }
    assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    server.resume().unwrap();
    for event in &batch {
        publish_until_confirmed(&publisher, event).await;
    }
    assert_eq!(place.arrived().await.len(), 51, "second copies are dropped");
}

/// A server of several is down: the others are found, also when one of them hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_server_of_the_list_is_taken() {
    let Some(url) = url(Version::New) else { return };
    let place = Place::with_stream(&url).await;
    let hanging = FaultProxy::start(url.split_once("://").unwrap().1).await.unwrap();
    hanging.set_mode(outbox_testkit::proxy::Mode::Blackhole);
    let mut config = place.config().with_connect_timeout(Duration::from_secs(3));
    config.url = format!("nats://127.0.0.1:1,{},{url}", hanging.url_for(&url));
    let publisher = NatsPublisher::connect(config).unwrap();
    let batch = events(5);
    publish_until_confirmed(&publisher, &batch[0]).await;
    assert_all_ok(&publish(&publisher, &batch).await);
}

/// The window is shared by all calls, and what does not get its turn was not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_window_throttles_and_sends_nothing() {
    let Some(server) = own(Version::New, Options::default()) else { return };
    let place = Place::with_stream(&server.url()).await;
    let config = place.config().with_max_in_flight(10).with_confirm_timeout(Duration::from_millis(700));
    let publisher = NatsPublisher::connect(config).unwrap();
    let all = events(200);
    assert_all_ok(&publish(&publisher, &all).await);
    server.pause().unwrap();
    let batch = events(200);
    let outcomes = publish(&publisher, &batch).await;
    server.resume().unwrap();
    let of = |kind| outcomes.iter().filter(|outcome| error(outcome).kind() == kind).count();
    let (throttled, unconfirmed) = (of(ErrorKind::Throttled), of(ErrorKind::Unconfirmed));
    assert_eq!(throttled + unconfirmed, 200, "{outcomes:?}");
    assert!((10..=20).contains(&unconfirmed), "{unconfirmed}");
    until(|| async { place.arrived().await.len() == 200 + unconfirmed }).await;
}

/// A cut connection is mended by the client within milliseconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_mended_at_once() {
    let Some(url) = url(Version::New) else { return };
    let place = Place::with_stream(&url).await;
    let proxy = FaultProxy::start(url.split_once("://").unwrap().1).await.unwrap();
    let mut config = place.config();
    config.url = proxy.url_for(&url);
    let publisher = NatsPublisher::connect(config).unwrap();
    for _ in 0..10 {
        let batch = events(20);
        assert_all_ok(&publish(&publisher, &batch).await);
        proxy.cut();
        let begun = Instant::now();
        for event in &batch {
            publish_until_confirmed(&publisher, event).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    assert_eq!(place.arrived().await.len(), 200);
}
