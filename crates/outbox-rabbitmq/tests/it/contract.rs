//! The conformance suite, per kind of queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Publisher};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};
use tokio::sync::Mutex;

use crate::broker::{Broker, Kind, url};

mod classic {
    outbox_testkit::publisher_suite!(super::classic_queue);
}

mod quorum {
    outbox_testkit::publisher_suite!(super::quorum_queue);
}

const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Long enough for a healthy broker on a busy machine, short enough for the suite.
const SHORT: Duration = Duration::from_millis(1500);

async fn classic_queue() -> Option<Proxied> {
    proxied(Kind::Classic).await
}

async fn quorum_queue() -> Option<Proxied> {
    proxied(Kind::Quorum).await
}

async fn proxied(kind: Kind) -> Option<Proxied> {
    let url = url()?;
    let (_, authority) = url.split_once("://")?;
    let host = authority.split('/').next()?.rsplit('@').next()?;
    let proxy = FaultProxy::start(host).await.unwrap();
    let broker = Broker::bound(&url, kind).await;
    let config = RabbitMqConfig::new(proxy.url_for(&url), &broker.exchange).with_max_message_bytes(MAX_MESSAGE_BYTES);
    Some(Proxied { broker, proxy, config, arrived: Mutex::default() })
}

struct Proxied {
    broker: Broker,
    proxy: FaultProxy,
    config: RabbitMqConfig,
    arrived: Mutex<Vec<Arrived>>,
}

impl Proxied {
    fn impatient(&self) -> RabbitMqConfig {
        self.config.clone().with_confirm_timeout(SHORT).with_connect_timeout(SHORT)
    }
}

fn connect(config: RabbitMqConfig) -> Arc<dyn Publisher> {
    Arc::new(RabbitMqPublisher::connect(config).unwrap())
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
        config.exchange = format!("{}-missing", config.exchange);
        Some(connect(config))
    }

    async fn arrived(&self, count: usize) -> Vec<Arrived> {
        let mut arrived = self.arrived.lock().await;
        self.broker.take_until(&mut arrived, count).await;
        arrived.clone()
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
        let userinfo = self.config.url.split_once("://").and_then(|(_, rest)| rest.split_once('@'));
        userinfo.map(|(userinfo, _)| userinfo.to_owned()).into_iter().chain([self.config.url.clone()]).collect()
    }
}
