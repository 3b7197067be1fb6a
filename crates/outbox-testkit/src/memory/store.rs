//! `Store` in memory: relays, transactions, and the view that tests look through.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use outbox_core::{
    Acquisition, Buckets, Confirmed, Event, EventId, Lane, Ownership, Renewal, RetryState, Routes, Selection, Store,
    StoreError, StoreErrorKind, WriteBack, WriteBackStatus,
};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::faults::{Call, Fault, Plan};
use super::hold::PATIENCE;
use super::lane::{MemoryLane, Wanted};
use super::lock;
use super::tables::{Inserted, RetryRow, Tables};
use super::transaction::MemoryTransaction;
use super::view::StoreView;

/// An outbox in memory, seen by one relay.
///
/// Clones are the same relay; [`another_relay`](Self::another_relay) is a second one over the same tables. The
/// database's clock is tokio's, plus what [`skip_time`](Self::skip_time) has added. Faults and call counts belong to
/// the relay.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    relay: Arc<Relay>,
}

/// One relay's connection.
pub(super) struct Relay {
    owner: Uuid,
    shared: Arc<Shared>,
    plan: Mutex<Plan>,
}

/// Shows the relay, not the tables: a panic message must stay readable.
impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("owner", &self.owner).field("plan", &lock(&self.plan)).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    tables: Mutex<Tables>,
    clock: Mutex<Duration>,
    born: (Instant, SystemTime),
    changed: watch::Sender<()>,
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::now() + *lock(&self.clock)
    }

    fn system_time(&self) -> SystemTime {
        let (instant, time) = self.born;
        time + self.now().saturating_duration_since(instant)
    }

    /// Runs a statement and tells all who wait for a change.
    pub(super) fn statement<T>(&self, work: impl FnOnce(&mut Tables, Instant) -> T) -> T {
        let now = self.now();
        let result = work(&mut lock(&self.tables), now);
        self.changed.send_replace(());
        result
    }
}

impl Relay {
    pub(super) fn calls(&self, call: Call) -> u64 {
        lock(&self.plan).calls(call)
    }

    /// One call of the contract: counted, with the fault whose turn it is.
    pub(super) async fn call<T>(
        &self,
        call: Call,
        work: impl FnOnce(&mut Tables, Instant) -> T,
    ) -> Result<T, StoreError> {
        let fault = lock(&self.plan).next(call);
        self.shared.changed.send_replace(());
        fault.before().await?;
        let result = self.shared.statement(work);
        fault.after().await?;
        Ok(result)
    }
}

impl MemoryStore {
    /// An empty outbox and its first relay.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared {
            tables: Mutex::new(Tables::default()),
            clock: Mutex::new(Duration::ZERO),
            born: (Instant::now(), SystemTime::now()),
            changed: watch::Sender::new(()),
        };
        Self { relay: Arc::new(Self::relay_over(Arc::new(shared))) }
    }

    fn relay_over(shared: Arc<Shared>) -> Relay {
        Relay { owner: Uuid::now_v7(), shared, plan: Mutex::new(Plan::default()) }
    }

    /// A second relay over the same tables, with faults and counts of its own.
    #[must_use]
    pub fn another_relay(&self) -> Self {
        Self { relay: Arc::new(Self::relay_over(Arc::clone(&self.relay.shared))) }
    }

    /// This relay's id, as in [`Ownership::owner`].
    #[must_use]
    pub fn owner_id(&self) -> Uuid {
        self.relay.owner
    }

    fn statement<T>(&self, work: impl FnOnce(&mut Tables, Instant) -> T) -> T {
        self.relay.shared.statement(work)
    }

    /// Writes an event and commits.
    ///
    /// # Panics
    /// When the event is not valid.
    pub fn insert(&self, event: &dyn Event) -> Inserted {
        let mut transaction = self.begin();
        let inserted = transaction.insert(event);
        transaction.commit();
        inserted
    }

    /// Writes an event that reads come back with [`Claimed::defect`](outbox_core::Claimed::defect), and commits.
    ///
    /// # Panics
    /// When the event is not valid otherwise.
    pub fn insert_defective(&self, event: &dyn Event, defect: impl Into<String>) -> Inserted {
        let mut transaction = self.begin();
        let inserted = transaction.insert_row(event, Some(defect.into()));
        transaction.commit();
        inserted
    }

    /// Writes an event under an id of the test's choice, past the sequence and its lock: what no producer can do.
    /// Below `low` only a sweep finds it.
    ///
    /// # Panics
    /// When the event is not valid or the id is taken.
    pub fn insert_with_id(&self, id: i64, event: &dyn Event) -> Inserted {
        let mut transaction = self.begin();
        let event_id = transaction.insert(event).event_id;
        let mut rows = std::mem::take(&mut transaction.rows);
        transaction.rollback();
        self.statement(|tables, _| {
            assert!(!tables.rows.contains_key(&id), "id {id} is taken");
            for mut row in rows.drain(..) {
                row.envelope.id = id;
                tables.publish_row(row);
            }
        });
        Inserted { id, event_id }
    }

    /// Opens a transaction. Dropped, it rolls back.
    #[must_use]
    pub fn begin(&self) -> MemoryTransaction {
        let created_at = self.relay.shared.system_time();
        MemoryTransaction { shared: Arc::clone(&self.relay.shared), holder: None, rows: Vec::new(), created_at }
    }

    /// Says what happens to the next call of this kind by this relay for which nothing is said yet.
    pub fn script(&self, call: Call, fault: Fault) {
        lock(&self.relay.plan).push(call, fault);
    }

    /// Refuses every call of this relay until [`set_up`](Self::set_up). Producers are not hindered.
    pub fn set_down(&self, kind: StoreErrorKind) {
        lock(&self.relay.plan).down = Some(kind);
    }

    /// Ends an outage.
    pub fn set_up(&self) {
        lock(&self.relay.plan).down = None;
    }

    /// Moves the database's clock ahead of tokio's, for all relays: leases end and retries become due, while the
    /// relays' own clocks notice nothing.
    pub fn skip_time(&self, by: Duration) {
        *lock(&self.relay.shared.clock) += by;
        self.relay.shared.changed.send_replace(());
    }

    /// Lets all leases on a route have ended, whoever owns it.
    pub fn end_leases(&self, route: &str) {
        self.statement(|tables, now| tables.owners.end_leases(route, now));
    }

    /// The server was replaced: every open lane answers [`StoreErrorKind::Restarted`] from now on.
    pub fn restart(&self) {
        self.statement(|tables, _| tables.epoch += 1);
    }

    /// Empties the outbox and lets ids start again at 1; open lanes answer [`StoreErrorKind::Restarted`].
    pub fn truncate(&self) {
        self.statement(|tables, _| tables.truncate());
    }

    /// An operator makes a waiting event due now. `false` when it has no retry row.
    pub fn make_due(&self, id: i64) -> bool {
        self.statement(|tables, now| tables.retries.get_mut(&id).map(|row| row.due = now).is_some())
    }

    /// An operator lets a blocked event go again: no attempts, no crashes, due now. `false` when it is not blocked.
    pub fn unblock(&self, id: i64) -> bool {
        self.statement(|tables, now| {
            let blocked = tables.retries.get_mut(&id).filter(|row| row.blocked);
            let unblock = |row: &mut RetryRow| {
                (row.attempts, row.crashes, row.blocked, row.due) = (0, 0, false, now);
            };
            blocked.map(unblock).is_some()
        })
    }

    /// An operator removes a retry row. `false` when there is none.
    pub fn clear_retry(&self, id: i64) -> bool {
        self.statement(|tables, _| tables.retries.remove(&id).is_some())
    }

    /// An operator deletes an event; its retry row, if any, stays behind. `false` when there is none.
    pub fn delete_event(&self, id: i64) -> bool {
        self.statement(|tables, _| tables.rows.remove(&id).is_some())
    }

    /// How often this relay has made this call, refused ones included.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.relay.calls(call)
    }

    /// Looks at the committed state. The closure runs under the store's lock: it must not call the store.
    pub fn view<T>(&self, look: impl FnOnce(&StoreView<'_>) -> T) -> T {
        let now = self.relay.shared.now();
        let tables = lock(&self.relay.shared.tables);
        look(&StoreView { tables: &tables, relay: &self.relay, now })
    }

    /// Waits until the state is as wanted; looks again after each call and each change.
    ///
    /// # Panics
    /// After [`PATIENCE`], with the state.
    pub async fn wait_until(&self, wanted: impl Fn(&StoreView<'_>) -> bool) {
        let mut changed = self.relay.shared.changed.subscribe();
        let seen = async {
            while !self.view(&wanted) {
                // An error would mean that the sender is gone, which `self` keeps alive.
                let _ = changed.changed().await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, seen).await.is_ok();
        assert!(in_time, "the store never came to the wanted state; now {}", self.view(|view| format!("{view:?}")));
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn acquire(&self, route: &Selection, lease: Duration) -> Result<Acquisition, StoreError> {
        let owner = self.relay.owner;
        self.relay.call(Call::Acquire, |tables, now| tables.owners.acquire(route, owner, lease, now)).await
    }

    async fn take_more(&self, ownership: &Ownership) -> Result<Acquisition, StoreError> {
        self.relay.call(Call::TakeMore, |tables, now| tables.owners.take_more(ownership, now)).await
    }

    async fn renew(&self, ownership: &Ownership) -> Result<Renewal, StoreError> {
        self.relay.call(Call::Renew, |tables, now| tables.owners.renew(ownership, now)).await
    }

    async fn give_back(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        self.relay.call(Call::GiveBack, |tables, _| tables.owners.give_back(ownership, buckets)).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<(), StoreError> {
        self.relay.call(Call::Release, |tables, _| tables.owners.release(ownership)).await
    }

    async fn open_lane(&self, ownership: &Ownership) -> Result<Box<dyn Lane>, StoreError> {
        let epoch = self.relay.call(Call::OpenLane, |tables, _| tables.epoch).await?;
        let wanted = Wanted::Selected(ownership.selection.clone());
        Ok(Box::new(MemoryLane::new(Arc::clone(&self.relay), epoch, wanted, ownership.buckets())))
    }

    async fn open_unrouted_lane(&self, routes: &Routes) -> Result<Box<dyn Lane>, StoreError> {
        let epoch = self.relay.call(Call::OpenLane, |tables, _| tables.epoch).await?;
        let wanted = Wanted::LeftOver(routes.clone());
        Ok(Box::new(MemoryLane::new(Arc::clone(&self.relay), epoch, wanted, Buckets::ALL)))
    }

    async fn settle(&self, _route: &str, confirmed: &[Confirmed]) -> Result<(), StoreError> {
        self.relay.call(Call::Settle, |tables, _| tables.settle(confirmed)).await
    }

    async fn write_back(
        &self,
        ownership: &Ownership,
        changes: &[WriteBack],
    ) -> Result<Vec<WriteBackStatus>, StoreError> {
        let work =
            |tables: &mut Tables, now| changes.iter().map(|change| tables.write_back(ownership, change, now)).collect();
        self.relay.call(Call::WriteBack, work).await
    }

    async fn forget_deaths(&self, ownership: &Ownership, buckets: Buckets) -> Result<(), StoreError> {
        self.relay.call(Call::ForgetDeaths, |tables, _| tables.owners.forget_deaths(ownership, buckets)).await
    }

    async fn retry_states(&self, _route: &str, waiting: &[(i64, EventId)]) -> Result<Vec<RetryState>, StoreError> {
        let work = |tables: &mut Tables, now| {
            waiting.iter().map(|(id, event_id)| tables.retry_state(*id, *event_id, now)).collect()
        };
        self.relay.call(Call::RetryStates, work).await
    }
}
