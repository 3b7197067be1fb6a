//! An exchange with a queue.

use async_trait::async_trait;
use outbox_core::EventId;
use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;
use tokio::task::block_in_place;

use super::{ByUrl, Destination, Mortal, own};
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

pub(crate) struct RabbitMqQueue {
    node: Option<RabbitMq>,
    queue: Queue,
    arrived: Vec<EventId>,
}

impl RabbitMqQueue {
    /// On the shared broker.
    pub(crate) async fn shared() -> Option<Self> {
        Some(Self { node: None, queue: Queue::bare(&broker()?).await, arrived: Vec::new() })
    }

    /// On a broker of its own.
    pub(crate) async fn own() -> Option<Self> {
        let node = block_in_place(|| require_or_skip("amqp", RabbitMq::start()))?;
        let queue = Queue::bare(&node.url()).await;
        Some(Self { node: Some(node), queue, arrived: Vec::new() })
    }
}

#[async_trait]
impl Destination for RabbitMqQueue {
    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn lead(&self, config: RelayConfig) -> RelayConfig {
        config.with_rabbitmq(&self.queue.url, &self.queue.name)
    }

    fn name_when_missing(&self) -> &str {
        &self.queue.name
    }

    async fn make(&mut self) {
        self.queue.declare_exchange().await;
        self.queue.declare_queue(&[]).await;
    }

    async fn arrived(&mut self) -> Vec<EventId> {
        while let Some(message) = self.queue.take().await {
            self.arrived.push(message.event);
        }
        self.arrived.clone()
    }
}

#[async_trait]
impl Mortal for RabbitMqQueue {
    async fn go_down(&mut self) {
        block_in_place(|| own(&mut self.node).kill9()).unwrap();
    }

    async fn come_back(&mut self) {
        block_in_place(|| own(&mut self.node).start_again()).unwrap();
        self.queue.connect_again().await;
    }
}

impl ByUrl for RabbitMqQueue {
    fn url(&self) -> String {
        self.queue.url.clone()
    }
}
