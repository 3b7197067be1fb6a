//! What stands on the wire, byte for byte.

use std::net::Ipv4Addr;

use outbox_core::{EventId, Headers};
use outbox_webhook::WebhookPublisher;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::events::{config, event, publish_one, publisher};
use crate::receiver::{Receiver, SECRET};

const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// The request as it leaves the socket, but for what differs each time: port, time and signature.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plain_request() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"{\"number\":7}") {
            assert!(stream.read_buf(&mut request).await.unwrap() > 0, "{}", String::from_utf8_lossy(&request));
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        String::from_utf8(request).unwrap()
    });
    let mut event = event(7);
    event.event_id = EventId::from_uuid("0190a6e4-0000-7000-8000-00000000002a".parse().unwrap());
    event.aggregate_id = "42/ü".to_owned();
    event.headers = Headers::from([
        ("traceparent".to_owned(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ("Tenant".to_owned(), "a \"b\" 100%".to_owned()),
    ]);
    let config = config(format!("http://127.0.0.1:{port}/hooks/{{aggregate_type}}/{{aggregate_id}}?v=1"))
        .with_authorization("Bearer token")
        .with_header("X-Source", "shop");
    publish_one(&WebhookPublisher::connect(config).unwrap(), &event).await.unwrap();

    let request = serve.await.unwrap();
    let lines = request.split_inclusive("\r\n").map(|line| match line.split_once(": ") {
        Some(("webhook-timestamp", _)) => "webhook-timestamp: 1614265330\r\n".to_owned(),
        Some(("webhook-signature", value)) => {
            assert!(value.starts_with("v1,") && value.trim_end().len() == 47, "{value}");
            "webhook-signature: v1,...\r\n".to_owned()
        }
        Some(("host", _)) => "host: 127.0.0.1\r\n".to_owned(),
        _ => line.to_owned(),
    });
    let found: String = lines.collect::<String>().replace("\r\n", "\n");
    let golden = include_str!("golden/plain.http");
    assert_eq!(found, golden.trim_end_matches('\n'), "\n--- found ---\n{found}\n---");
}

/// Both signatures are there while a secret is replaced, and a copy is signed anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_secret_signs_each_request() {
    let receiver = Receiver::start().await;
    let mut config = config(receiver.url("/"));
    config.secret = format!("{OTHER_SECRET}\n{SECRET}\n");
    let publisher = WebhookPublisher::connect(config).unwrap();
    let event = event(1);
    for _ in 0..2 {
        publish_one(&publisher, &event).await.unwrap();
    }
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    for request in received {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/"));
        assert_eq!(request.id(), event.event_id.to_string());
        assert!(request.is_signed_by(SECRET) && request.is_signed_by(OTHER_SECRET));
        assert!(!request.is_signed_by("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsigned_request_has_an_id_and_no_signature() {
    let receiver = Receiver::start().await;
    let mut config = config(receiver.url("/")).unsigned();
    config.secret = String::new();
    publish_one(&WebhookPublisher::connect(config).unwrap(), &event(1)).await.unwrap();
    let headers = receiver.received().remove(0).headers;
    assert!(headers.contains_key("webhook-id") && !headers.contains_key("webhook-signature"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_kept() {
    let receiver = Receiver::start().await;
    let publisher = publisher(receiver.url("/"));
    for number in 1..=20 {
        publish_one(&publisher, &event(number)).await.unwrap();
    }
    // The client may not have taken one back yet when the next request comes.
    assert!(receiver.connections() <= 3, "{}", receiver.connections());
}
