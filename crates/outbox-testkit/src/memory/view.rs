//! The committed state, as tests look at it.

use std::collections::BTreeMap;
use std::fmt;

use outbox_core::Buckets;
use tokio::time::Instant;
use uuid::Uuid;

use super::faults::Call;
use super::store::Relay;
use super::tables::{DeadLetter, Inserted, RetryRow, Tables};

/// The committed state of a [`MemoryStore`](super::MemoryStore) at one moment.
pub struct StoreView<'a> {
    pub(super) tables: &'a Tables,
    pub(super) relay: &'a Relay,
    pub(super) now: Instant,
}

impl StoreView<'_> {
    /// How many events are there: pending, in flight and waiting.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.tables.rows.len()
    }

    /// Their ids, in order.
    #[must_use]
    pub fn ids(&self) -> Vec<i64> {
        self.tables.rows.keys().copied().collect()
    }

    /// Whether this event is still there.
    #[must_use]
    pub fn contains(&self, id: i64) -> bool {
        self.tables.rows.contains_key(&id)
    }

    /// All events, in order.
    #[must_use]
    pub fn inserted(&self) -> Vec<Inserted> {
        let rows = self.tables.rows.values();
        rows.map(|row| Inserted { id: row.envelope.id, event_id: row.envelope.event_id }).collect()
    }

    /// The retry rows, by id.
    #[must_use]
    pub fn retries(&self) -> Vec<RetryRow> {
        self.tables.retries.values().cloned().collect()
    }

    /// The retry row of an event.
    #[must_use]
    pub fn retry(&self, id: i64) -> Option<&RetryRow> {
        self.tables.retries.get(&id)
    }

    /// The dead letters, oldest first.
    #[must_use]
    pub fn dead_letters(&self) -> &[DeadLetter] {
        &self.tables.dead
    }

    /// How many events were settled since the store was made.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.tables.settled
    }

    /// How many rows forward reads have looked at since the store was made, whatever route they belong to.
    #[must_use]
    pub const fn looked_at(&self) -> u64 {
        self.tables.looked_at
    }

    /// Who owns the whole route under a lease that has not ended.
    #[must_use]
    pub fn owner(&self, route: &str) -> Option<Uuid> {
        let shares = self.shares(route).into_iter();
        shares.filter(|(_, buckets)| *buckets == Buckets::COUNT).map(|(owner, _)| owner).next()
    }

    /// Who owns how many buckets of the route under a lease that has not ended.
    #[must_use]
    pub fn shares(&self, route: &str) -> BTreeMap<Uuid, usize> {
        self.tables.owners.shares(route, self.now)
    }

    /// How many owners of the route in a row have ended without a release and left events behind.
    #[must_use]
    pub fn deaths(&self, route: &str) -> u32 {
        self.tables.owners.deaths(route)
    }

    /// How often this relay has made this call.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.relay.calls(call)
    }

    /// The database's clock.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }
}

impl fmt::Debug for StoreView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<_> = self.tables.rows.keys().take(20).collect();
        f.debug_struct("StoreView")
            .field("pending", &self.pending())
            .field("first_ids", &first)
            .field("settled", &self.settled())
            .field("retries", &self.tables.retries.len())
            .field("dead_letters", &self.tables.dead.len())
            .field("open_writers", &self.tables.holders.len())
            .field("relay", self.relay)
            .finish_non_exhaustive()
    }
}
