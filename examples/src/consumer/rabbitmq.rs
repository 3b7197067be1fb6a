//! RabbitMQ: a durable queue behind an exchange.

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};

use super::{Arrivals, Destination, Failure, Reading};

/// How many messages the broker sends ahead of the acknowledgements.
const PREFETCH: u16 = 500;

/// The broker removes a queue that nobody has used for so long: what a killed run leaves behind.
const QUEUE_EXPIRES_MS: i32 = 10 * 60 * 1000;

/// The `type` of the message by which the queue's reader knows that it has seen everything before it.
const END: &str = "example.end";

/// A topic exchange and a durable queue of the same name that gets all of its messages.
#[derive(Debug)]
pub struct RabbitMq {
    connection: Connection,
    channel: Channel,
    url: String,
    name: ShortString,
}

impl RabbitMq {
    /// Declares exchange and queue.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    pub async fn create(url: &str, name: &str) -> Result<Self, Failure> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let name = ShortString::from(name);
        let exchange = ExchangeDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
        channel.exchange_declare(name.clone(), ExchangeKind::Topic, exchange, FieldTable::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-expires".into(), AMQPValue::LongInt(QUEUE_EXPIRES_MS));
        channel.queue_declare(name.clone(), QueueDeclareOptions::durable(), arguments).await?;
        let binding = QueueBindOptions::default();
        channel.queue_bind(name.clone(), name.clone(), "#".into(), binding, FieldTable::default()).await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        Ok(Self { connection, channel, url: url.to_owned(), name })
    }
}

#[async_trait]
impl Destination for RabbitMq {
    fn describe(&self) -> String {
        format!("exchange and durable queue {}", self.name)
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("url", self.url.clone()), ("exchange", self.name.to_string())]
    }

    async fn consume(&self, arrivals: Arrivals) -> Result<Reading, Failure> {
        let options = BasicConsumeOptions::default();
        let mut messages =
            self.channel.basic_consume(self.name.clone(), "example".into(), options, FieldTable::default()).await?;
        Ok(Box::pin(async move {
            while let Some(message) = messages.next().await {
                let message = message?;
                let is_end = message.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == END);
                if !is_end {
                    arrivals.add_by_id(message.properties.message_id().as_ref().map(ShortString::as_str));
                }
                message.ack(BasicAckOptions::default()).await?;
                if is_end {
                    return Ok(());
                }
            }
            Err("the broker ended the consumer".into())
        }))
    }

    /// Puts a last message into the queue, behind everything that is in it.
    async fn end(&self) -> Result<(), Failure> {
        let properties = BasicProperties::default().with_type(END.into());
        let options = BasicPublishOptions::default();
        self.channel.basic_publish("".into(), self.name.clone(), options, b"", properties).await?.await?;
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), Failure> {
        self.channel.queue_delete(self.name.clone(), QueueDeleteOptions::default()).await?;
        // It went with its last queue; asking again costs nothing.
        self.channel.exchange_delete(self.name.clone(), ExchangeDeleteOptions::default()).await?;
        Ok(self.connection.close(200, "done".into()).await?)
    }
}
