//! The read with its look-back, and the proof of `low` by the holders of the table's lock.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{
    Buckets, Claimed, Lane, ReadBatch, ReadRequest, ReadScope, Routes, Selection, StoreError, StoreErrorKind, SweepPage,
};
use tokio::time::Instant;

use super::faults::Call;
use super::store::Relay;
use super::tables::{Row, Tables, bucket};

/// Ids that one page of a sweep looks at.
const SWEEP_PAGE: usize = 10_000;

/// The sequence's value and who held the lock after it was taken: every id up to the value belongs to one of these
/// holders or is visible (or gone) to every later snapshot.
#[derive(Debug)]
struct Note {
    last_id: i64,
    holders: BTreeSet<u64>,
}

/// Which events a lane is for.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Those of a route.
    Selected(Selection),
    /// Those that none of these routes takes.
    LeftOver(Routes),
}

impl Wanted {
    fn takes(&self, row: &Row) -> bool {
        let (aggregate_type, event_type) = (&row.envelope.aggregate_type, &row.envelope.event_type);
        match self {
            Self::Selected(selection) => selection.takes(aggregate_type, event_type),
            Self::LeftOver(routes) => routes.place_of(aggregate_type, event_type).is_none(),
        }
    }
}

#[derive(Debug)]
pub(super) struct MemoryLane {
    relay: Arc<Relay>,
    epoch: u64,
    wanted: Wanted,
    /// Whose events are returned.
    buckets: Buckets,
    /// Forward reads have looked at all ids up to here.
    cursor: i64,
    /// At or below it no unseen event can appear.
    low: i64,
    notes: VecDeque<Note>,
    known: HashSet<i64>,
    /// What the relay had no room for: forward reads pass over it while they could come across it.
    dropped: HashSet<i64>,
}

/// What a read found, not yet taken over into the lane: a read that is dropped has changed nothing.
struct Found {
    batch: ReadBatch,
    cursor: i64,
    low: i64,
    notes: VecDeque<Note>,
}

impl MemoryLane {
    pub(super) fn new(relay: Arc<Relay>, epoch: u64, wanted: Wanted, buckets: Buckets) -> Self {
        let (known, dropped) = (HashSet::new(), HashSet::new());
        Self { relay, epoch, wanted, buckets, cursor: 0, low: 0, notes: VecDeque::new(), known, dropped }
    }

    fn takes(&self, row: &Row) -> bool {
        self.buckets.contains(bucket(row.key)) && self.wanted.takes(row)
    }

    fn check_epoch(&self, tables: &Tables) -> Result<(), StoreError> {
        if tables.epoch == self.epoch {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::Restarted, "the server was restarted or its ids were reset"))
    }

    fn forward(&self, tables: &mut Tables, request: &ReadRequest, now: Instant) -> Found {
        let note = Note { last_id: tables.last_id(), holders: tables.holders.clone() };
        // Look-back and new ids are one range: the lowest unknown ids of one snapshot.
        let from = self.low.min(self.cursor);
        let mut looked_at = 0;
        let rows = tables.rows.range((Excluded(from), Included(i64::MAX))).map(|(_, row)| row);
        let rows = rows.inspect(|_| looked_at += 1).filter(|row| !self.dropped.contains(&row.envelope.id));
        let mut batch = self.take(tables, rows, request, now);
        tables.looked_at += looked_at;
        batch.late = batch.events.iter().filter(|event| event.envelope.id <= self.cursor).count();

        let last_read = batch.events.last().map_or(self.cursor, |event| event.envelope.id);
        let highest = if batch.complete { tables.rows.last_key_value().map_or(0, |(id, _)| *id) } else { last_read };
        // A look-back that a limit cut short has proved nothing beyond the last row that it read.
        let proved = if !batch.complete && last_read < self.cursor { last_read } else { i64::MAX };

        // This list ends earlier notes none of whose holders it shows any more: what they had to say was visible to
        // the read just made.
        let (mut low, mut notes) = (self.low, VecDeque::new());
        for earlier in &self.notes {
            if earlier.holders.is_disjoint(&note.holders) {
                low = low.max(earlier.last_id.min(proved));
            }
            if !earlier.holders.is_disjoint(&note.holders) || earlier.last_id > proved {
                notes.push_back(Note { last_id: earlier.last_id, holders: earlier.holders.clone() });
            }
        }
        notes.push_back(note);
        let cursor = self.cursor.max(highest);
        batch.covered_through = cursor;
        Found { batch, cursor, low, notes }
    }

    fn of_keys(&self, tables: &Tables, request: &ReadRequest, now: Instant) -> ReadBatch {
        let ReadScope::Keys { keys, after, through } = &request.scope else { return ReadBatch::default() };
        if after >= through {
            return ReadBatch { complete: true, covered_through: *through, ..ReadBatch::default() };
        }
        let keys: HashSet<u64> = keys.iter().copied().collect();
        let rows = tables.rows.range((Excluded(*after), Included(*through))).map(|(_, row)| row);
        let mut batch = self.take(tables, rows.filter(|row| keys.contains(&row.key)), request, now);
        let last = batch.events.last().map_or(*through, |event| event.envelope.id);
        batch.covered_through = if batch.complete { *through } else { last };
        batch
    }

    /// The first unknown rows within the limits.
    fn take<'a>(
        &self,
        tables: &Tables,
        rows: impl Iterator<Item = &'a Row>,
        request: &ReadRequest,
        now: Instant,
    ) -> ReadBatch {
        let mut batch = ReadBatch { complete: true, ..ReadBatch::default() };
        let mut bytes = 0;
        let own = |row: &&Row| self.takes(row) && !self.known.contains(&row.envelope.id);
        for row in rows.filter(own) {
            bytes += row.envelope.bytes();
            batch.events.push(tables.claimed(row, now));
            if batch.events.len() >= request.max_events.max(1) || bytes >= request.max_bytes {
                batch.complete = false;
                break;
            }
        }
        batch
    }

    fn learn(&mut self, events: &[Claimed]) {
        for event in events {
            self.known.insert(event.envelope.id);
            self.dropped.remove(&event.envelope.id);
        }
    }
}

#[async_trait]
impl Lane for MemoryLane {
    async fn read(&mut self, request: ReadRequest) -> Result<ReadBatch, StoreError> {
        for id in &request.forget {
            self.known.remove(id);
            self.dropped.remove(id);
        }
        for id in &request.dropped {
            self.known.remove(id);
            self.dropped.insert(*id);
        }
        let relay = Arc::clone(&self.relay);
        if let ReadScope::Keys { .. } = request.scope {
            let work = |tables: &mut Tables, now| {
                self.check_epoch(tables)?;
                Ok(self.of_keys(tables, &request, now))
            };
            let batch = relay.call(Call::Read, work).await??;
            self.learn(&batch.events);
            return Ok(batch);
        }
        let work = |tables: &mut Tables, now| {
            self.check_epoch(tables)?;
            Ok(self.forward(tables, &request, now))
        };
        let found = relay.call(Call::Read, work).await??;
        (self.cursor, self.low, self.notes) = (found.cursor, found.low, found.notes);
        self.learn(&found.batch.events);
        let passed = self.low.min(self.cursor);
        self.dropped.retain(|id| *id > passed);
        Ok(found.batch)
    }

    async fn sweep(&mut self, after: i64) -> Result<SweepPage, StoreError> {
        // Above `low` an unknown id is no defect yet: the look-back of the next read finds it.
        let through = self.low.min(self.cursor);
        let relay = Arc::clone(&self.relay);
        let work = |tables: &mut Tables, _| {
            self.check_epoch(tables)?;
            if after >= through {
                return Ok(SweepPage::default());
            }
            let mut ids = tables.rows.range((Excluded(after), Included(through)));
            let page: Vec<_> = ids.by_ref().take(SWEEP_PAGE).collect();
            let unknown = page.iter().filter(|(id, row)| !self.known.contains(id) && self.takes(row));
            let unknown = unknown.map(|(id, row)| (**id, row.key));
            let more = ids.next().is_some();
            Ok(SweepPage { unknown: unknown.collect(), next: page.last().filter(|_| more).map(|(id, _)| **id) })
        };
        relay.call(Call::Sweep, work).await?
    }

    fn turn_to(&mut self, buckets: Buckets, gained: Buckets) {
        self.buckets = buckets;
        if !gained.is_empty() {
            self.cursor = 0;
            self.dropped.clear();
        }
    }
}
