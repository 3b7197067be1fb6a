//! The consumer's end of RabbitMQ: an exchange, a queue, and what came into it, in order.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_core::EventId;
use outbox_testkit::services::rabbitmq::shared_or_skip;
use tokio::task::{JoinHandle, block_in_place};
use uuid::Uuid;

use crate::deadline::until;

/// The broker removes what a broken test leaves behind.
const EXPIRES_MS: i32 = 10 * 60 * 1000;

/// A message as the consumer saw it.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) event: EventId,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// An exchange with one queue that gets everything.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) url: String,
    /// The name of exchange and queue.
    pub(crate) name: String,
    channel: Channel,
    // Held, for the channel ends with it.
    _connection: Connection,
}

/// What a consumer has received so far.
#[derive(Debug)]
pub(crate) struct Consumer {
    seen: Arc<Mutex<Vec<Message>>>,
    task: JoinHandle<()>,
}

/// The address of the shared broker, or a visible skip.
pub(crate) fn broker() -> Option<String> {
    block_in_place(shared_or_skip)
}

impl Queue {
    /// Names and a connection; nothing is declared.
    pub(crate) async fn bare(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let name = format!("it-{}", Uuid::now_v7().simple());
        Self { url: url.to_owned(), name, channel, _connection: connection }
    }

    /// With exchange and queue.
    pub(crate) async fn declared(url: &str) -> Self {
        let queue = Self::bare(url).await;
        queue.declare_exchange().await;
        queue.declare_queue(&[]).await;
        queue
    }

    /// Takes a new connection, after the broker was restarted.
    pub(crate) async fn connect_again(&mut self) {
        self._connection = Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap();
        self.channel = self._connection.create_channel().await.unwrap();
    }

    pub(crate) async fn declare_exchange(&self) {
        let options = ExchangeDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
        let name = self.name.as_str().into();
        self.channel.exchange_declare(name, ExchangeKind::Topic, options, FieldTable::default()).await.unwrap();
    }

    /// Declares the queue and binds it for everything.
    pub(crate) async fn declare_queue(&self, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        table.insert("x-expires".into(), AMQPValue::LongInt(EXPIRES_MS));
        for (name, value) in arguments {
            table.insert(ShortString::from(*name), value.clone());
        }
        let name = ShortString::from(self.name.as_str());
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.clone(), options, table).await.unwrap();
        let binding = QueueBindOptions::default();
        self.channel.queue_bind(name.clone(), name, "#".into(), binding, FieldTable::default()).await.unwrap();
    }

    /// Begins to consume; each message is taken at once.
    pub(crate) async fn consume(&self) -> Consumer {
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let name = self.name.as_str().into();
        let mut messages = self.channel.basic_consume(name, "it".into(), options, FieldTable::default()).await.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Some(Ok(delivery)) = messages.next().await {
                let message = read(&delivery.properties, delivery.data.to_vec());
                into.lock().unwrap().push(message);
            }
        });
        Consumer { seen, task }
    }

    /// Takes the next message, if there is one.
    pub(crate) async fn take(&self) -> Option<Message> {
        let options = BasicGetOptions { no_ack: true };
        let taken: Option<BasicGetMessage> = self.channel.basic_get(self.name.as_str().into(), options).await.unwrap();
        taken.map(|message| read(&message.delivery.properties, message.delivery.data.to_vec()))
    }
}

impl Consumer {
    /// How many messages have come, copies included.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Everything that has come, in order.
    pub(crate) fn messages(&self) -> Vec<Message> {
        self.seen.lock().unwrap().clone()
    }

    /// The events that have come, in order.
    pub(crate) fn events(&self) -> Vec<EventId> {
        self.seen.lock().unwrap().iter().map(|message| message.event).collect()
    }

    /// How many of the messages were copies of an earlier one.
    pub(crate) fn copies(&self) -> usize {
        let events = self.events();
        events.len() - events.iter().collect::<HashSet<_>>().len()
    }

    /// Waits for so many messages.
    pub(crate) async fn wait_for(&self, messages: usize, limit: Duration) {
        let what = format!("{messages} messages");
        until(limit, &what, || std::future::ready(self.count() >= messages)).await;
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn read(properties: &BasicProperties, body: Vec<u8>) -> Message {
    let id = properties.message_id().as_ref().expect("each message has an id").as_str();
    let text = |value: &AMQPValue| {
        String::from_utf8(value.as_long_string().map(|text| text.as_bytes().to_vec()).unwrap_or_default()).unwrap()
    };
    let table = properties.headers().clone().unwrap_or_default();
    let headers = table.into_iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    Message { event: EventId::from_uuid(id.parse().unwrap()), headers, body }
}
