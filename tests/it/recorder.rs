//! A destination in memory that notes what arrives and when, light enough for a million events.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, EventId, PublishError, PublishReport, Publisher, Receipt};
use tokio::sync::watch;
use tokio::time::timeout;

#[derive(Debug, Default)]
struct State {
    all: Vec<EventId>,
    first: HashMap<EventId, Instant>,
}

/// Confirms everything at once.
#[derive(Debug)]
pub(crate) struct Recorder {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: watch::Sender::new(()) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that arrived, in order, copies included.
    pub(crate) fn arrivals(&self) -> Vec<EventId> {
        self.state().all.clone()
    }

    /// How many different events have arrived.
    pub(crate) fn distinct(&self) -> usize {
        self.state().first.len()
    }

    /// When an event first arrived.
    pub(crate) fn first(&self, event: EventId) -> Option<Instant> {
        self.state().first.get(&event).copied()
    }

    /// Waits for an event and tells when it came.
    ///
    /// # Panics
    /// When it does not come within `limit`.
    pub(crate) async fn wait_for(&self, event: EventId, limit: Duration) -> Instant {
        self.wait_until(limit, || self.first(event).is_some()).await;
        self.first(event).unwrap()
    }

    /// Waits until so many different events have arrived.
    ///
    /// # Panics
    /// When they do not within `limit`.
    pub(crate) async fn wait_distinct(&self, events: usize, limit: Duration) {
        self.wait_until(limit, || self.distinct() >= events).await;
    }

    /// Sees to it that an event does not arrive for so long: it is not committed.
    ///
    /// # Panics
    /// When it arrives.
    pub(crate) async fn stays_away(&self, event: EventId, time: Duration) {
        assert!(!self.came(time, || self.first(event).is_some()).await, "{event} arrived and is not committed");
    }

    async fn wait_until(&self, limit: Duration, so: impl Fn() -> bool) {
        assert!(self.came(limit, so).await, "not within {limit:?}; {} events arrived", self.distinct());
    }

    async fn came(&self, limit: Duration, so: impl Fn() -> bool) -> bool {
        let mut changed = self.changed.subscribe();
        let seen = async {
            while !so() {
                // An error would mean that the sender is gone, which `self` keeps alive.
                let _ = changed.changed().await;
            }
        };
        timeout(limit, seen).await.is_ok()
    }
}

#[async_trait]
impl Publisher for Recorder {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed("recorder")
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        let at = Instant::now();
        {
            let mut state = self.state();
            for (index, event) in events.iter().enumerate() {
                state.all.push(event.event_id);
                state.first.entry(event.event_id).or_insert(at);
                report.set(index, Ok(Receipt::confirmed()));
            }
        }
        self.changed.send_replace(());
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}
