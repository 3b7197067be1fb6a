//! Answers that no real broker here can be brought to give: lost after the append, refused by code, logins. The client
//! library's fake broker speaks the real protocol.

use std::time::{Duration, Instant};

use krafka::error::ErrorCode;
use krafka::testing::{ApiKey, Control, FakeBroker};
use outbox_core::{Envelope, ErrorKind, Headers, Payload, Publisher};
use outbox_kafka::{KafkaConfig, KafkaPublisher, SaslMechanism};

use crate::broker::{connect, error, events, publish};

const TOPIC: &str = "orders";
const SHORT: Duration = Duration::from_millis(600);

async fn broker(partitions: i32) -> FakeBroker {
    let broker = FakeBroker::start().await.unwrap();
    assert!(broker.create_topic(TOPIC, partitions));
    broker
}

fn config(broker: &FakeBroker) -> KafkaConfig {
    KafkaConfig::new(broker.bootstrap_servers()).with_topic(TOPIC)
}

/// It gives up soon.
fn impatient(broker: &FakeBroker) -> KafkaPublisher {
    connect(config(broker).with_confirm_timeout(SHORT).with_connect_timeout(SHORT))
}

fn kept(broker: &FakeBroker) -> usize {
    broker.all_records(TOPIC).unwrap().len()
}

fn lose_answers(broker: &FakeBroker, times: u32, how: &Control) {
    let lose = Control::ApplyThen(Box::new(how.clone()));
    broker.on_times(ApiKey::Produce, times, move |_| lose.clone());
}

/// The client asks again with the same sequence number, the broker knows it: kept once, and a true confirm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_once_is_asked_for_again() {
    let broker = broker(1).await;
    lose_answers(&broker, 1, &Control::Disconnect);
    let outcomes = publish(&connect(config(&broker)), &events(20)).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!((kept(&broker), broker.request_count(ApiKey::Produce)), (20, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_comes_is_unconfirmed_however_it_is_lost() {
    for how in [Control::Silence, Control::Disconnect, Control::Error(ErrorCode::RequestTimedOut)] {
        let broker = broker(1).await;
        lose_answers(&broker, 1000, &how);
        let begun = Instant::now();
        for outcome in publish(&impatient(&broker), &events(20)).await {
            assert_eq!(error(&outcome).kind(), ErrorKind::Unconfirmed, "{how:?}: {}", error(&outcome).report());
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(kept(&broker), 20, "{how:?}: it was kept, once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_called_by_its_code() {
    use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unconfirmed};
    let check = async |code: ErrorCode, kept_all_the_same: bool, kind: ErrorKind, only_topic: bool| {
        let broker = broker(1).await;
        let refuse = Control::Error(code);
        let refuse = if kept_all_the_same { Control::ApplyThen(Box::new(refuse)) } else { refuse };
        broker.on(ApiKey::Produce, move |_| refuse.clone());
        let publisher = impatient(&broker);
        let batch = events(2);
        for (event, outcome) in batch.iter().zip(publish(&publisher, &batch).await) {
            let error = error(&outcome);
            assert_eq!(error.kind(), kind, "{code:?}: {}", error.report());
            assert_eq!(error.topic(), only_topic.then_some(&*publisher.topic(event)), "{code:?}");
            assert!(error.report().contains(&format!("{code:?}")), "{code:?}: {}", error.report());
        }
        broker.clear_hooks();
        let outcomes = publish(&publisher, &events(2)).await;
        assert!(outcomes.iter().all(Result::is_ok), "{code:?}: it goes on afterwards: {outcomes:?}");
    };
    check(ErrorCode::TopicAuthorizationFailed, false, Misconfigured, true).await;
    check(ErrorCode::UnknownTopicOrPartition, false, Misconfigured, true).await;
    check(ErrorCode::InvalidTimestamp, false, Misconfigured, true).await;
    check(ErrorCode::ClusterAuthorizationFailed, false, Misconfigured, false).await;
    check(ErrorCode::NotEnoughReplicas, false, Throttled, false).await;
    check(ErrorCode::NotEnoughReplicasAfterAppend, true, Unconfirmed, false).await;
    check(ErrorCode::NotLeaderForPartition, false, ErrorKind::Unavailable, false).await;
    check(ErrorCode::UnknownServerError, true, Unconfirmed, false).await;
    check(ErrorCode::MessageTooLarge, false, Rejected, false).await;
    check(ErrorCode::InvalidRecord, false, Rejected, false).await;
    check(ErrorCode::InvalidRequest, false, Failed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_vanishes_under_way_is_misconfigured_until_it_is_back() {
    let broker = broker(3).await;
    let publisher = impatient(&broker);
    assert!(publish(&publisher, &events(9)).await.iter().all(Result::is_ok));
    assert!(broker.delete_topic(TOPIC));
    for _ in 0..2 {
        for outcome in publish(&publisher, &events(9)).await {
            let error = error(&outcome);
            assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some(TOPIC)), "{}", error.report());
        }
    }
    assert!(broker.create_topic(TOPIC, 3));
    let outcomes = publish(&publisher, &events(9)).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// A broker refuses a batch and does not say for which event. Sent one by one, only the culprit is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_that_spoils_a_batch_is_found_among_its_neighbours() {
    let broker = broker(1).await;
    // The first request carries all ten; the others one each, in order.
    broker.on(ApiKey::Produce, |request| match request.api_call_index {
        0 | 4 => Control::Error(ErrorCode::InvalidRecord),
        _ => Control::Pass,
    });
    let outcomes = publish(&connect(config(&broker)), &events(10)).await;
    let refused: Vec<_> = (0..10).filter(|index| outcomes[*index].is_err()).collect();
    assert_eq!(refused, [3], "{outcomes:?}");
    let culprit = error(&outcomes[3]);
    assert_eq!(culprit.kind(), ErrorKind::Rejected);
    assert!(culprit.report().contains("bytes for topic `orders`"), "{}", culprit.report());
    assert_eq!((kept(&broker), broker.request_count(ApiKey::Produce)), (9, 11));
}

/// Another producer with this identity, as after a restore of the cluster: the session is given up, the next one has
/// an identity of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_producer_is_replaced() {
    let broker = broker(1).await;
    let publisher = impatient(&broker);
    broker.on_times(ApiKey::Produce, 2, |_| Control::Error(ErrorCode::InvalidProducerEpoch));
    for outcome in publish(&publisher, &events(5)).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Unconfirmed, "{}", error(&outcome).report());
    }
    let outcomes = publish(&publisher, &events(5)).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(broker.request_count(ApiKey::InitProducerId), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_gives_no_identity_is_misconfigured() {
    let broker = broker(1).await;
    broker.on(ApiKey::InitProducerId, |_| Control::Error(ErrorCode::ClusterAuthorizationFailed));
    let publisher = impatient(&broker);
    let outcome = publish(&publisher, &events(1)).await.remove(0);
    assert_eq!((error(&outcome).kind(), error(&outcome).topic()), (ErrorKind::Misconfigured, None), "{outcome:?}");
    assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Misconfigured);
    assert_eq!(kept(&broker), 0);
}

/// More than the client may hold: what finds no room is throttled, not queued without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_buffer_throttles() {
    let broker = broker(1).await;
    broker.on(ApiKey::Produce, |_| Control::Silence);
    let mut batch = events(40);
    for event in &mut batch {
        event.payload = Payload::bytes(vec![b'x'; 1_000_000], "text/plain");
    }
    let config = config(&broker).with_confirm_timeout(Duration::from_secs(3)).with_connect_timeout(SHORT);
    let outcomes = publish(&connect(config), &batch).await;
    let count = |kind| outcomes.iter().filter(|outcome| error(outcome).kind() == kind).count();
    let (throttled, sent) = (count(ErrorKind::Throttled), count(ErrorKind::Unconfirmed));
    let waited = count(ErrorKind::Unavailable);
    assert_eq!((throttled, sent + waited), (40 - 33, 33), "{outcomes:?}");
    assert!(sent >= 1, "one batch of the partition is on its way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_accepted_or_refused_with_its_cause_and_without_its_password() {
    let broker = broker(1).await;
    broker.require_sasl_plain("relay", "right-password");
    let with = |password: &str| {
        let config = config(&broker).with_sasl(SaslMechanism::Plain, "relay", password);
        connect(config.with_confirm_timeout(SHORT).with_connect_timeout(SHORT))
    };
    let outcomes = publish(&with("right-password"), &events(3)).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");

    let refused = with("wrong-password");
    let outcomes = publish(&refused, &events(3)).await;
    let check = refused.check().await.unwrap_err();
    for error in outcomes.iter().map(error).chain([&check]) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
        assert!(error.report().contains("SASL"), "{}", error.report());
        for text in [error.report(), format!("{error:?}"), format!("{refused:?}")] {
            assert!(!text.contains("password"), "{text}");
        }
    }
    assert_eq!(kept(&broker), 3);
}

/// Our count must be the broker's: an event is refused here exactly when its batch would be larger than the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_message_is_counted_to_the_byte() {
    let largest = |batch: &[Envelope], limit: usize| {
        let (broker, batch) = (broker(1), batch.to_vec());
        async move {
            let broker = broker.await;
            let outcome = publish(&connect(config(&broker).with_max_message_bytes(limit)), &batch).await.remove(0);
            let log = broker.with_state(|state| state.topics[TOPIC].partitions[0].log.clone());
            (outcome, log.first().map(bytes::Bytes::len))
        }
    };
    for padding in [0, 1, 57, 58, 1000, 8000, 70_000] {
        let mut batch = events(1);
        batch[0].headers = Headers::from([("padding".into(), "p".repeat(padding)), ("ü".into(), String::new())]);
        let (outcome, written) = largest(&batch, 1 << 20).await;
        let (written, limit) = (written.unwrap(), written.unwrap().max(2048));
        assert!(outcome.is_ok());
        assert!(largest(&batch, limit).await.0.is_ok(), "{written} bytes must pass");
        if limit == written {
            let (outcome, kept) = largest(&batch, written - 1).await;
            assert!(error(&outcome).report().contains(&format!("{written} bytes")), "{outcome:?}");
            assert_eq!((error(&outcome).kind(), kept), (ErrorKind::Rejected, None));
        }
    }
}

/// A close does not wait longer for a broker that says nothing than a publish does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_ends_while_answers_are_missing() {
    let broker = broker(1).await;
    broker.on(ApiKey::Produce, |_| Control::Silence);
    let publisher = std::sync::Arc::new(impatient(&broker));
    let call = {
        let publisher = std::sync::Arc::clone(&publisher);
        tokio::spawn(async move { publish(&*publisher, &events(5)).await })
    };
    broker.wait_for_requests(ApiKey::Produce, 1, Duration::from_secs(30)).await;
    let begun = Instant::now();
    publisher.close().await;
    publisher.close().await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    for outcome in call.await.unwrap() {
        assert_eq!(error(&outcome).kind(), ErrorKind::Unconfirmed, "{outcome:?}");
    }
}
