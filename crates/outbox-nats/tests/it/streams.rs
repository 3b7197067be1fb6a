//! Streams that are missing, full, sealed or others than expected; ids that a stream knows already.

use futures_util::StreamExt;
use outbox_core::{ErrorKind, Publisher, Receipt};
use outbox_nats::NatsPublisher;
use outbox_testkit::services::nats::Version;

use crate::server::{
    LINES, Place, arrived_ids, assert_all_ok, error, events, ids, publish, publish_until_confirmed, until, url,
};

/// Field report B46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_stream_stops_the_topic_until_it_is_created() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::bare(&url).await;
        let publisher = place.publisher();
        let to_one_subject = NatsPublisher::connect(place.config().with_topic(place.subject())).unwrap();
        let batch = events(30);
        for outcome in publish(&publisher, &batch).await {
            let error = error(&outcome);
            let subject = place.subject();
            assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some(subject.as_str())));
            let expected = format!("no stream takes the subject `{subject}`; add it to the subjects of a stream");
            assert_eq!(error.report(), expected);
            assert_eq!(error.topic(), Some(&*publisher.topic(&batch[0])));
        }
        // Where all events go to one subject the check tells it before any is sent.
        publisher.check().await.unwrap();
        let check = to_one_subject.check().await.unwrap_err();
        assert_eq!((check.kind(), check.topic()), (ErrorKind::Misconfigured, None), "{}", check.report());

        place.create_stream(|_| {}).await;
        to_one_subject.check().await.unwrap();
        assert_all_ok(&publish(&publisher, &batch).await);
        assert_eq!(arrived_ids(&place.arrived().await), ids(&batch), "nothing of the first try was kept");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_stream_throttles_and_all_arrive_once_there_is_room() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::bare(&url).await;
        place
            .create_stream(|config| {
                config.max_messages = 50;
                config.discard = async_nats::jetstream::stream::DiscardPolicy::New;
            })
            .await;
        let publisher = place.publisher();
        let batch = events(80);
        let outcomes = publish(&publisher, &batch).await;
        let refused: Vec<_> = batch.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err()).collect();
        assert_eq!(refused.len(), 30);
        for (_, outcome) in &refused {
            let error = error(outcome);
            assert_eq!((error.kind(), error.topic()), (ErrorKind::Throttled, None), "{}", error.report());
            assert!(error.report().contains("maximum messages exceeded (10077)"), "{}", error.report());
        }
        place.stream().await.purge().await.unwrap();
        let left: Vec<_> = refused.iter().map(|(event, _)| (*event).clone()).collect();
        assert_all_ok(&publish(&publisher, &left).await);
    }
}

/// Field report B49: what the stream has dropped is never reported as a plain success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_copy_within_the_window_is_a_duplicate_even_when_the_first_is_gone() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::with_stream(&url).await;
        let publisher = place.publisher();
        let batch = events(3);
        assert!(
            publish(&publisher, &batch).await.iter().all(|outcome| *outcome.as_ref().unwrap() == Receipt::confirmed())
        );
        place.stream().await.delete_message(2).await.unwrap();
        let again = publish(&publisher, &batch).await;
        assert!(again.iter().all(|outcome| *outcome.as_ref().unwrap() == Receipt::duplicate()), "{again:?}");
        assert_eq!(place.stream().await.info().await.unwrap().state.messages, 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_stream_than_the_expected_one_is_misconfigured() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::with_stream(&url).await;
        let other = NatsPublisher::connect(place.config().with_expected_stream("OTHER")).unwrap();
        let outcomes = publish(&other, &events(2)).await;
        let error = error(&outcomes[0]);
        assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some(place.subject().as_str())));
        assert!(error.report().contains("(10060) (expected_stream is `OTHER`)"), "{}", error.report());
        let config = place.config().with_topic(place.subject());
        let check = NatsPublisher::connect(config.clone().with_expected_stream("OTHER")).unwrap().check().await;
        assert_eq!(check.unwrap_err().kind(), ErrorKind::Misconfigured);

        let right = NatsPublisher::connect(config.with_expected_stream(&place.prefix)).unwrap();
        right.check().await.unwrap();
        assert_all_ok(&publish(&right, &events(2)).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_stream_is_misconfigured() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::with_stream(&url).await;
        let mut config = place.stream().await.info().await.unwrap().config.clone();
        config.sealed = true;
        place.jetstream.update_stream(config).await.unwrap();
        let outcomes = publish(&place.publisher(), &events(1)).await;
        let error = error(&outcomes[0]);
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{}", error.report());
        assert!(error.topic().is_some() && error.report().contains("sealed"), "{}", error.report());
    }
}

/// Listens on all subjects of the test without a stream, and answers with these words if any.
async fn ordinary_subscriber(place: &Place, words: Option<&'static str>) -> tokio::task::JoinHandle<()> {
    let client = async_nats::connect(&place.url).await.unwrap();
    let mut requests = client.subscribe(format!("{}.>", place.prefix)).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            if let Some(words) = words {
                client.publish(request.reply.unwrap(), words.into()).await.unwrap();
            }
        }
    })
}

const SHORT: std::time::Duration = std::time::Duration::from_millis(500);

/// An ordinary subscriber confirms nothing, whether it answers or not, and hides from the server's "no responders" that
/// no stream takes the subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_with_an_ordinary_subscriber_instead_of_a_stream_is_misconfigured() {
    let words = [None, Some("{\"ok\":true}"), Some(r#"{"error":{"code":400,"description":"no such order"}}"#)];
    for (line, words) in LINES.into_iter().flat_map(|line| words.map(|words| (line, words))) {
        let Some(url) = url(line) else { return };
        let place = Place::bare(&url).await;
        let subscriber = ordinary_subscriber(&place, words).await;
        let alone = NatsPublisher::connect(place.config().with_confirm_timeout(SHORT)).unwrap();
        let mut batch = events(20);
        batch[7].event_type = "other".to_owned();
        for (event, outcome) in batch.iter().zip(publish(&alone, &batch).await) {
            let (error, subject) = (error(&outcome), alone.topic(event));
            assert_eq!((error.kind(), error.topic()), (ErrorKind::Misconfigured, Some(&*subject)), "{words:?}");
            let expected = format!(
                "no acknowledgement within confirm_timeout (500ms): no stream takes the subject `{subject}`; add it to the subjects of a stream"
            );
            assert_eq!(error.report(), expected);
        }
        alone.check().await.unwrap();

        place.create_stream(|_| {}).await;
        assert_all_ok(&publish(&place.publisher(), &batch).await);
        assert_eq!(arrived_ids(&place.arrived().await), ids(&batch), "beside the stream it does no harm");
        subscriber.abort();
    }
}

/// The relay charges an event that was sent alone and not answered when the check that follows is good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_does_not_acknowledge_is_no_events_fault() {
    for line in LINES {
        let Some(url) = url(line) else { return };
        let place = Place::bare(&url).await;
        place.create_stream(|config| config.no_ack = true).await;
        let publisher = NatsPublisher::connect(place.config().with_confirm_timeout(SHORT)).unwrap();
        for event in events(2) {
            let outcomes = publish(&publisher, &[event]).await;
            assert_eq!(error(&outcomes[0]).kind(), ErrorKind::Unconfirmed, "{outcomes:?}");
            let check = publisher.check().await.unwrap_err();
            assert_eq!(check.report(), "no acknowledgement within confirm_timeout (500ms)");
            publisher.check().await.unwrap(); // so that it is tried again
        }
        let mut config = place.stream().await.info().await.unwrap().config.clone();
        config.no_ack = false;
        place.jetstream.update_stream(config).await.unwrap();
        publish_until_confirmed(&publisher, &events(1)[0]).await;
        publisher.check().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_users_own_is_used_and_left_open() {
    let Some(url) = url(Version::New) else { return };
    let place = Place::with_stream(&url).await;
    let client = async_nats::ConnectOptions::new().custom_inbox_prefix("_INBOX_relay").connect(&url).await.unwrap();
    let publisher = NatsPublisher::from_client(client.clone(), place.config()).unwrap();
    let batch = events(10);
    assert_all_ok(&publish(&publisher, &batch).await);
    publisher.check().await.unwrap();
    publisher.close().await;
    publisher.close().await;
    assert_eq!(error(&publish(&publisher, &batch).await[0]).kind(), ErrorKind::Unavailable);
    assert_eq!(arrived_ids(&place.arrived().await), ids(&batch));
    client.publish("still.open", "".into()).await.unwrap();
    assert_eq!(client.connection_state(), async_nats::connection::State::Connected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_works_again_after_the_runtime_that_opened_the_connection_has_ended() {
    let Some(url) = url(Version::New) else { return };
    let place = Place::with_stream(&url).await;
    let publisher = std::sync::Arc::new(place.publisher());
    let batch = events(2);
    let (first, in_first) = (std::sync::Arc::clone(&publisher), batch[0].clone());
    let other_runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { assert!(publish(&*first, &[in_first]).await[0].is_ok()) });
    });
    tokio::task::block_in_place(|| other_runtime.join().unwrap());
    until(|| async { publish(&*publisher, &batch[1..]).await[0].is_ok() }).await;
    assert_eq!(arrived_ids(&place.arrived().await), ids(&batch));
    publish_until_confirmed(&*publisher, &batch[0]).await;
}
