//! The conformance suite, over http and https.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Publisher};
use outbox_testkit::certificates::{Authority, Validity};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};
use outbox_webhook::{WebhookConfig, WebhookPublisher};
use tokio::sync::Mutex;

use crate::receiver::{Receiver, Reply, SECRET};

mod http {
    outbox_testkit::publisher_suite!(super::plain);
}

mod https {
    outbox_testkit::publisher_suite!(super::encrypted);
}

const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Long enough for a healthy endpoint on a busy machine, short enough for the suite.
const SHORT: Duration = Duration::from_millis(2500);
const AUTHORIZATION: &str = "Bearer token-that-must-not-be-shown";
const SECRET_PATH: &str = "path-that-must-not-be-shown";

async fn plain() -> Option<Proxied> {
    Some(Proxied::new(Receiver::start().await, None).await)
}

async fn encrypted() -> Option<Proxied> {
    let authority = Authority::new();
    let receiver = Receiver::start_tls(&authority.issue("localhost", Validity::Valid), None).await;
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), authority.pem()).unwrap();
    Some(Proxied::new(receiver, Some(ca)).await)
}

struct Proxied {
    receiver: Receiver,
    addr: SocketAddr,
    /// `None` while the endpoint is away.
    proxy: Mutex<Option<FaultProxy>>,
    config: WebhookConfig,
    ca: Option<tempfile::NamedTempFile>,
}

impl Proxied {
    async fn new(receiver: Receiver, ca: Option<tempfile::NamedTempFile>) -> Self {
        let proxy = FaultProxy::start(receiver.addr.to_string()).await.unwrap();
        let addr = proxy.addr();
        receiver.answer(usual);
        let scheme = if ca.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://localhost:{}/{SECRET_PATH}?{SECRET_PATH}", addr.port());
        let mut config = WebhookConfig::new(url, SECRET)
            .with_authorization(AUTHORIZATION)
            .with_header("x-api-key", AUTHORIZATION)
            .with_max_message_bytes(MAX_MESSAGE_BYTES);
        if let Some(ca) = &ca {
            config = config.with_ca_file(ca.path());
        }
        Self { receiver, addr, proxy: Mutex::new(Some(proxy)), config, ca }
    }

    fn impatient(&self) -> WebhookConfig {
        self.config.clone().with_request_timeout(SHORT).with_connect_timeout(SHORT)
    }

    async fn heal(&self) {
        self.receiver.answer(usual);
        let mut proxy = self.proxy.lock().await;
        match &*proxy {
            Some(proxy) => {
                proxy.cut();
                proxy.set_mode(Mode::Pass);
            }
            None => *proxy = Some(FaultProxy::start_at(self.addr, self.receiver.addr.to_string()).await.unwrap()),
        }
    }
}

/// One path exists; others are told so with everything that was sent, as debugging servers do.
fn usual(received: &crate::receiver::Received) -> Reply {
    if received.path.starts_with(&format!("/{SECRET_PATH}")) {
        return Reply::status(204);
    }
    let body = String::from_utf8_lossy(&received.body);
    Reply::text(404, format!("no such path: {} {:?} {body}", received.path, received.headers))
}

fn connect(config: WebhookConfig) -> Arc<dyn Publisher> {
    Arc::new(WebhookPublisher::connect(config).unwrap())
}

#[async_trait]
impl PublisherHarness for Proxied {
    fn claims(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes(MAX_MESSAGE_BYTES)
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        connect(self.config.clone())
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        connect(Self::impatient(self))
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        let mut config = Self::impatient(self);
        config.url = config.url.replacen(SECRET_PATH, "missing", 1);
        Some(connect(config))
    }

    async fn arrived(&self, count: usize) -> Vec<Arrived> {
        let received = self.receiver.received_at_least(count).await;
        let arrived = received.into_iter().filter(|received| received.path.starts_with(&format!("/{SECRET_PATH}")));
        arrived
            .map(|received| {
                // The reference library takes a body for text, so it can't say anything about other bytes.
                let is_text = std::str::from_utf8(&received.body).is_ok();
                assert!(!is_text || received.is_signed_by(SECRET), "{received:?}");
                Arrived { event_id: received.id().to_owned(), headers: received.decoded(), body: received.body }
            })
            .collect()
    }

    async fn set_fault(&self, fault: Fault) -> bool {
        // Behind TLS a connection that is made during the fault ends in the handshake, where nothing was sent yet. What
        // these faults are about is a request whose answer is missing: there the endpoint itself misbehaves.
        match (fault, &self.ca) {
            (Fault::None, _) => self.heal().await,
            // A real refusal: no socket listens. An accepted connection that is reset could have been written to.
            (Fault::Refuse, _) => {
                if let Some(proxy) = self.proxy.lock().await.take() {
                    proxy.stop().await;
                }
            }
            (Fault::Blackhole, Some(_)) => self.receiver.answer_all(Reply::Hang),
            (Fault::CutReplies, Some(_)) => self.receiver.answer_all(Reply::Cut),
            (Fault::Blackhole, None) => self.set_mode(Mode::Blackhole).await,
            (Fault::CutReplies, None) => self.set_mode(Mode::CutReplies).await,
        }
        true
    }

    fn secrets(&self) -> Vec<String> {
        let encoded = SECRET.trim_start_matches("whsec_").to_owned();
        vec![self.config.url.clone(), SECRET_PATH.to_owned(), encoded, AUTHORIZATION[7..].to_owned()]
    }
}

impl Proxied {
    async fn set_mode(&self, mode: Mode) {
        if let Some(proxy) = &*self.proxy.lock().await {
            proxy.set_mode(mode);
        }
    }
}
