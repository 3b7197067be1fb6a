//! A server that goes away and comes back.

use std::time::Duration;

use outbox_core::{ErrorKind, Publisher};
use outbox_testkit::services::require_or_skip;
use outbox_testkit::services::sqs::{Emulator, Sqs};

use crate::queue::{Kind, Queue, error, events, ids, publish, until};

/// The emulator that keeps what it had over a polite stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_broker_that_is_stopped_again_and_again_loses_nothing_that_was_confirmed() {
    let server = tokio::task::block_in_place(|| require_or_skip("sqs", Sqs::start(Emulator::Ministack)));
    let Some(mut server) = server else { return };
    for kind in Kind::ALL {
        let queue = Queue::create(&server.url(), kind).await;
        let short = Duration::from_secs(2);
        let config = queue.config().with_request_timeout(short).with_connect_timeout(short);
        let publisher = outbox_sqs::SqsPublisher::connect(config).unwrap();
        let all = events(400);
        for part in all.chunks(100) {
            until(|| async { publisher.check().await.is_ok() }).await;
            let outcomes = publish(&publisher, part).await;
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            tokio::task::block_in_place(|| server.stop()).unwrap();
            let check = publisher.check().await.unwrap_err();
            assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
            for outcome in publish(&publisher, part).await {
                assert_eq!(error(&outcome).kind(), ErrorKind::Unavailable, "{}", error(&outcome).report());
            }
            tokio::task::block_in_place(|| server.start_again()).unwrap();
        }
        assert_eq!(queue.taken_ids(all.len()).await, ids(&all));
    }
}

/// A server that hangs: the answer is missing, and nothing is a success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_broker_that_hangs_is_unconfirmed_and_is_used_again_afterwards() {
    let server = tokio::task::block_in_place(|| require_or_skip("sqs", Sqs::start(Emulator::Fauxqs)));
    let Some(server) = server else { return };
    let queue = Queue::create(&server.url(), Kind::Fifo).await;
    let short = Duration::from_secs(1);
    let config = queue.config().with_request_timeout(short).with_connect_timeout(short);
    let publisher = outbox_sqs::SqsPublisher::connect(config).unwrap();
    let batch = events(40);
    assert!(publish(&publisher, &batch[..20]).await.iter().all(Result::is_ok));
    tokio::task::block_in_place(|| server.pause()).unwrap();
    for outcome in publish(&publisher, &batch[20..]).await {
        assert_eq!(error(&outcome).kind(), ErrorKind::Unconfirmed, "{}", error(&outcome).report());
    }
    tokio::task::block_in_place(|| server.resume()).unwrap();
    until(|| async { publish(&publisher, &batch[20..]).await.iter().all(Result::is_ok) }).await;
    // The server took the first copies when it went on; FIFO drops the second.
    assert_eq!(queue.taken_ids(batch.len()).await, ids(&batch));
}
