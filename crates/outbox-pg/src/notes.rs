//! `low`: the id below which no unseen event can appear. Pure; proved by locks.
//!
//! A *note* is the sequence's value and, after it, the list of who holds RowExclusiveLock on `events`. Ids up to the
//! value belong to the listed holders or are visible to every later snapshot. When a later list has none of a note's
//! holders and a read was made after that list, `low` moves to the note's value.
//!
//! A holder that stays for long is kept aside with the `low` at which it was first seen, so that it does not hold
//! everything back. A read whose snapshot sees it finished looks back to that `low` once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// A holder older than this is kept aside. Shorter ones are waited for: `low` then trails by their length at most.
const LONG: Duration = Duration::from_secs(2);

/// Notes kept. One is made with each read and goes when its holders are gone, within [`LONG`] as a rule. Dropping the
/// oldest is safe: `low` then waits for a later one.
const MAX_NOTES: usize = 4_096;

/// A virtual transaction: never reused while the server runs, and kept by a prepared transaction.
pub(crate) type Vxid = String;

/// Who holds the lock, with the transaction id if it has one yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) vxid: Vxid,
    pub(crate) xid: Option<u32>,
}

/// A snapshot as `pg_current_snapshot()` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    xmin: u64,
    xmax: u64,
    in_progress: HashSet<u64>,
}

impl Snapshot {
    /// Reads `xmin:xmax:xip,xip,…`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let xmin = parts.next()?.parse().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let list = parts.next()?.split(',').filter(|xid| !xid.is_empty());
        let in_progress = list.map(|xid| xid.parse().ok()).collect::<Option<_>>()?;
        Some(Self { xmin, xmax, in_progress })
    }

    /// Whether a transaction had ended when the snapshot was taken. `xid` is the short form of the lock table: its
    /// epoch is that which puts it nearest to the snapshot, as transactions in progress always are.
    fn has_ended(&self, xid: u32) -> bool {
        const EPOCH: u64 = 1 << 32;
        const HALF: u64 = 1 << 31;
        let mut full = (self.xmax & !(EPOCH - 1)) | u64::from(xid);
        if full > self.xmax.saturating_add(HALF) {
            full = full.saturating_sub(EPOCH);
        } else if full.saturating_add(HALF) < self.xmax {
            full = full.saturating_add(EPOCH);
        }
        full < self.xmin || (full < self.xmax && !self.in_progress.contains(&full))
    }
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    /// `low` when it was first listed: its ids are above.
    low: i64,
    xid: Option<u32>,
    aside: bool,
}

#[derive(Debug)]
struct Note {
    value: i64,
    holders: HashSet<Vxid>,
}

/// The notes of one lane.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    low: i64,
    /// The last one belongs to the read that is being made.
    notes: VecDeque<Note>,
    seen: HashMap<Vxid, Seen>,
}

impl Notes {
    /// Takes down a note: made before the read's snapshot, the value before the list.
    pub(crate) fn note(&mut self, value: i64, holders: Vec<Holder>, now: Instant) {
        for holder in &holders {
            let seen = self.seen.entry(holder.vxid.clone()).or_insert(Seen {
                since: now,
                low: self.low,
                xid: None,
                aside: false,
            });
            seen.xid = seen.xid.or(holder.xid);
            // One without a transaction id can't be recognised as finished in a snapshot: it holds `low` back.
            seen.aside = seen.aside || (seen.xid.is_some() && now.saturating_duration_since(seen.since) >= LONG);
        }
        if self.notes.len() >= MAX_NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(Note { value, holders: holders.into_iter().map(|holder| holder.vxid).collect() });
    }

    /// Where a read in this snapshot must begin to see every event that it may not have seen: above this id.
    pub(crate) fn look_back_to(&self, snapshot: &Snapshot) -> i64 {
        let ended = self.seen.values().filter(|seen| seen.aside && seen.ended_in(snapshot));
        ended.map(|seen| seen.low).fold(self.low, i64::min)
    }

    /// Below and at this id every visible event has been returned and no other can appear, kept-aside writers
    /// included: what a sweep may check.
    pub(crate) fn settled_below(&self) -> i64 {
        self.seen.values().map(|seen| seen.low).fold(self.low, i64::min)
    }

    /// The read that the last note was made for has been made, in this snapshot.
    pub(crate) fn read_made(&mut self, snapshot: &Snapshot) {
        let Some(current) = self.notes.pop_back() else { return };
        self.seen.retain(|vxid, seen| current.holders.contains(vxid) && !(seen.aside && seen.ended_in(snapshot)));
        let seen = &self.seen;
        let holds_back = |vxid: &Vxid| {
            let aside = seen.get(vxid).is_some_and(|seen| seen.aside);
            !aside && current.holders.contains(vxid)
        };
        let mut low = self.low;
        self.notes.retain(|note| {
            let held = note.holders.iter().any(holds_back);
            if !held {
                low = low.max(note.value);
            }
            held
        });
        self.low = low;
        self.notes.push_back(current);
    }

    /// How many writers are kept aside.
    pub(crate) fn aside(&self) -> usize {
        self.seen.values().filter(|seen| seen.aside).count()
    }

    /// The sequence's value in the last note; before the first one everything is still to come.
    pub(crate) fn last_value(&self) -> i64 {
        self.notes.back().map_or(i64::MAX, |note| note.value)
    }

    pub(crate) fn low(&self) -> i64 {
        self.low
    }
}

impl Seen {
    fn ended_in(&self, snapshot: &Snapshot) -> bool {
        self.xid.is_some_and(|xid| snapshot.has_ended(xid))
    }
}

#[cfg(test)]
#[path = "notes_tests.rs"]
mod tests;
