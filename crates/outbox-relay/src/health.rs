//! What a route tells the world about itself: readiness with reasons, and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

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
    /// Whether this relay owns the route; a relay that waits for another's lease is ready nevertheless.
    pub owner: bool,
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
}

impl Gauges {
    pub(crate) fn set(gauge: &AtomicU64, value: usize) {
        gauge.store(value as u64, Relaxed);
    }
}

/// A handle on a route's status and counters; cheap to clone and to ask, never touches the database.
#[derive(Debug, Clone)]
pub struct RouteHealth {
    name: String,
    status: watch::Receiver<RouteStatus>,
    counters: Arc<Counters>,
    gauges: Arc<Gauges>,
}

impl RouteHealth {
    pub(crate) fn new(
        name: String,
        status: watch::Receiver<RouteStatus>,
        counters: Arc<Counters>,
        gauges: Arc<Gauges>,
    ) -> Self {
        Self { name, status, counters, gauges }
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
