//! An outage of the endpoint charges no event; a poisonous event among good ones is charged alone.
//!
//! The relay is played here: it charges what `Failed` says, and an event that was sent alone and not answered while the
//! check that follows is good.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_core::{Envelope, ErrorKind, Publisher};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_webhook::WebhookPublisher;

use crate::events::{config, events, id, kinds, publish, publish_one, publisher};
use crate::receiver::{Receiver, Reply};

/// Sends all again and again, in batches and each one alone as a suspect, and counts what would be charged.
async fn charges(publisher: &WebhookPublisher, events: &[Envelope], rounds: usize) -> BTreeMap<String, u32> {
    let mut charged = BTreeMap::new();
    for _ in 0..rounds {
        for (event, outcome) in events.iter().zip(publish(publisher, events).await) {
            if matches!(outcome, Err(error) if error.kind() == ErrorKind::Failed) {
                *charged.entry(id(event)).or_default() += 1;
            }
        }
        // The breaker waits for a good check.
        until_well(publisher).await;
        for event in events {
            let outcome = publish_one(publisher, event).await;
            let kind = outcome.as_ref().err().map(outbox_core::PublishError::kind);
            let blamed = match kind {
                Some(ErrorKind::Failed) => true,
                Some(ErrorKind::Unconfirmed) => publisher.check().await.is_ok(),
                _ => false,
            };
            if blamed {
                *charged.entry(id(event)).or_default() += 1;
            }
        }
    }
    charged
}

async fn until_well(publisher: &WebhookPublisher) {
    let begun = Instant::now();
    let mut probes = tokio::time::interval(Duration::from_millis(50));
    while publisher.check().await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "a rest must end");
        probes.tick().await;
    }
}

/// Everything fails in the same way, and then nothing does: `most` events may have been charged, once each.
async fn an_outage(reply: Reply, most: usize) {
    let receiver = Receiver::start().await;
    let publisher = publisher(receiver.url("/"));
    let events = events(20);
    assert!(publish(&publisher, &events).await.iter().all(Result::is_ok));
    receiver.answer_all(reply);
    let charged = charges(&publisher, &events, 3).await;
    assert!(charged.len() <= most && charged.values().all(|attempts| *attempts == 1), "{charged:?}");

    receiver.answer_all(Reply::status(204));
    until_well(&publisher).await;
    assert!(publish(&publisher, &events).await.iter().all(Result::is_ok), "it goes on by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_its_endpoint_charges_nobody() {
    an_outage(Reply::status(502), 0).await;
    an_outage(Reply::status(504), 0).await;
}

/// It has no time for requests, or takes none yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_gives_up_on_every_request_charges_nobody() {
    an_outage(Reply::status(408), 0).await;
    an_outage(Reply::status(425), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_says_503_charges_nobody() {
    an_outage(Reply::status(503), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_charge_nobody() {
    an_outage(Reply::Cut, 0).await;
}

/// The first few 500s of an outage look like poison.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_always_fails_charges_a_few_events_once() {
    an_outage(Reply::status(500), 4).await;
}

/// With one event only nothing tells an outage from poison: a gateway's answer charges nothing, a handler's does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_event_is_charged_for_a_500_only() {
    for (status, expected) in [(500, 6), (502, 0), (408, 0)] {
        let receiver = Receiver::start().await;
        let publisher = publisher(receiver.url("/"));
        let events = events(1);
        assert!(publish(&publisher, &events).await[0].is_ok());
        receiver.answer_all(Reply::status(status));
        let charged = charges(&publisher, &events, 3).await;
        assert_eq!(charged.values().sum::<u32>(), expected, "{status}");
    }
}

/// One event breaks the handler, the gateway or the connection; the others are well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisonous_event_is_charged_alone() {
    for reply in [Reply::status(500), Reply::status(502), Reply::status(408), Reply::Cut] {
        let receiver = Receiver::start().await;
        let publisher = publisher(receiver.url("/"));
        let events = events(20);
        let poison = id(&events[7]);
        let (bad, shown) = (poison.clone(), reply.clone());
        receiver.answer(move |received| if received.id() == bad { reply.clone() } else { Reply::status(204) });
        let charged = charges(&publisher, &events, 5).await;
        assert_eq!(charged.keys().collect::<Vec<_>>(), [&poison], "{shown:?}");
        assert!(charged[&poison] >= 5, "{shown:?}: {charged:?}");
        let mut arrived = receiver.ids();
        arrived.sort_unstable();
        arrived.dedup();
        assert_eq!(arrived.len(), 20);
    }
}

/// In an outage a batch is not thrown at the endpoint: after a few troubles the rest is held back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_in_trouble_is_spared() {
    let receiver = Receiver::start().await;
    receiver.answer_all(Reply::status(502));
    let publisher = WebhookPublisher::connect(config(receiver.url("/")).with_max_in_flight(4)).unwrap();
    let outcomes = publish(&publisher, &events(1000)).await;
    assert!(receiver.received().len() < 20, "{}", receiver.received().len());
    let held = outcomes[999].as_ref().unwrap_err();
    assert_eq!(held.kind(), ErrorKind::Unavailable);
    assert!(held.report().contains("took none of the last"), "{}", held.report());
    assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// With the endpoint away a large batch ends soon: one connection that can't be made answers for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_batch_without_an_endpoint_ends_soon() {
    let receiver = Receiver::start().await;
    let proxy = FaultProxy::start(receiver.addr.to_string()).await.unwrap();
    proxy.set_mode(Mode::Blackhole);
    let silent = config(format!("https://localhost:{}/", proxy.addr().port()));
    let silent = silent.with_connect_timeout(Duration::from_secs(1)).with_max_in_flight(1);
    let refusing = config(Receiver::start().await.url("/"));
    for (config, cause) in [(silent, "no connection to localhost within 1s"), (refusing, "can't connect to 127.0.0.1:")]
    {
        let publisher = WebhookPublisher::connect(config).unwrap();
        let begun = Instant::now();
        let outcomes = publish(&publisher, &events(5000)).await;
        assert!(begun.elapsed() < Duration::from_secs(6), "{cause}: {:?}", begun.elapsed());
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.report().contains(cause), "{}", error.report());
        }
    }
}

/// A slow endpoint: what can't begin in time is throttled and was not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_is_bounded_whatever_the_batch() {
    let receiver = Receiver::start().await;
    receiver.answer_all(Reply::Hang);
    let config = config(receiver.url("/")).with_max_in_flight(1).with_request_timeout(Duration::from_secs(9));
    let publisher = WebhookPublisher::connect(config).unwrap();
    let begun = Instant::now();
    let (first, second) = (events(10), events(10));
    let (first, second) = tokio::join!(publish(&publisher, &first), publish(&publisher, &second));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let kinds = [kinds(&first), kinds(&second)].concat();
    let count = |kind| kinds.iter().filter(|found| **found == Err(kind)).count();
    assert_eq!((count(ErrorKind::Unconfirmed), count(ErrorKind::Throttled)), (1, 19), "{kinds:?}");
    assert_eq!(receiver.received().len(), 1);
}
