//! No payload and no password in the log of the process.

use std::io::Write;
use std::sync::{Arc, Mutex};

use lapin::{Connection, ConnectionProperties};
use outbox_core::{ErrorKind, Payload};
use outbox_rabbitmq::RabbitMqPublisher;
use tracing_subscriber::filter::LevelFilter;

use crate::broker::{Broker, Kind, error, events, publish, url};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The client library logs returned messages with their payload, as a list of numbers. The second half shows that this
/// test would see it: should it ever fail there, the library has mended its ways and our precaution can go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_payload_of_a_returned_message_is_not_logged() {
    let Some(url) = url() else { return };
    let log = Log::default();
    let writer = log.clone();
    // The library logs on a thread of its own, so only a subscriber for the whole process sees it.
    tracing_subscriber::fmt().with_max_level(LevelFilter::DEBUG).with_writer(move || writer.clone()).init();
    let broker = Broker::bound(&url, Kind::Classic).await;
    let mut batch = events(1);
    batch[0].event_type = "astray".to_owned();
    batch[0].payload = Payload::bytes("secret-card-number", "text/plain");
    let shown = |log: &Log| {
        let text = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
        let numbers = format!("{:?}", b"secret-card-number");
        (text.contains("secret-card-number") || text.contains(&numbers), text)
    };

    let outcomes = publish(&broker.publisher(), &batch).await;
    assert_eq!(error(&outcomes[0]).kind(), ErrorKind::Misconfigured);
    let (leaked, text) = shown(&log);
    assert!(!leaked, "{text}");
    assert!(text.contains("connected to rabbitmq"), "our own lines are there: {text}");
    let userinfo = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(userinfo, _)| userinfo);
    assert!(userinfo.is_none_or(|userinfo| !text.contains(userinfo)), "{text}");

    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let bare = RabbitMqPublisher::from_connection(connection, broker.config()).unwrap();
    publish(&bare, &batch).await;
    assert!(shown(&log).0, "the client library no longer logs payloads");
    broker.close().await;
}
