//! The conformance suite, per configuration.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Publisher};
use outbox_kafka::{Compression, KafkaConfig};
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::publisher_suite::{Arrived, Fault, PublisherHarness};
use outbox_testkit::services::kafka::{Kafka, Options};
use outbox_testkit::services::process::free_port;
use outbox_testkit::services::require_or_skip;

use crate::broker::{Topic, connect};

mod uncompressed {
    outbox_testkit::publisher_suite!(super::none);
}

mod lz4 {
    outbox_testkit::publisher_suite!(super::lz4_compression);
}

/// Long enough for a healthy broker on a busy machine, short enough for the suite.
const SHORT: Duration = Duration::from_millis(1500);

async fn none() -> Option<Proxied> {
    proxied(Compression::None).await
}

async fn lz4_compression() -> Option<Proxied> {
    proxied(Compression::Lz4).await
}

/// A broker of its own that sends its clients through the proxy.
async fn proxied(compression: Compression) -> Option<Proxied> {
    let port = free_port().unwrap();
    let proxy = FaultProxy::start(format!("127.0.0.1:{port}")).await.unwrap();
    let options = Options::default().on_port(port).advertising(proxy.addr().to_string());
    let broker = tokio::task::block_in_place(|| require_or_skip("kafka", Kafka::start(options)))?;
    let topic = Topic::created(&broker.address()).await;
    let config = KafkaConfig::new(proxy.addr().to_string()).with_topic(&topic.name).with_compression(compression);
    Some(Proxied { topic, proxy, config, _broker: broker })
}

struct Proxied {
    topic: Topic,
    proxy: FaultProxy,
    config: KafkaConfig,
    _broker: Kafka,
}

impl Proxied {
    fn impatient(&self) -> KafkaConfig {
        self.config.clone().with_confirm_timeout(SHORT).with_connect_timeout(SHORT)
    }
}

#[async_trait]
impl PublisherHarness for Proxied {
    fn claims(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes((1 << 20) - 1024)
    }

    async fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(connect(self.config.clone()))
    }

    async fn impatient(&self) -> Arc<dyn Publisher> {
        Arc::new(connect(Self::impatient(self)))
    }

    async fn lost(&self) -> Option<Arc<dyn Publisher>> {
        Some(Arc::new(connect(Self::impatient(self).with_topic(format!("{}-missing", self.topic.name)))))
    }

    async fn arrived(&self, count: usize) -> Vec<Arrived> {
        self.topic.arrived(count).await
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

    /// This broker keeps no users; a login and what hides its password are tested in `answers`.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}
