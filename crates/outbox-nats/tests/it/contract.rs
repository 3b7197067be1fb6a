//! The conformance suite, per line of the server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Publisher};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::publisher_suite::{Arrived, Fault, PATIENCE, PublisherHarness};
use outbox_testkit::services::nats::Version;
use tokio::sync::Mutex;

use crate::server::{Place, own_with};

mod new_server {
    outbox_testkit::publisher_suite!(super::new_server_behind_a_proxy);
}

mod old_server {
    outbox_testkit::publisher_suite!(super::old_server_behind_a_proxy);
}

/// With headers it is below the servers' default for `max_payload`.
const MAX_MESSAGE_BYTES: usize = 1 << 19;
/// Long enough for a healthy server on a busy machine, short enough for the suite.
const SHORT: Duration = Duration::from_millis(1500);
const PASSWORD: &str = "correct-horse";

async fn new_server_behind_a_proxy() -> Option<Proxied> {
    proxied(Version::New).await
}

async fn old_server_behind_a_proxy() -> Option<Proxied> {
    proxied(Version::Old).await
}

async fn proxied(line: Version) -> Option<Proxied> {
    // A server of its own, for the password that must not be shown; it starts in 0.1 s.
    let server = own_with(line, &format!("authorization {{ user: relay, password: \"{PASSWORD}\" }}\n"))?;
    let url = server.url().replace("://", &format!("://relay:{PASSWORD}@"));
    let proxy = FaultProxy::start(format!("127.0.0.1:{}", server.port())).await.unwrap();
    let options = async_nats::ConnectOptions::with_user_and_password("relay".to_owned(), PASSWORD.to_owned());
    let place = Place::over(&url, options.connect(server.url()).await.unwrap());
    place.create_stream(|_| {}).await;
    let config = NatsConfig::new(proxy.url_for(&url), place.template()).with_max_message_bytes(MAX_MESSAGE_BYTES);
    Some(Proxied { _server: server, place, proxy, config, arrived: Mutex::new((1, Vec::new())) })
}

struct Proxied {
    _server: outbox_testkit::services::nats::Nats,
    place: Place,
    proxy: FaultProxy,
    config: NatsConfig,
    arrived: Mutex<(u64, Vec<Arrived>)>,
}

impl Proxied {
    fn impatient(&self) -> NatsConfig {
        self.config.clone().with_confirm_timeout(SHORT).with_connect_timeout(SHORT)
    }
}

fn connect(config: NatsConfig) -> Arc<dyn Publisher> {
    Arc::new(NatsPublisher::connect(config).unwrap())
}

#[async_trait]
impl PublisherHarness for Proxied {
    fn claims(&self) -> Capabilities {
        Capabilities::CAUTIOUS.deduplicating().with_max_event_bytes(MAX_MESSAGE_BYTES)
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        connect(self.config.clone())
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        connect(Self::impatient(self))
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        Some(connect(Self::impatient(self).with_topic("nowhere.{event_type}")))
    }

    async fn arrived(&self, count: usize) -> Vec<Arrived> {
        let mut arrived = self.arrived.lock().await;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut look = tokio::time::interval(Duration::from_millis(20));
        loop {
            let (next, so_far) = &mut *arrived;
            self.place.read(next, so_far).await;
            if so_far.len() >= count || tokio::time::Instant::now() >= deadline {
                return so_far.clone();
            }
            look.tick().await;
        }
    }

    async fn set_fault(&self, fault: Fault) -> bool {
        match fault {
            Fault::None => {
                self.proxy.cut();
                self.proxy.set_mode(Mode::Pass);
            }
            Fault::Refuse => self.proxy.set_mode(Mode::Refuse),
            Fault::Blackhole => self.proxy.set_mode(Mode::Blackhole),
            Fault::CutReplies => self.proxy.set_mode(Mode::CutReplies),
        }
        true
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned(), self.config.url.clone()]
    }
}
