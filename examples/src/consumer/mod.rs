//! The other end: who receives the events. One file for each broker, each behind the feature of its name; what arrived is
//! noted alike.

#[cfg(feature = "kafka")]
mod kafka;
mod lines;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "sqs")]
mod sqs;
#[cfg(feature = "webhook")]
mod webhook;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use outbox_core::EventId;

#[cfg(feature = "kafka")]
pub use self::kafka::Kafka;
pub use self::lines::read_lines;
#[cfg(feature = "nats")]
pub use self::nats::Nats;
#[cfg(feature = "rabbitmq")]
pub use self::rabbitmq::RabbitMq;
#[cfg(feature = "sqs")]
pub use self::sqs::Sqs;
#[cfg(feature = "webhook")]
pub use self::webhook::Webhook;

/// Why a broker or its consumer failed.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Receives events until [`Destination::end`] was called and all that had been sent before is read.
pub type Reading = BoxFuture<'static, Result<(), Failure>>;

/// A place at a broker that is made for one run, with one consumer.
#[async_trait]
pub trait Destination: Send + Sync {
    /// What was made, for people.
    fn describe(&self) -> String;

    /// What leads a relay here: the keys of its table `[route.<broker>]` and their values.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Begins to receive.
    ///
    /// # Errors
    /// When the broker is away or refuses; from the [`Reading`] when it is lost.
    async fn consume(&self, arrivals: Arrivals) -> Result<Reading, Failure>;

    /// Says that nothing more will be sent, so that the [`Reading`] can end.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    async fn end(&self) -> Result<(), Failure>;

    /// Removes what was made.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    async fn remove(self: Box<Self>) -> Result<(), Failure>;
}

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

    /// Notes a message by the text that should be its event's id.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "sqs", feature = "webhook")),
        expect(dead_code, reason = "lines hold ids that are read already")
    )]
    fn add_by_id(&self, id: Option<&str>) {
        match id.and_then(|id| id.parse().ok()) {
            Some(event) => self.add(EventId::from_uuid(event)),
            None => self.add_unreadable(),
        }
    }

    /// How many different events have arrived.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.list().distinct.len()
    }

    /// Messages that were no event: lines that broke off because their writer was killed, requests that nobody signed.
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
