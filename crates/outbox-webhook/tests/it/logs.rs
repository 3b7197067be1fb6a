//! No payload and no secret in the log of the process, whatever its level.

use std::io::Write;
use std::sync::{Arc, Mutex};

use outbox_core::Payload;
use outbox_webhook::WebhookPublisher;
use tracing_subscriber::filter::LevelFilter;

use crate::events::{config, events, publish};
use crate::receiver::{Receiver, Reply, SECRET};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_payload_nor_secret_is_logged() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(move || writer.clone()).init();
    let receiver = Receiver::start().await;
    let config = config(receiver.url("/path-7788?query-7788")).with_authorization("token-7788");
    let publisher = WebhookPublisher::connect(config).unwrap();
    let mut batch = events(2);
    batch[0].payload = Payload::bytes("payload-7788", "text/plain");
    batch[0].headers.insert("x".into(), "header-7788".into());
    for reply in [Reply::status(204), Reply::status(400), Reply::Cut] {
        receiver.answer_all(reply);
        publish(&publisher, &batch).await;
    }
    let text = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(text.contains("hyper_util"), "the client's own lines are looked at too: {text}");
    assert!(!text.contains("7788") && !text.contains(&SECRET[6..]), "{text}");
}
