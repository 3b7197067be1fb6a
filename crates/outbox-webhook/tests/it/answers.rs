//! What each answer means.

use std::time::{Duration, Instant};

use outbox_core::{ErrorKind, PublishError, Publisher};
use outbox_webhook::WebhookPublisher;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::events::{config, event, events, id, kinds, publish, publish_one, publisher};
use crate::receiver::{Receiver, Reply};

async fn refused(reply: Reply) -> (PublishError, WebhookPublisher) {
    let receiver = Receiver::start().await;
    receiver.answer_all(reply);
    let publisher = publisher(receiver.url("/hooks/secret-path-7788"));
    let error = publish_one(&publisher, &event(1)).await.unwrap_err();
    assert!(!error.report().contains("secret-path"), "{}", error.report());
    (error, publisher)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_2xx_confirms_and_only_that() {
    for status in [200, 201, 202, 204, 299] {
        let receiver = Receiver::start().await;
        receiver.answer_all(Reply::status(status));
        publish_one(&publisher(receiver.url("/")), &event(1)).await.unwrap();
    }
    for (status, kind) in [
        (300, ErrorKind::Misconfigured),
        (400, ErrorKind::Failed),
        (401, ErrorKind::Misconfigured),
        (404, ErrorKind::Misconfigured),
        (409, ErrorKind::Failed),
        (410, ErrorKind::Misconfigured),
        (422, ErrorKind::Failed),
        (500, ErrorKind::Failed),
        (502, ErrorKind::Unconfirmed),
        (503, ErrorKind::Throttled),
    ] {
        let (error, publisher) = refused(Reply::status(status)).await;
        assert_eq!(error.kind(), kind, "{status}");
        assert!(error.report().contains(&format!("answered {status}")), "{}", error.report());
        let topic = error.topic().map(str::to_owned);
        let own = publisher.topic(&event(1)).into_owned();
        assert_eq!(topic, (kind == ErrorKind::Misconfigured).then_some(own), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::start().await;
    for status in [301, 302, 303, 307, 308] {
        let (error, _) = refused(Reply::with(status, "location", elsewhere.url("/secret-place?t=1"))).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        let report = error.report();
        assert!(report.contains("a redirect to http://localhost, which is not followed"), "{report}");
        assert!(!report.contains("secret-place"), "{report}");
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_is_shown_cleaned_and_short() {
    let (error, _) = refused(Reply::text(422, "total must\r\nbe positive\u{7}")).await;
    let report = error.report();
    assert!(report.ends_with("answered 422 Unprocessable Entity: \"total must be positive\""), "{report}");
    let (error, _) = refused(Reply::text(400, "y".repeat(1_000_000))).await;
    assert!((1000..1200).contains(&error.report().len()), "{}", error.report().len());
    let (error, _) = refused(Reply::text(400, "cannot parse {\"number\":1} here")).await;
    assert!(error.report().ends_with("its text is not shown: it repeats the event"), "{}", error.report());
}

/// The endpoint asks to wait: nothing more is sent, and each event says so, until the time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_honoured() {
    for status in [429, 503] {
        let receiver = Receiver::start().await;
        receiver.answer_all(Reply::with(status, "retry-after", "2"));
        let publisher = WebhookPublisher::connect(config(receiver.url("/")).with_max_in_flight(1)).unwrap();
        let begun = Instant::now();
        let outcomes = publish(&publisher, &events(50)).await;
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap_err().kind() == ErrorKind::Throttled));
        assert_eq!(receiver.received().len(), 1, "one was sent, the others were held back");
        let held = outcomes[1].as_ref().unwrap_err().report();
        assert!(held.contains("asked to wait (Retry-After)"), "{held}");
        assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Throttled);

        receiver.answer_all(Reply::status(204));
        let kept = event(51);
        let mut tries = tokio::time::interval(Duration::from_millis(20));
        while let Err(error) = publish_one(&publisher, &kept).await {
            assert_eq!(error.kind(), ErrorKind::Throttled);
            tries.tick().await;
        }
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(30), "{waited:?}");
        assert_eq!(receiver.ids()[1..], [id(&kept)]);
        publisher.check().await.unwrap();
    }
}

/// Without `Retry-After` the relay paces by itself: nothing is held back here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_429_holds_nothing_back() {
    let receiver = Receiver::start().await;
    receiver.answer_all(Reply::status(429));
    let publisher = publisher(receiver.url("/"));
    for number in 1..=3 {
        assert_eq!(publish_one(&publisher, &event(number)).await.unwrap_err().kind(), ErrorKind::Throttled);
    }
    assert_eq!(receiver.received().len(), 3);
}

/// The endpoint's own limit is lower than ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_for_the_endpoint_is_rejected_with_our_size() {
    let (error, _) = refused(Reply::status(413)).await;
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(error.report().contains("answered 413 Payload Too Large (the body has 12 bytes"), "{}", error.report());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_pauses_only_the_url_that_refuses() {
    let receiver = Receiver::start().await;
    receiver.answer(|received| Reply::status(if received.path == "/order/2" { 404 } else { 204 }));
    let publisher = publisher(receiver.url("/{aggregate_type}/{aggregate_id}"));
    let batch = events(3);
    let outcomes = publish(&publisher, &batch).await;
    assert_eq!(kinds(&outcomes), [Ok(()), Err(ErrorKind::Misconfigured), Ok(())]);
    let topic = outcomes[1].as_ref().unwrap_err().topic().unwrap().to_owned();
    assert_eq!(topic, publisher.topic(&batch[1]));
    assert_ne!(topic, publisher.topic(&batch[0]));
}

/// Answers with raw bytes, once each, and closes.
async fn raw(answer: &'static [u8]) -> (WebhookPublisher, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serve = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert!(stream.read_buf(&mut request).await.unwrap() > 0);
        }
        stream.write_all(answer).await.unwrap();
        // Open until the publisher has made up its mind: what it answers must not depend on the end.
        let _ = stream.read_buf(&mut request).await;
    });
    (publisher(url), serve)
}

/// A port that was mistaken: what listens there greets, or hangs up on what it does not understand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closer_look_tells_a_server_of_another_protocol() {
    for greeting in [b"".as_slice(), b"INFO {\"server_id\":\"N\"}\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/hooks/secret-path-7788", listener.local_addr().unwrap());
        let serve = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // The one who checks may have gone.
                let _ = stream.write_all(greeting).await;
                let _ = stream.read_buf(&mut Vec::new()).await;
            }
        });
        let publisher = publisher(url);
        publisher.check().await.unwrap();
        let error = publisher.examine().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{}", error.report());
        assert!(error.report().contains("is no HTTP server") && !error.report().contains("7788"), "{}", error.report());
        serve.abort();
    }
    let receiver = Receiver::start().await;
    for status in [204, 404, 405, 500] {
        receiver.answer_all(Reply::status(status));
        publisher(receiver.url("/")).examine().await.unwrap();
    }
}

/// The status is the answer, whatever comes of the body after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_hangs_or_breaks_off_changes_nothing() {
    let begun = Instant::now();
    let (well, _serve) = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart").await;
    publish_one(&well, &event(1)).await.unwrap();
    let (bad, _serve) = raw(b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n").await;
    let error = publish_one(&bad, &event(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.report().ends_with("\"part\""), "{}", error.report());
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// What is no HTTP, or ends early, is no answer: unconfirmed, and no panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_no_answer() {
    for nonsense in [
        b"SSH-2.0-OpenSSH_9.2\r\n".as_slice(),
        b"HTTP/1.1 2",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\r\n\r\n",
    ] {
        let (publisher, serve) = raw(nonsense).await;
        let error = publish_one(&publisher, &event(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{}", error.report());
        serve.abort();
    }
    let (publisher, _serve) = raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n").await;
    publish_one(&publisher, &event(1)).await.unwrap();
}
