//! The other end: who receives the events. One consumer that reads a relay's standard output, one that reads a queue.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_core::EventId;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

/// How many messages the broker sends ahead of the acknowledgements.
const PREFETCH: u16 = 500;

/// The broker removes a queue that nobody has used for so long: what a killed demo leaves behind.
const QUEUE_EXPIRES_MS: i32 = 10 * 60 * 1000;

/// The `type` of the message by which a queue's reader knows that it has seen everything before it.
const END: &str = "example.end";

/// One arrival of an event.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The event.
    pub event: EventId,
    /// When the consumer had it.
    pub at: Instant,
}

/// What arrived, in the order of arrival, copies included. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Arrivals(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    all: Vec<Arrival>,
    distinct: HashSet<EventId>,
    unreadable: usize,
}

impl Arrivals {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, event: EventId) {
        let mut list = self.list();
        list.all.push(Arrival { event, at: Instant::now() });
        list.distinct.insert(event);
    }

    fn add_unreadable(&self) {
        self.list().unreadable += 1;
    }

    /// How many different events have arrived.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.list().distinct.len()
    }

    /// Messages that were no event: lines that broke off because their writer was killed.
    #[must_use]
    pub fn unreadable(&self) -> usize {
        self.list().unreadable
    }

    /// Whether each of these events has arrived.
    #[must_use]
    pub fn has_all(&self, events: impl IntoIterator<Item = EventId>) -> bool {
        let list = self.list();
        events.into_iter().all(|event| list.distinct.contains(&event))
    }

    /// All arrivals so far.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Arrival> {
        self.list().all.clone()
    }
}

/// What a consumer of JSON lines needs of a line; the rest is left alone.
#[derive(Deserialize)]
struct Line {
    event_id: EventId,
}

/// Reads the JSON lines of a relay until its output ends.
///
/// # Errors
/// When reading fails.
pub async fn read_lines(output: impl AsyncRead + Unpin, arrivals: Arrivals) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).await? > 0 {
        match serde_json::from_slice::<Line>(&line) {
            // Without its line break the last line of a killed relay is no line, even if it can be parsed.
            Ok(event) if line.ends_with(b"\n") => arrivals.add(event.event_id),
            _ => arrivals.add_unreadable(),
        }
        line.clear();
    }
    Ok(())
}

/// A durable queue behind an exchange, with one consumer.
#[derive(Debug)]
pub struct Queue {
    connection: Connection,
    channel: Channel,
    name: ShortString,
}

impl Queue {
    /// Declares a topic exchange and a durable queue of the same name that gets all of its messages.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    pub async fn declare(url: &str, name: &str) -> Result<Self, lapin::Error> {
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
        Ok(Self { connection, channel, name })
    }

    /// The name of exchange and queue.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Begins to consume. The returned future ends at the message of [`Queue::send_end`].
    ///
    /// # Errors
    /// When the broker refuses, and from the future when the connection is lost.
    pub async fn consume(
        &self,
        arrivals: Arrivals,
    ) -> Result<impl Future<Output = Result<(), lapin::Error>> + Send + use<>, lapin::Error> {
        let options = BasicConsumeOptions::default();
        let mut messages =
            self.channel.basic_consume(self.name.clone(), "example".into(), options, FieldTable::default()).await?;
        Ok(async move {
            while let Some(message) = messages.next().await {
                let message = message?;
                let is_end = message.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == END);
                let id = message.properties.message_id().as_ref();
                if let Some(event) = id.and_then(|id| id.as_str().parse().ok()) {
                    arrivals.add(EventId::from_uuid(event));
                } else if !is_end {
                    arrivals.add_unreadable();
                }
                message.ack(BasicAckOptions::default()).await?;
                if is_end {
                    return Ok(());
                }
            }
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker ended the consumer").into())
        })
    }

    /// Puts a last message into the queue, behind everything that is in it.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    pub async fn send_end(&self) -> Result<(), lapin::Error> {
        let properties = BasicProperties::default().with_type(END.into());
        let options = BasicPublishOptions::default();
        self.channel.basic_publish("".into(), self.name.clone(), options, b"", properties).await?.await?;
        Ok(())
    }

    /// Removes queue and exchange and disconnects.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    pub async fn remove(self) -> Result<(), lapin::Error> {
        self.channel.queue_delete(self.name.clone(), QueueDeleteOptions::default()).await?;
        // It went with its last queue; asking again costs nothing.
        self.channel.exchange_delete(self.name.clone(), ExchangeDeleteOptions::default()).await?;
        self.connection.close(200, "done".into()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_broke_off_is_no_event() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let check = async |text: String, events: usize, unreadable: usize| {
            let arrivals = Arrivals::default();
            read_lines(text.as_bytes(), arrivals.clone()).await.unwrap();
            assert_eq!((arrivals.to_vec().len(), arrivals.unreadable()), (events, unreadable), "{text}");
        };
        let line = format!(r#"{{"event_id":"{id}","payload":1}}"#);
        check(format!("{line}\n{line}\n"), 2, 0).await;
        check(format!("{line}\n{line}"), 1, 1).await;
        check(format!("{line}\n{}\n{line}\n", &line[..20]), 2, 1).await;
        check(String::new(), 0, 0).await;
    }
}
