//! Queues that come and go, their own limits, and clients that the user brings.

use std::time::{Duration, Instant};

use aws_sdk_sqs::types::QueueAttributeName;
use outbox_core::{ErrorKind, Payload, Publisher};
use outbox_sqs::{SqsConfig, SqsPublisher};

use crate::queue::{KEY, Kind, Queue, SECRET, client, error, events, ids, publish, unique_name, until, url};

/// Field report B46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_queue_stops_the_destination_until_it_is_there() {
    let Some(endpoint) = url() else { return };
    for kind in Kind::ALL {
        let name = unique_name(kind);
        let queue = Queue::create_named(&endpoint, &name, &[]).await;
        let delete = || async { queue.client.delete_queue().queue_url(&queue.url).send().await.unwrap() };
        delete().await;
        let publisher = queue.publisher();
        let batch = events(30);
        let missing = || async {
            let check = publisher.check().await.unwrap_err();
            assert_eq!((check.kind(), check.topic()), (ErrorKind::Misconfigured, None), "{}", check.report());
            assert!(check.report().contains("queue does not exist"), "{}", check.report());
            for outcome in publish(&publisher, &batch).await {
                let error = error(&outcome);
                assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, None), "{}", error.report());
                assert!(error.report().contains("NonExistentQueue"), "{}", error.report());
            }
        };
        missing().await;
        Queue::create_named(&endpoint, &name, &[]).await;
        publisher.check().await.unwrap();
        assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
        assert_eq!(queue.taken_ids(batch.len()).await, ids(&batch));

        delete().await;
        missing().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_users_own_is_used() {
    let Some(endpoint) = url() else { return };
    let queue = Queue::create(&endpoint, Kind::Fifo).await;
    let publisher = SqsPublisher::from_client(client(&endpoint), SqsConfig::new(&queue.url)).unwrap();
    publisher.check().await.unwrap();
    let batch = events(25);
    assert!(publish(&publisher, &batch).await.iter().all(Result::is_ok));
    publisher.close().await;
    assert_eq!(error(&publish(&publisher, &batch).await[0]).kind(), ErrorKind::Unavailable);
    assert_eq!(queue.taken_ids(batch.len()).await, ids(&batch));
}

/// The SDK would send three times by default, and wait as long as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_users_own_does_not_retry_either() {
    let nobody = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", nobody.local_addr().unwrap());
    let options = SqsConfig::new(format!("{endpoint}/1/q")).with_request_timeout(Duration::from_millis(300));
    let options = options.with_connect_timeout(Duration::from_millis(300));
    let publisher = SqsPublisher::from_client(client(&endpoint), options).unwrap();
    let begun = Instant::now();
    assert_eq!(error(&publish(&publisher, &events(1)).await[0]).kind(), ErrorKind::Unconfirmed);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    nobody.set_nonblocking(true).unwrap();
    assert!(nobody.accept().is_ok());
    assert!(nobody.accept().is_err(), "one connection: it was sent once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_without_credentials_is_an_outage() {
    #[derive(Debug)]
    struct Nobody;
    impl aws_sdk_sqs::config::ProvideCredentials for Nobody {
        fn provide_credentials<'a>(&'a self) -> aws_credential_types::provider::future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            let error = aws_credential_types::provider::error::CredentialsError::not_loaded("no role on this machine");
            aws_credential_types::provider::future::ProvideCredentials::ready(Err(error))
        }
    }
    let config = SqsConfig::new("https://sqs.eu-west-1.amazonaws.com/1/q").with_endpoint_url("http://127.0.0.1:9");
    let publisher = SqsPublisher::connect_with(config.clone(), Nobody).unwrap();
    let check = publisher.check().await.unwrap_err();
    assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
    assert!(check.report().contains("no role on this machine"), "{}", check.report());
    assert_eq!(error(&publish(&publisher, &events(1)).await[0]).kind(), ErrorKind::Unavailable);

    let both = SqsPublisher::connect_with(config.clone().with_access_key(KEY, SECRET), Nobody).unwrap_err();
    assert_eq!(both[0].to_string(), "access_key_id: must be absent when a provider gives the credentials");
    let none = SqsPublisher::connect(config).unwrap_err();
    let expected =
        "access_key_id: must be set together with secret_access_key, or a provider must give the credentials";
    assert_eq!(none[0].to_string(), expected);
}

/// The queue's own limit is lower than ours: SQS refuses that one with its figure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_over_the_queues_own_limit_is_rejected_alone() {
    let Some(endpoint) = url() else { return };
    let limit = [(QueueAttributeName::MaximumMessageSize, "2048")];
    let queue = Queue::create_named(&endpoint, &unique_name(Kind::Standard), &limit).await;
    let publisher = queue.publisher();
    let mut batch = events(20);
    batch[7].payload = Payload::bytes(vec![b'x'; 2048], "text/plain");
    let outcomes = publish(&publisher, &batch).await;
    assert_eq!(error(&outcomes[7]).kind(), ErrorKind::Rejected);
    assert!(error(&outcomes[7]).report().contains("shorter than 2048 bytes"), "{}", error(&outcomes[7]).report());
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 19);
    batch.remove(7);
    assert_eq!(queue.taken_ids(19).await, ids(&batch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_works_again_after_the_runtime_that_opened_the_connections_has_ended() {
    let Some(endpoint) = url() else { return };
    let queue = Queue::create(&endpoint, Kind::Standard).await;
    let publisher = std::sync::Arc::new(queue.publisher());
    let first = std::sync::Arc::clone(&publisher);
    let batch = events(2);
    let in_first = batch[0].clone();
    let other_runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { assert!(publish(&*first, &[in_first]).await[0].is_ok()) });
    });
    tokio::task::block_in_place(|| other_runtime.join().unwrap());
    until(|| async { publish(&*publisher, &batch[1..]).await[0].is_ok() }).await;
    let arrived = queue.taken_ids(2).await;
    assert!(ids(&batch).iter().all(|id| arrived.contains(id)));
}
