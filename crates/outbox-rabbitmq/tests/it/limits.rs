//! Sizes and names at the edge of what AMQP and the broker take.

use outbox_core::{ErrorKind, Payload};
use outbox_rabbitmq::RabbitMqPublisher;
use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;

use crate::broker::{Broker, Kind, arrived_ids, error, events, ids, publish, publish_until_confirmed, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_names_are_rejected_and_their_neighbours_are_sent() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Classic).await;
    let publisher = broker.publisher();
    let mut batch = events(7);
    batch[1].headers.insert("n".repeat(256), "v".into());
    batch[2].headers.insert("n".repeat(255), "v".into());
    batch[3].headers.insert("line".into(), "one\r\ntwo: \u{1}ü".into());
    batch[4].headers.insert("CC".into(), "elsewhere".into());
    batch[5].payload = Payload::bytes("x", "t".repeat(256));
    let outcomes = publish(&publisher, &batch).await;
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().err().map(|error| error.kind())).collect();
    let rejected = Some(ErrorKind::Rejected);
    assert_eq!(kinds, [None, rejected, None, None, rejected, rejected, None]);
    assert!(error(&outcomes[1]).report().contains("256 bytes, AMQP allows 255"));

    let arrived = broker.take().await;
    assert_eq!(arrived_ids(&arrived), ids([0, 2, 3, 6].map(|index| &batch[index])));
    let lines: Vec<_> = arrived.iter().filter_map(|message| message.headers.get("line")).collect();
    assert_eq!(lines, ["one\r\ntwo: \u{1}ü"]);
}

/// AMQP can't split the frame that holds headers and names. One byte too many closes the connection for everyone, so
/// our count must be exact: the largest that we let pass is the largest that the broker takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_up_to_the_last_byte_of_the_frame_pass() {
    let Some(url) = url() else { return };
    let broker = Broker::bound(&url, Kind::Classic).await;
    let publisher = broker.publisher();
    let (mut passes, mut too_large) = (100_000, 140_000);
    let mut confirmed = 0;
    while too_large - passes > 1 {
        let middle = (passes + too_large) / 2;
        let mut batch = events(3);
        batch[1].headers.insert("padding".into(), "p".repeat(middle));
        let outcomes = publish(&publisher, &batch).await;
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "the connection must survive {middle}: {outcomes:?}");
        match &outcomes[1] {
            Ok(_) => passes = middle,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Rejected, "{}", error.report());
                too_large = middle;
            }
        }
        confirmed += outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    }
    assert!(passes > 130_000, "a frame of RabbitMQ holds 131072 bytes, {passes} of padding passed");
    let arrived = broker.take().await;
    assert_eq!(arrived.len(), confirmed);
    let longest = arrived.iter().filter_map(|message| message.headers.get("padding")).map(String::len).max();
    assert_eq!(longest, Some(passes));
}

/// The broker's own limit is lower than ours: it closes the channel and does not say for which message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_over_the_brokers_own_limit_is_found_among_its_neighbours() {
    let node = tokio::task::block_in_place(|| require_or_skip("amqp", RabbitMq::start()));
    let Some(node) = node else { return };
    tokio::task::block_in_place(|| {
        node.ctl(&["eval", "application:set_env(rabbit, max_message_size, 50000)."]).unwrap();
    });
    let broker = Broker::bound(&node.url(), Kind::Classic).await;
    let publisher = RabbitMqPublisher::connect(broker.config().with_channels(1)).unwrap();
    let mut batch = events(40);
    batch[17].payload = Payload::bytes(vec![b'x'; 50_001], "text/plain");
    batch[18].payload = Payload::bytes(vec![b'x'; 50_000], "text/plain");
    let outcomes = publish(&publisher, &batch).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(_) => assert_ne!(index, 17),
            Err(error) => {
                let expected = if index == 17 { ErrorKind::Rejected } else { ErrorKind::Unconfirmed };
                assert_eq!(error.kind(), expected, "event {index}: {}", error.report());
            }
        }
    }
    let report = error(&outcomes[17]).report();
    assert!(report.contains("50001") && report.contains("configured max size 50000"), "{report}");
    batch.remove(17);
    for event in &batch {
        publish_until_confirmed(&publisher, event).await;
    }
    let mut arrived = arrived_ids(&broker.take().await);
    arrived.dedup();
    assert_eq!(arrived, ids(&batch));
}
