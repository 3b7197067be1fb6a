//! The tables and their statements. Each method is one atomic statement: it runs under the store's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use outbox_core::{
    Acquisition, Change, Claimed, Confirmed, Envelope, Event, EventId, InvalidEvent, Ownership, RetryState, Retrying,
    Routes, Selection, WriteBack, WriteBackStatus,
};
use tokio::time::Instant;
use uuid::Uuid;

/// As many buckets as the PostgreSQL store has.
const BUCKETS: u16 = 64;

/// Where an event went: its place in the order and its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// Its row.
    pub id: i64,
    /// Its identity.
    pub event_id: EventId,
}

/// What an earlier attempt left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRow {
    /// The event's row.
    pub id: i64,
    /// Charged attempts so far.
    pub attempts: u32,
    /// Name of the last error's kind.
    pub kind: String,
    /// The last error.
    pub error: String,
    /// When the next attempt is due, by the store's clock.
    pub due: Instant,
}

/// An event that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The event.
    pub envelope: Envelope,
    /// Charged attempts.
    pub attempts: u32,
    /// Name of the error's kind.
    pub kind: String,
    /// Why.
    pub reason: String,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) envelope: Envelope,
    pub(super) key: u64,
    defect: Option<String>,
}

#[derive(Debug)]
struct RouteRow {
    /// `None` once released.
    owner: Option<(Uuid, Instant)>,
    tokens: Arc<[i64]>,
    /// All routes of the relay that owned it last.
    routes: Routes,
}

/// Everything that is committed, and who holds ids that are not.
#[derive(Debug, Default)]
pub(super) struct Tables {
    last_id: i64,
    next_holder: u64,
    /// Transactions that hold the table's lock: from before their first id until their rows are visible.
    pub(super) holders: BTreeSet<u64>,
    pub(super) rows: BTreeMap<i64, Row>,
    pub(super) retries: BTreeMap<i64, RetryRow>,
    pub(super) dead: Vec<DeadLetter>,
    routes: BTreeMap<String, RouteRow>,
    pub(super) settled: u64,
    /// Rows that forward reads have looked at, whosever they were.
    pub(super) looked_at: u64,
    /// Grows when the server is replaced or its ids are reset.
    pub(super) epoch: u64,
}

impl Tables {
    /// The sequence's last value.
    pub(super) const fn last_id(&self) -> i64 {
        self.last_id
    }

    pub(super) const fn new_holder(&mut self) -> u64 {
        self.next_holder += 1;
        self.next_holder
    }

    pub(super) fn make_row(
        &mut self,
        event: &dyn Event,
        defect: Option<String>,
        created_at: SystemTime,
    ) -> Result<Row, InvalidEvent> {
        let envelope = Envelope {
            id: self.last_id + 1,
            event_id: event.event_id().unwrap_or_else(|| EventId::from_uuid(Uuid::now_v7())),
            aggregate_type: event.aggregate_type().into_owned(),
            aggregate_id: event.aggregate_id().into_owned(),
            event_type: event.event_type().into_owned(),
            payload: event.payload()?,
            headers: event.headers(),
            created_at,
        };
        InvalidEvent::check(
            &envelope.aggregate_type,
            &envelope.aggregate_id,
            &envelope.event_type,
            &envelope.payload,
            &envelope.headers,
        )?;
        self.last_id += 1;
        let key = ordering_key(&envelope.aggregate_type, &envelope.aggregate_id);
        Ok(Row { envelope, key, defect })
    }

    pub(super) fn publish_row(&mut self, row: Row) {
        self.rows.insert(row.envelope.id, row);
    }

    /// TRUNCATE … RESTART IDENTITY, or a restore of an empty database.
    pub(super) fn truncate(&mut self) {
        self.rows.clear();
        self.retries.clear();
        self.last_id = 0;
        self.epoch += 1;
    }

    pub(super) fn claimed(&self, row: &Row, now: Instant) -> Claimed {
        Claimed {
            envelope: row.envelope.clone(),
            key: row.key,
            bucket: bucket(row.key),
            retrying: self.retries.get(&row.envelope.id).map(|retry| retrying(retry, now)),
            defect: row.defect.clone(),
        }
    }

    fn has(&self, id: i64, event_id: EventId) -> bool {
        self.rows.get(&id).is_some_and(|row| row.envelope.event_id == event_id)
    }

    /// Who owns the route under a lease that has not ended.
    pub(super) fn owner(&self, route: &str, now: Instant) -> Option<Uuid> {
        let (owner, lease_end) = self.routes.get(route)?.owner?;
        (lease_end > now).then_some(owner)
    }

    pub(super) fn acquire(&mut self, route: &Selection, owner: Uuid, lease: Duration, now: Instant) -> Acquisition {
        let at_work = |row: &&RouteRow| row.owner.is_some_and(|(_, lease_end)| lease_end > now);
        if let Some(row) = self.routes.values().filter(at_work).find(|row| row.routes != *route.routes()) {
            return Acquisition::OtherRoutes { in_force: Some(row.routes.clone()) };
        }
        if self.owner(route.name(), now).is_some_and(|other| other != owner) {
            return Acquisition::Taken;
        }
        let tokens: Arc<[i64]> = match self.routes.get(route.name()) {
            Some(row) => row.tokens.iter().map(|token| token + 1).collect(),
            None => (0..BUCKETS).map(|_| 1).collect(),
        };
        let owned = Some((owner, now + lease));
        let row = RouteRow { owner: owned, tokens: Arc::clone(&tokens), routes: route.routes().clone() };
        self.routes.insert(route.name().to_owned(), row);
        Acquisition::Owned(Ownership { selection: route.clone(), owner, lease, tokens })
    }

    pub(super) fn end_lease(&mut self, route: &str, now: Instant) {
        if let Some((_, lease_end)) = self.routes.get_mut(route).and_then(|row| row.owner.as_mut()) {
            *lease_end = now;
        }
    }

    fn owned(&mut self, ownership: &Ownership) -> Option<&mut RouteRow> {
        let row = self.routes.get_mut(ownership.route())?;
        let owner = row.owner.is_some_and(|(owner, _)| owner == ownership.owner);
        (owner && row.tokens == ownership.tokens).then_some(row)
    }

    pub(super) fn renew(&mut self, ownership: &Ownership, now: Instant) -> bool {
        let row = self.owned(ownership);
        row.map(|row| row.owner = Some((ownership.owner, now + ownership.lease))).is_some()
    }

    pub(super) fn release(&mut self, ownership: &Ownership) {
        if let Some(row) = self.owned(ownership) {
            row.owner = None;
        }
    }

    pub(super) fn settle(&mut self, confirmed: &[Confirmed]) {
        for event in confirmed {
            if self.has(event.id, event.event_id) {
                self.rows.remove(&event.id);
                self.settled += 1;
                // A relay that forgets that it has failed before leaves this row behind, as in the real store.
                if event.retried {
                    self.retries.remove(&event.id);
                }
            }
        }
    }

    pub(super) fn write_back(&mut self, ownership: &Ownership, change: &WriteBack, now: Instant) -> WriteBackStatus {
        let bucket = usize::from(change.bucket);
        let valid = self.routes.get(ownership.route()).and_then(|row| row.tokens.get(bucket));
        if valid.is_none() || valid != ownership.tokens.get(bucket) {
            return WriteBackStatus::Fenced;
        }
        if !self.has(change.id, change.event_id) {
            if !self.rows.contains_key(&change.id) {
                self.retries.remove(&change.id);
            }
            return WriteBackStatus::Gone;
        }
        match change.change {
            Change::Retry { delay } => {
                let row = RetryRow {
                    id: change.id,
                    attempts: change.attempts,
                    kind: change.kind.to_owned(),
                    error: change.error.clone(),
                    due: now + delay,
                };
                self.retries.insert(change.id, row);
            }
            Change::Dead => {
                self.retries.remove(&change.id);
                self.dead.extend(self.rows.remove(&change.id).map(|row| DeadLetter {
                    envelope: row.envelope,
                    attempts: change.attempts,
                    kind: change.kind.to_owned(),
                    reason: change.error.clone(),
                }));
            }
        }
        WriteBackStatus::Done
    }

    pub(super) fn retry_state(&self, id: i64, event_id: EventId, now: Instant) -> RetryState {
        if !self.has(id, event_id) {
            return RetryState::Gone;
        }
        self.retries.get(&id).map_or(RetryState::Clear, |retry| RetryState::Waiting(retrying(retry, now)))
    }
}

fn retrying(retry: &RetryRow, now: Instant) -> Retrying {
    Retrying { attempts: retry.attempts, due_in: retry.due.saturating_duration_since(now) }
}

fn bucket(key: u64) -> u16 {
    // The remainder is below 64.
    u16::try_from(key % u64::from(BUCKETS)).unwrap_or(0)
}

/// FNV-1a, with a byte between the two names that UTF-8 never has: `ab`, `c` is not `a`, `bc`.
fn ordering_key(aggregate_type: &str, aggregate_id: &str) -> u64 {
    let bytes = aggregate_type.bytes().chain([0xff]).chain(aggregate_id.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
