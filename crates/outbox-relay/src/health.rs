//! What a route tells the world about itself: readiness with reasons, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use outbox_core::{Envelope, EventId};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Recorded;

/// How a route's destination stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DestinationState {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// Events go through.
    Up,
    /// Paused as a whole, with the reason.
    Paused(String),
    /// Some topics are paused, with the first reason.
    TopicsPaused(usize, String),
}

/// A route's state at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RouteStatus {
    /// Whether this relay owns a share of the route; one that waits for a share is ready nevertheless.
    pub owner: bool,
    /// How many of the route's 64 buckets this relay owns.
    pub buckets: usize,
    /// Relays with other routes are at work, and how ours differ from theirs. Ready nevertheless, so that a rolling
    /// update goes on, of which this is a step.
    pub standby: Option<String>,
    /// What stands between the route and the database, if anything.
    pub store_error: Option<String>,
    /// How the destination stands.
    pub destination: DestinationState,
    /// The route has ended.
    pub ended: bool,
}

impl RouteStatus {
    /// `None` when ready, otherwise why not.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        if self.ended {
            return Some("the route has ended".to_owned());
        }
        if let Some(error) = &self.store_error {
            return Some(format!("database: {error}"));
        }
        if !self.owner {
            return None; // another relay does the work; this one is ready to take over
        }
        match &self.destination {
            DestinationState::Up => None,
            DestinationState::Unknown => Some("destination: not checked yet".to_owned()),
            DestinationState::Paused(reason) => Some(format!("destination: {reason}")),
            DestinationState::TopicsPaused(count, reason) => Some(format!("{count} topics paused: {reason}")),
        }
    }
}

/// The first event found that no route takes. It stays in the outbox until a route does, or somebody removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unrouted {
    /// Its row.
    pub id: i64,
    /// Its identity.
    pub event_id: EventId,
    /// What it is about.
    pub aggregate_type: String,
    /// What happened.
    pub event_type: String,
    /// When the transaction that wrote it began, by the database's clock.
    pub created_at: SystemTime,
}

impl Unrouted {
    pub(crate) fn new(event: &Envelope) -> Self {
        let Envelope { id, event_id, created_at, .. } = *event;
        let (aggregate_type, event_type) = (event.aggregate_type.clone(), event.event_type.clone());
        Self { id, event_id, aggregate_type, event_type, created_at }
    }
}

/// Counters of a route since its start. They only grow.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Events confirmed by the broker.
    pub published: AtomicU64,
    /// Copies that the broker reported as duplicates.
    pub duplicates_reported: AtomicU64,
    /// Charged attempts.
    pub failed: AtomicU64,
    /// Dead letters written.
    pub dead_letters: AtomicU64,
    /// Events given up that stay in their place, so that their aggregates wait for an operator.
    pub blocked: AtomicU64,
    /// Late commits found by the look-back.
    pub late_look_back: AtomicU64,
    /// Late commits found only by the full sweep: anything but 0 is a defect.
    pub late_full_sweep: AtomicU64,
    /// Leases lost.
    pub lease_losses: AtomicU64,
    /// Reads made.
    pub reads: AtomicU64,
    /// How often an event was dropped for want of room, to be read again.
    pub spilled: AtomicU64,
    /// How often the destination as a whole began to fail; an outage counts once, however many errors it has.
    pub outages: AtomicU64,
    /// What has labels of its own or a distribution; [`metrics`](crate::metrics) shows it.
    pub(crate) recorded: Recorded,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }
}

/// How much a route holds at this moment.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Gauges {
    /// Events handed to the publisher whose deletion or write-back has not committed yet.
    pub in_flight: AtomicU64,
    /// Events in memory that wait for a retry, a paused topic or their turn to be sent alone.
    pub waiting: AtomicU64,
    /// Aggregates of which events were dropped for want of room and will be read again.
    pub spilled_aggregates: AtomicU64,
    /// Given up events that stay in their place and hold up their aggregates, as far as they have been read; counted once
    /// a second.
    pub blocked: AtomicU64,
    /// Retries and dead letters that the database refuses to store; their aggregates wait, and they are tried again.
    pub refused_write_backs: AtomicU64,
    /// Topics that are paused, also while the destination as a whole is.
    pub paused_topics: AtomicU64,
    /// The destination's breaker: 0 closed, 1 half-open (a probe is under way), 2 open.
    pub breaker: AtomicU64,
}

impl Gauges {
    pub(crate) fn set(gauge: &AtomicU64, value: usize) {
        gauge.store(value as u64, Relaxed);
    }

    /// A route that is not ours holds nothing.
    pub(crate) fn clear(&self) {
        let Self { in_flight, waiting, spilled_aggregates, refused_write_backs, paused_topics, breaker: _, blocked } =
            self;
        for gauge in [in_flight, waiting, spilled_aggregates, refused_write_backs, paused_topics, blocked] {
            Self::set(gauge, 0);
        }
    }
}

/// When a route's loop last turned, and how often it has.
#[derive(Debug)]
pub(crate) struct Pulse {
    born: Instant,
    /// Milliseconds after `born`, plus 1; 0 before the first turn.
    last: AtomicU64,
    turns: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { born: Instant::now(), last: AtomicU64::new(0), turns: AtomicU64::new(0) }
    }
}

impl Pulse {
    pub(crate) fn beat(&self, now: Instant) {
        self.turns.fetch_add(1, Relaxed);
        self.last.store(self.millis(now).saturating_add(1), Relaxed);
    }

    /// How long ago the last turn was.
    fn since(&self) -> Option<Duration> {
        let last = self.last.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.millis(Instant::now()).saturating_sub(last)))
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.born).as_millis()).unwrap_or(u64::MAX)
    }
}

/// A handle on a route's status and counters; cheap to clone and to ask, never touches the database.
#[derive(Debug, Clone)]
pub struct RouteHealth {
    name: String,
    status: watch::Receiver<RouteStatus>,
    counters: Arc<Counters>,
    gauges: Arc<Gauges>,
    pulse: Arc<Pulse>,
}

impl RouteHealth {
    pub(crate) fn new(
        name: String,
        status: watch::Receiver<RouteStatus>,
        counters: Arc<Counters>,
        gauges: Arc<Gauges>,
        pulse: Arc<Pulse>,
    ) -> Self {
        Self { name, status, counters, gauges, pulse }
    }

    /// The route's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The state now.
    #[must_use]
    pub fn status(&self) -> RouteStatus {
        self.status.borrow().clone()
    }

    /// A receiver that sees each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<RouteStatus> {
        self.status.clone()
    }

    /// Whether the route's loop has not turned for this long, although it runs: it turns every few seconds also when
    /// it is idle, when its calls to database and broker hang, and during an outage. Only the start, a take-over and
    /// the end wait for the database in between; each such call ends within 20 s with the PostgreSQL store.
    /// `false` before the run and after its end.
    #[must_use]
    pub fn is_stuck(&self, limit: Duration) -> bool {
        !self.status.borrow().ended && self.pulse.since().is_some_and(|since| since > limit)
    }

    /// Turns of the route's loop so far: what a defect that spins shows in.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.pulse.turns.load(Relaxed)
    }

    /// The gauges.
    #[must_use]
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
