//! Over a client of the caller's own.

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use outbox_core::{ErrorKind, Publisher};
use outbox_webhook::{PrivateAddresses, WebhookConfig, WebhookPublisher};

use crate::events::{config, event, events, publish, publish_one};
use crate::receiver::{Receiver, SECRET};

fn client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_used_for_every_request() {
    let receiver = Receiver::start().await;
    let publisher = WebhookPublisher::from_client(client(), config(receiver.url("/"))).unwrap();
    publisher.check().await.unwrap();
    assert!(publish(&publisher, &events(50)).await.iter().all(Result::is_ok));
    assert!(receiver.received().iter().all(|request| request.is_signed_by(SECRET)));
    drop(receiver);
    let mut kinds = Vec::new();
    // A connection that was open may still be served once.
    while kinds.last() != Some(&Some(ErrorKind::Unavailable)) {
        kinds.push(publish_one(&publisher, &event(1)).await.err().map(|error| error.kind()));
        assert!(kinds.len() < 100, "{kinds:?}");
    }
    publisher.close().await;
    assert_eq!(publisher.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn what_it_cant_keep_is_refused() {
    let options = WebhookConfig::new("https://h", SECRET).with_private_addresses(PrivateAddresses::Refuse);
    let errors = WebhookPublisher::from_client(client(), options.with_max_in_flight(0)).unwrap_err();
    let fields: Vec<_> = errors.iter().map(|error| error.field).collect();
    assert_eq!(fields, ["max_in_flight", "private_addresses"]);
}
