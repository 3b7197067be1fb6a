//! Where relays of these tests publish to: each broker with what its operator makes there, and the consumer's end of it.

mod kafka;
mod nats;
mod rabbitmq;
mod sqs;
mod webhook;

use async_trait::async_trait;
use outbox_core::EventId;

pub(crate) use kafka::KafkaTopic;
pub(crate) use nats::NatsStream;
pub(crate) use rabbitmq::RabbitMqQueue;
pub(crate) use sqs::{SqsKind, SqsQueue};
pub(crate) use webhook::WebhookEndpoint;

use crate::relay::RelayConfig;

/// A destination, empty, under a name of its own. Its methods panic when they can't do their work.
#[async_trait]
pub(crate) trait Destination: Send {
    /// The name of its table in the relay's configuration.
    fn kind(&self) -> &'static str;

    /// Leads a relay to it. Keys may be set again afterwards.
    fn lead(&self, config: RelayConfig) -> RelayConfig;

    /// What a relay must say of it while it is missing.
    fn name_when_missing(&self) -> &str;

    /// Whether consumers are promised the events of one aggregate in order.
    fn promises_order(&self) -> bool {
        true
    }

    /// Makes what the operator makes: exchange and queue, stream, topic.
    async fn make(&mut self);

    /// Everything that has arrived since the beginning, copies included; the events of one aggregate in the order in
    /// which its consumer gets them.
    async fn arrived(&mut self) -> Vec<EventId>;
}

/// A destination whose server belongs to the test.
#[async_trait]
pub(crate) trait Mortal: Destination {
    /// Ends the server as hard as its data survives.
    async fn go_down(&mut self);

    /// Starts it at the same place with its data.
    async fn come_back(&mut self);
}

/// A destination that relays find by a URL, so that a proxy can stand between.
pub(crate) trait ByUrl: Mortal {
    /// The server's URL.
    fn url(&self) -> String;
}

/// A key of a destination's table.
pub(crate) fn key(destination: &(impl Destination + ?Sized), name: &str) -> String {
    format!("route.0.{}.{name}", destination.kind())
}

fn event_id(text: &str) -> EventId {
    EventId::from_uuid(text.parse().unwrap())
}

/// The server of a destination that may be killed.
#[track_caller]
fn own<T>(server: &mut Option<T>) -> &mut T {
    server.as_mut().expect("the shared server belongs to all tests")
}
