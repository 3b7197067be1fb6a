//! What a lane remembers between its reads: the cursor, the notes, and the ids that it has returned. Pure, so that the
//! model in the tests runs the very code that the lane runs.

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::notes::{Holder, Notes, Snapshot};

/// Ids that one read may leave out, 8 bytes each on their way to the server. Ordinarily there are some thousand: the
/// relay's window and queues. Events that were dropped above `low` count too, so a writer that holds `low` back for
/// long while the relay drops much would let them grow without end.
const MAX_LEFT_OUT: usize = 100_000;

/// The memory of one lane.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Every event at or below it that was visible has been returned; later ones below it are found by the look-back.
    cursor: i64,
    notes: Notes,
    /// Ids that were returned and are somewhere in the relay, or left the table a moment ago.
    known: BTreeSet<i64>,
    /// Ids above `low` that the relay dropped: no forward read returns them again.
    dropped: BTreeSet<i64>,
}

/// Where a read begins, and what it must leave out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) after: i64,
    pub(crate) leave_out: Vec<i64>,
    /// Read up to and with this id: to the end, but for a memory that is full, and for the reach of a filtered read.
    pub(crate) through: i64,
    /// The memory is full: late events only.
    pub(crate) is_full: bool,
}

/// What ended a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A limit of rows or bytes.
    Limit,
    /// Nothing more was there in its snapshot.
    Nothing,
    /// The reach of a filtered read: up to and with this id it has looked at everything, and there may be more.
    Reach(i64),
    /// Nothing more was there for a filtered read that looked at everything, other routes' events included.
    NothingOfOurs,
}

impl Memory {
    /// Takes in what a request says about earlier ones, before anything can fail.
    pub(crate) fn take_in(&mut self, forget: &[i64], dropped: &[i64]) {
        for id in forget {
            self.known.remove(id);
        }
        for id in dropped {
            if self.known.remove(id) {
                self.dropped.insert(*id);
            }
        }
    }

    /// Buckets were gained: everything is read again from zero but what is known. `low` tells what can still be committed,
    /// whosever buckets it is in, so it stays; and with the cursor below it each read begins at the cursor. What was
    /// dropped is returned once more, since nothing tells which of it lies in a gained bucket.
    pub(crate) fn rewind(&mut self) {
        self.cursor = 0;
        self.dropped.clear();
    }

    /// Takes down the note of the forward read that is about to be made.
    pub(crate) fn note(&mut self, value: i64, holders: Vec<Holder>, now: Instant) {
        self.notes.note(value, holders, now);
    }

    /// Where a forward read in this snapshot begins. The snapshot must be younger than the last note. A filtered read
    /// has a reach, the ids that it may look at beyond the look-back; others go to the end.
    pub(crate) fn forward(&self, snapshot: &Snapshot, reach: Option<i64>) -> Start {
        let back_to = self.notes.look_back_to(snapshot);
        let after = back_to.min(self.cursor);
        // The look-back is made whole, since each read begins it anew as long as something holds `low` back. Only that
        // for a long writer that has ended is made in parts: it is made once, and the cursor is put back for it.
        let from = if back_to < self.notes.low() { after } else { self.cursor };
        let reached = reach.map_or(i64::MAX, |reach| from.saturating_add(reach));
        let from = after.saturating_add(1);
        let leave_out: Vec<i64> = self.known.range(from..).chain(self.dropped.range(from..)).copied().collect();
        // Something holds `low` back while much is read and dropped: only late events until it has moved. What lies above
        // the cursor was returned before the lane went back to zero: it makes nothing grow, and must not stop the reads
        // that have to pass it.
        let is_full = leave_out.iter().filter(|id| **id <= self.cursor).count() > MAX_LEFT_OUT;
        let through = if is_full { self.cursor } else { reached };
        Start { after, leave_out, through, is_full }
    }

    /// What ended a filtered read that began so and that no limit ended. Whether there may be more beyond its reach is
    /// told by the last note: ids above it were handed out a moment ago.
    pub(crate) fn filtered_end(&self, start: &Start) -> End {
        if start.is_full {
            End::Nothing
        } else if start.through < self.notes.last_value() {
            End::Reach(start.through)
        } else {
            End::NothingOfOurs
        }
    }

    /// The forward read has been made and has returned these ids, in order. Returns how many lay below the cursor.
    pub(crate) fn forward_made(&mut self, snapshot: &Snapshot, ids: &[i64], end: End) -> usize {
        let late = ids.iter().take_while(|id| **id <= self.cursor).count();
        let last = ids.last().copied().unwrap_or(self.cursor);
        // A page that did not hold everything puts the cursor back: what lies above it is read in order.
        self.cursor = match end {
            End::Limit => last,
            End::Reach(through) => through,
            End::Nothing | End::NothingOfOurs => self.cursor.max(last),
        };
        self.notes.read_made(snapshot);
        self.learn(ids);
        if end == End::NothingOfOurs {
            // Everything visible up to the note has been looked at, and `low` is at most that: with the cursor there,
            // other routes' events are not looked at again, nor where they were.
            self.cursor = self.cursor.max(self.notes.low());
        }
        // At and below where reads begin nothing can be come across again.
        let passed = self.notes.low().min(self.cursor);
        self.dropped = self.dropped.split_off(&passed.saturating_add(1));
        late
    }

    /// What a read of keys must leave out.
    pub(crate) fn keys(&self, after: i64) -> Start {
        let leave_out = self.known.range(after.saturating_add(1)..).copied().collect();
        Start { after, leave_out, through: i64::MAX, is_full: false }
    }

    /// These ids were returned.
    pub(crate) fn learn(&mut self, ids: &[i64]) {
        for id in ids {
            self.dropped.remove(id);
            self.known.insert(*id);
        }
    }

    /// Up to here every visible event has been returned and no other can appear: what a sweep may check.
    pub(crate) fn swept_through(&self) -> i64 {
        self.notes.settled_below().min(self.cursor)
    }

    /// Whether a sweep that finds this id has found a defect, or something that the relay dropped long ago.
    pub(crate) fn is_unknown(&self, id: i64) -> bool {
        !self.known.contains(&id) && !self.dropped.contains(&id)
    }

    pub(crate) fn cursor(&self) -> i64 {
        self.cursor
    }

    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "memory_tests_steps.rs"]
mod steps;
