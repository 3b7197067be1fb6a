//! Events that no route takes: they stay where they are, and somebody must be told. A slow reader of its own looks for
//! the first of them; it never holds more than that one.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Lane, ReadRequest, ReadScope, Routes, Store, StoreError, StoreErrorKind, rfc3339_micros};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pause;
use crate::health::{RouteStatus, Unrouted};

/// Between two reads while the end of the outbox has not been reached: a search that nobody waits for must not be load.
const BEHIND: Duration = Duration::from_secs(1);

/// Between two looks at the end of the outbox, or at an event that was found and may be gone.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How often an event that stays is told of.
const LINES: Duration = Duration::from_secs(60);

/// Looks for events that no route takes as long as one of the routes is owned here: until then other routes may be in
/// force.
#[derive(Debug)]
pub(super) struct Watcher {
    store: Arc<dyn Store>,
    routes: Routes,
    owners: Vec<watch::Receiver<RouteStatus>>,
    found: watch::Sender<Option<Unrouted>>,
    told: Option<Instant>,
}

/// The event that was found, as its lane knows it.
struct Found {
    id: i64,
    key: u64,
}

impl Watcher {
    pub(super) fn new(store: Arc<dyn Store>, routes: Routes, owners: Vec<watch::Receiver<RouteStatus>>) -> Self {
        Self { store, routes, owners, found: watch::Sender::new(None), told: None }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Unrouted>> {
        self.found.subscribe()
    }

    /// Runs until asked to stop. The routes tell of outages of the database; here they are waited out.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            if self.owners.iter().any(|status| status.borrow().owner) {
                let search = self.search();
                let ended = tokio::select! {
                    ended = search => ended,
                    () = shutdown.cancelled() => return,
                };
                if let Err(error) = ended {
                    tracing::debug!(%error, "the search for events that no route takes begins anew");
                }
                // Of another database, or of one whose routes others have taken over, nothing is known.
                self.found.send_replace(None);
            }
            pause(BEHIND, &shutdown).await;
        }
    }

    /// From zero on until something stands in the way, or no route is owned any more.
    async fn search(&mut self) -> Result<(), StoreError> {
        let mut lane = self.store.open_unrouted_lane(&self.routes).await?;
        let mut found = None;
        while self.owners.iter().any(|status| status.borrow().owner) {
            let behind = match self.look(&mut *lane, &mut found).await {
                Ok(behind) => behind,
                // The request was taken in all the same.
                Err(error) if error.kind() == StoreErrorKind::Unavailable => false,
                Err(error) => return Err(error),
            };
            self.tell(Instant::now());
            tokio::time::sleep(if behind { BEHIND } else { LOOK_AGAIN }).await;
        }
        Ok(())
    }

    /// One read: for the next event, or for the one that was found. Whether there is more to look at.
    async fn look(&self, lane: &mut dyn Lane, found: &mut Option<Found>) -> Result<bool, StoreError> {
        let (scope, dropped) = match found {
            // Dropped and asked for by its key it comes again, if it is there.
            Some(Found { id, key }) => {
                (ReadScope::Keys { keys: vec![*key], after: id.saturating_sub(1), through: *id }, vec![*id])
            }
            None => (ReadScope::Forward, Vec::new()),
        };
        // The first event passes whatever its size; of more than one the bodies would be read for nothing.
        let request = ReadRequest { scope, max_events: 1, max_bytes: 1, forget: Vec::new(), dropped };
        let gone = found.as_ref().map(|found| found.id);
        let batch = lane.read(request).await?;
        let first = batch.events.into_iter().next();
        *found = first.as_ref().map(|claimed| Found { id: claimed.envelope.id, key: claimed.key });
        let unrouted = first.map(|claimed| Unrouted::new(&claimed.envelope));
        let behind = unrouted.is_none() && (gone.is_some() || !batch.complete);
        self.found.send_if_modified(|told| {
            let changed = *told != unrouted;
            *told = unrouted;
            changed
        });
        Ok(behind)
    }

    fn tell(&mut self, now: Instant) {
        let found = self.found.borrow();
        let Some(Unrouted { id, event_id, aggregate_type, event_type, created_at }) = &*found else { return };
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < LINES) {
            return;
        }
        let created_at = rfc3339_micros(*created_at);
        tracing::warn!(
            id,
            event_id = %event_id,
            aggregate_type,
            event_type,
            created_at,
            "no route takes this event, and perhaps others: they wait; add a route, or remove them"
        );
        self.told = Some(now);
    }
}
