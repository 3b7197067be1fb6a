//! The tables and their statements. Each method is one atomic statement: it runs under the store's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use outbox_core::{
    Buckets, Change, Claimed, Confirmed, Envelope, Event, EventId, InvalidEvent, Ownership, RetryState, Retrying,
    WriteBack, WriteBackStatus,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::owners::Owners;

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
    /// Charged crashes so far.
    pub crashes: u32,
    /// It waits for an operator.
    pub blocked: bool,
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
    pub(super) owners: Owners,
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
        if !self.owners.is_current(ownership, change.bucket) {
            return WriteBackStatus::Fenced;
        }
        if !self.has(change.id, change.event_id) {
            if !self.rows.contains_key(&change.id) {
                self.retries.remove(&change.id);
            }
            return WriteBackStatus::Gone;
        }
        match change.change {
            Change::Acquit => {
                if let Some(row) = self.retries.get_mut(&change.id) {
                    (row.crashes, row.due) = (0, now);
                    if row.attempts == 0 && !row.blocked {
                        self.retries.remove(&change.id);
                    }
                }
            }
            Change::Retry { .. } | Change::Block => {
                let delay = if let Change::Retry { delay } = change.change { delay } else { Duration::ZERO };
                let row = RetryRow {
                    id: change.id,
                    attempts: change.attempts,
                    crashes: change.crashes,
                    blocked: change.change == Change::Block,
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
    let RetryRow { attempts, crashes, blocked, due, .. } = *retry;
    Retrying { attempts, crashes, blocked, due_in: due.saturating_duration_since(now) }
}

pub(super) fn bucket(key: u64) -> u16 {
    // The remainder is below 64.
    u16::try_from(key % Buckets::COUNT as u64).unwrap_or(0)
}

/// FNV-1a, with a byte between the two names that UTF-8 never has: `ab`, `c` is not `a`, `bc`.
fn ordering_key(aggregate_type: &str, aggregate_id: &str) -> u64 {
    let bytes = aggregate_type.bytes().chain([0xff]).chain(aggregate_id.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
