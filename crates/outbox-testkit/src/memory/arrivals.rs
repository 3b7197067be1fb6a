//! What a memory publisher has seen, and the view that tests look through.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use outbox_core::{ErrorKind, EventId, Headers, PublishError};

/// An event that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Place in the order.
    pub id: i64,
    /// Its identity.
    pub event_id: EventId,
    /// What the event is about.
    pub aggregate_type: String,
    /// Which one.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The topic that it went to.
    pub topic: String,
    /// The body.
    pub body: Bytes,
    /// The event's own headers.
    pub headers: Headers,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) delivered: Vec<Delivered>,
    pub(super) seen: HashSet<EventId>,
    pub(super) times: HashMap<EventId, usize>,
    pub(super) in_flight: HashMap<(String, String), usize>,
    pub(super) events_in_flight: usize,
    pub(super) most_in_flight: usize,
    pub(super) overlaps: usize,
    pub(super) publishes: u64,
    pub(super) checks: u64,
    pub(super) down: Option<PublishError>,
    pub(super) closed: bool,
}

impl State {
    pub(super) fn refusal(&self) -> Option<PublishError> {
        let closed = || self.closed.then(|| PublishError::new(ErrorKind::Unavailable, "the publisher is closed"));
        self.down.clone().or_else(closed)
    }
}

/// The state of a [`MemoryPublisher`](super::MemoryPublisher) at one moment.
#[derive(Debug)]
pub struct PublisherView<'a> {
    pub(super) state: &'a State,
}

impl PublisherView<'_> {
    /// Everything that has arrived, in order.
    #[must_use]
    pub fn delivered(&self) -> &[Delivered] {
        &self.state.delivered
    }

    /// First deliveries that came after a later event of their aggregate: each pair is (arrived before, too late).
    #[must_use]
    pub fn inversions(&self) -> Vec<(i64, i64)> {
        let (mut seen, mut highest) = (HashSet::new(), HashMap::<_, i64>::new());
        let mut inversions = Vec::new();
        for event in self.state.delivered.iter().filter(|event| seen.insert(event.event_id)) {
            let last = highest.entry((&event.aggregate_type, &event.aggregate_id)).or_insert(event.id);
            if event.id < *last {
                inversions.push((*last, event.id));
            }
            *last = event.id.max(*last);
        }
        inversions
    }

    /// How many of the arrivals were copies of an earlier one.
    #[must_use]
    pub fn copies(&self) -> usize {
        self.state.delivered.len() - self.state.seen.len()
    }

    /// How often this event was handed over, whatever became of it.
    #[must_use]
    pub fn times(&self, event: EventId) -> usize {
        self.state.times.get(&event).copied().unwrap_or(0)
    }

    /// Events in publish calls that have not returned.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.state.events_in_flight
    }

    /// The largest value that [`in_flight`](Self::in_flight) has had.
    #[must_use]
    pub const fn most_in_flight(&self) -> usize {
        self.state.most_in_flight
    }

    /// How often an event was handed over while another of its aggregate was in flight, in the same call or not.
    #[must_use]
    pub const fn overlaps(&self) -> usize {
        self.state.overlaps
    }

    /// How often `publish` was called with events.
    #[must_use]
    pub const fn publishes(&self) -> u64 {
        self.state.publishes
    }

    /// How often `check` was called.
    #[must_use]
    pub const fn checks(&self) -> u64 {
        self.state.checks
    }

    /// Whether `close` was called.
    #[must_use]
    pub const fn closed(&self) -> bool {
        self.state.closed
    }
}
