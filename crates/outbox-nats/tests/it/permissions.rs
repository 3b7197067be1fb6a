//! Permissions that are missing: the server says so out of line (field report B51).

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, Publisher};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::publisher_suite::EVENT_TYPE;

use crate::server::{LINES, assert_all_ok, error, events, own_with, publish};

fn users(publish: &str, subscribe: &str) -> String {
    format!(
        "authorization {{ users: [\n\
           {{ user: admin, password: a }}\n\
           {{ user: relay, password: r, permissions: {{ publish: [{publish}], subscribe: [{subscribe}] }} }}\n\
         ] }}\n"
    )
}

async fn create_stream(url: &str) {
    let options = async_nats::ConnectOptions::with_user_and_password("admin".into(), "a".into());
    let jetstream = async_nats::jetstream::new(options.connect(url).await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "ALL".into(),
        subjects: vec!["orders.>".into(), "billing.>".into()],
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
}

fn config(url: &str) -> NatsConfig {
    NatsConfig::new(url, "{aggregate_type}.{event_type}").with_user_and_password("relay", "r")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_without_permission_waits_alone_until_it_is_granted() {
    for line in LINES {
        let inbox = "\"_INBOX.>\"";
        let Some(mut server) = own_with(line, &users("\"orders.>\"", inbox)) else { return };
        create_stream(&server.url()).await;
        let publisher = NatsPublisher::connect(config(&server.url())).unwrap();
        publisher.check().await.unwrap(); // though it may not even ask JetStream
        let mut batch = events(300);
        batch.iter_mut().for_each(|event| event.aggregate_type = "orders".into());
        batch.iter_mut().step_by(3).for_each(|event| event.aggregate_type = "billing".into());
        let begun = Instant::now();
        let outcomes = publish(&publisher, &batch).await;
        for (event, outcome) in batch.iter().zip(&outcomes) {
            assert_eq!(outcome.is_ok(), event.aggregate_type == "orders", "{outcome:?}");
            if let Err(error) = outcome {
                let topic = format!("billing.{EVENT_TYPE}");
                assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some(topic.as_str())));
                assert!(error.report().to_lowercase().contains("permissions violation for publish"), "{error:?}");
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "not a time-out: {:?}", begun.elapsed());

        tokio::task::block_in_place(|| server.reload(&users("\"orders.>\", \"billing.>\"", inbox))).unwrap();
        crate::server::until(|| async { publish(&publisher, &batch).await.iter().all(Result::is_ok) }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_permission_to_receive_answers_the_destination_is_misconfigured_until_it_is_granted() {
    for line in LINES {
        let all = "\">\"";
        let Some(mut server) = own_with(line, &users(all, "\"nothing\"")) else { return };
        create_stream(&server.url()).await;
        let publisher = NatsPublisher::connect(config(&server.url())).unwrap();
        let mut batch = events(20);
        batch.iter_mut().for_each(|event| event.aggregate_type = "orders".into());
        for _ in 0..2 {
            let check = publisher.check().await.unwrap_err();
            assert_eq!((check.kind(), check.topic()), (ErrorKind::Misconfigured, None), "{}", check.report());
            assert!(check.report().to_lowercase().contains("permissions violation for subscription"));
            for outcome in publish(&publisher, &batch).await {
                let error = error(&outcome);
                assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, None), "{}", error.report());
            }
        }
        tokio::task::block_in_place(|| server.reload(&users(all, "\"_INBOX.>\""))).unwrap();
        publisher.check().await.unwrap();
        assert_all_ok(&publish(&publisher, &batch).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_login_is_an_outage_and_shows_no_password() {
    for line in LINES {
        let Some(server) = own_with(line, &users("\">\"", "\">\"")) else { return };
        let wrong = [
            NatsConfig::new(server.url().replace("://", "://relay:hunter2@"), "x"),
            NatsConfig::new(server.url(), "x").with_token("hunter2"),
            NatsConfig::new(server.url(), "x"),
        ];
        for config in wrong {
            let publisher = NatsPublisher::connect(config).unwrap();
            let check = publisher.check().await.unwrap_err();
            assert_eq!(check.kind(), ErrorKind::Unavailable, "{}", check.report());
            assert!(check.report().contains("authorization violation"), "{}", check.report());
            let outcomes = publish(&publisher, &events(1)).await;
            let error = error(&outcomes[0]);
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
            for text in [error.report(), format!("{error:?}"), check.report(), format!("{publisher:?}")] {
                assert!(!text.contains("hunter2"), "{text}");
            }
        }
    }
}

/// Nobody says then that no stream takes the subject: the events stay unconfirmed, and no check puts the blame on them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_ask_for_the_stream_is_told_so_and_charges_nobody() {
    for line in LINES {
        let Some(server) = own_with(line, &users("\"orders.>\"", "\"_INBOX.>\"")) else { return };
        let options = async_nats::ConnectOptions::with_user_and_password("admin".into(), "a".into());
        let listener = options.connect(server.url()).await.unwrap();
        let _listens = listener.subscribe("orders.>").await.unwrap();
        listener.flush().await.unwrap();
        let short = config(&server.url()).with_confirm_timeout(Duration::from_millis(500));
        let publisher = NatsPublisher::connect(short).unwrap();
        let mut batch = events(1);
        batch[0].aggregate_type = "orders".into();
        for _ in 0..2 {
            let outcomes = publish(&publisher, &batch).await;
            let error = error(&outcomes[0]);
            assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{}", error.report());
            assert!(error.report().contains("allow this user to publish on `$JS.API.STREAM.NAMES`"));
            let check = publisher.check().await.unwrap_err();
            assert_eq!(check.report(), error.report());
        }
    }
}
