//! An exchange with a queue under names of their own, and what came into the queue.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_core::{Envelope, EventId, Headers, Outcome, Payload, PublishError, Publisher};
use outbox_rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, Arrived, EVENT_TYPE, PATIENCE};
use outbox_testkit::services::rabbitmq::shared_or_skip;
use uuid::Uuid;

/// Queues of a broken test go away by themselves.
const QUEUE_EXPIRES: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The kinds of queue that every promise must hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Classic,
    Quorum,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Classic, Self::Quorum];

    fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

/// The broker's address, or a visible skip. It may start a node, hence blocks.
pub(crate) fn url() -> Option<String> {
    tokio::task::block_in_place(shared_or_skip)
}

/// A connection to the broker around any proxy, with names for one test.
pub(crate) struct Broker {
    pub(crate) url: String,
    pub(crate) exchange: String,
    pub(crate) queue: String,
    pub(crate) channel: Channel,
    connection: Connection,
}

impl Broker {
    /// Names only; nothing is declared.
    pub(crate) async fn bare(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let id = Uuid::now_v7().simple();
        Self { url: url.to_owned(), exchange: format!("x-{id}"), queue: format!("q-{id}"), channel, connection }
    }

    /// A new connection under the names of another, for a broker that has been restarted.
    pub(crate) async fn existing(other: &Self, url: &str) -> Self {
        Self { exchange: other.exchange.clone(), queue: other.queue.clone(), ..Self::bare(url).await }
    }

    /// A topic exchange and a durable queue bound to the suite's routing key.
    pub(crate) async fn bound(url: &str, kind: Kind) -> Self {
        let broker = Self::bare(url).await;
        broker.declare_exchange(&[]).await;
        broker.declare_queue(kind, &[]).await;
        broker.bind(&format!("{AGGREGATE_TYPE}.{EVENT_TYPE}")).await;
        broker
    }

    pub(crate) async fn declare_exchange(&self, arguments: &[(&str, &str)]) {
        self.declare_exchange_named(&self.exchange, ExchangeKind::Topic, arguments).await;
    }

    pub(crate) async fn declare_exchange_named(&self, name: &str, kind: ExchangeKind, arguments: &[(&str, &str)]) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert(ShortString::from(*name), AMQPValue::LongString((*value).into()));
        }
        self.channel.exchange_declare(name.into(), kind, options, table).await.unwrap();
    }

    pub(crate) async fn delete_exchange(&self) {
        let options = ExchangeDeleteOptions::default();
        self.channel.exchange_delete(self.exchange.as_str().into(), options).await.unwrap();
    }

    pub(crate) async fn declare_queue(&self, kind: Kind, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        let expires = i32::try_from(QUEUE_EXPIRES.as_millis()).unwrap();
        table.insert("x-expires".into(), AMQPValue::LongInt(expires));
        table.insert("x-queue-type".into(), AMQPValue::LongString(kind.name().into()));
        for (name, value) in arguments {
            table.insert(ShortString::from(*name), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(self.queue.as_str().into(), options, table).await.unwrap();
    }

    pub(crate) async fn bind(&self, routing_key: &str) {
        self.bind_to(&self.exchange, routing_key).await;
    }

    pub(crate) async fn bind_to(&self, exchange: &str, routing_key: &str) {
        let (queue, options) = (self.queue.as_str().into(), QueueBindOptions::default());
        self.channel
            .queue_bind(queue, exchange.into(), routing_key.into(), options, FieldTable::default())
            .await
            .unwrap();
    }

    pub(crate) async fn unbind(&self, routing_key: &str) {
        let (queue, exchange) = (self.queue.as_str().into(), self.exchange.as_str().into());
        self.channel.queue_unbind(queue, exchange, routing_key.into(), FieldTable::default()).await.unwrap();
    }

    /// Takes everything out of the queue.
    pub(crate) async fn take(&self) -> Vec<Arrived> {
        let mut taken = Vec::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = self.channel.basic_get(self.queue.as_str().into(), options).await.unwrap() {
            let properties = &message.delivery.properties;
            let table = properties.headers().clone().unwrap_or_default();
            // A quorum queue adds `x-delivery-count`, a number.
            let own = table.into_iter().filter(|(name, _)| !name.as_str().starts_with("x-"));
            let text = |value: &AMQPValue| {
                let bytes = value.as_long_string().expect("headers are long strings").as_bytes().to_vec();
                String::from_utf8(bytes).unwrap()
            };
            let headers: BTreeMap<_, _> = own.map(|(name, value)| (name.to_string(), text(value))).collect();
            assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
            taken.push(Arrived {
                event_id: properties.message_id().as_ref().unwrap().to_string(),
                headers,
                body: Bytes::from(message.delivery.data.clone()),
            });
        }
        taken
    }

    /// Takes messages until there are `count` of them in `arrived`, and whatever else is there.
    pub(crate) async fn take_until(&self, arrived: &mut Vec<Arrived>, count: usize) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut look = tokio::time::interval(LOOK_AGAIN);
        loop {
            arrived.extend(self.take().await);
            if arrived.len() >= count || tokio::time::Instant::now() >= deadline {
                return;
            }
            look.tick().await;
        }
    }

    pub(crate) fn config(&self) -> RabbitMqConfig {
        RabbitMqConfig::new(&self.url, &self.exchange).with_max_message_bytes(1 << 20)
    }

    pub(crate) fn publisher(&self) -> RabbitMqPublisher {
        RabbitMqPublisher::connect(self.config()).unwrap()
    }

    /// Ends the connection, as an operator's tool would do when it is done.
    pub(crate) async fn close(&self) {
        self.connection.close(200, "OK".into()).await.unwrap();
    }
}

/// Events of as many aggregates.
pub(crate) fn events(count: i64) -> Vec<Envelope> {
    let event = |number: i64| Envelope {
        id: number,
        event_id: EventId::from_uuid(Uuid::now_v7()),
        aggregate_type: AGGREGATE_TYPE.to_owned(),
        aggregate_id: format!("aggregate-{number}"),
        event_type: EVENT_TYPE.to_owned(),
        payload: Payload::raw_json(format!("{{\"number\":{number}}}")),
        headers: Headers::new(),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199),
    };
    (1..=count).map(event).collect()
}

pub(crate) async fn publish(publisher: &dyn Publisher, events: &[Envelope]) -> Vec<Outcome> {
    publisher.publish(events).await.into_outcomes(events.len())
}

/// Publishes one event until it is confirmed; any trouble but a passing one is a failure.
pub(crate) async fn publish_until_confirmed(publisher: &dyn Publisher, event: &Envelope) {
    until(|| async { publish(publisher, std::slice::from_ref(event)).await.remove(0).is_ok() }).await;
}

/// Asks again and again until it is so; panics after [`PATIENCE`].
pub(crate) async fn until<F: Future<Output = bool>>(so: impl Fn() -> F) {
    let mut look = tokio::time::interval(LOOK_AGAIN);
    let asked = async {
        while !so().await {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it never came to be so");
}

pub(crate) fn ids<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Vec<String> {
    let mut ids: Vec<_> = events.into_iter().map(|event| event.event_id.to_string()).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn arrived_ids(arrived: &[Arrived]) -> Vec<String> {
    let mut ids: Vec<_> = arrived.iter().map(|message| message.event_id.clone()).collect();
    ids.sort_unstable();
    ids
}

#[track_caller]
pub(crate) fn error(outcome: &Outcome) -> &PublishError {
    outcome.as_ref().expect_err("it can't have been confirmed")
}
