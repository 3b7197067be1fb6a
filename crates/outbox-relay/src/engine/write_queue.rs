//! Write-backs on their way to the table. Pure.

use std::time::Duration;

use outbox_core::Buckets;
use tokio::time::Instant;

use super::retry::backoff;
use super::tasks::Change;

/// Write-backs in one statement; each may carry 4 KiB of error text.
const MAX_WRITE_BACKS: usize = 500;

/// The first and the longest pause before a write-back that the database refuses alone is tried again.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Stands for an error's text that may be what the database refuses.
const PLAIN_REASON: &str = "the error's own text could not be stored; see the relay's log";

/// What waits to be written. A statement that the database refuses is cut in halves down to the row at fault, which
/// then goes alone, so that it holds up no other.
#[derive(Debug)]
pub(super) struct WriteQueue {
    waiting: Vec<Change>,
    /// As many go into the next statement.
    most: usize,
    under_way: bool,
    refused: Vec<(Instant, Change)>,
    refused_last: bool,
}

impl WriteQueue {
    pub(super) fn new() -> Self {
        Self { waiting: Vec::new(), most: MAX_WRITE_BACKS, under_way: false, refused: Vec::new(), refused_last: false }
    }

    pub(super) fn push(&mut self, change: Change) {
        self.waiting.push(change);
    }

    /// Nothing waits that has not been refused alone: for such a one no shutdown waits.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting.is_empty() && !self.under_way
    }

    /// Those that the database refuses.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Gives up those refused ones that are about these buckets: their next owner may have more luck.
    pub(super) fn abandon(&mut self, buckets: Buckets) -> Vec<Change> {
        let refused = std::mem::take(&mut self.refused);
        let (left, abandoned): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(_, change)| !buckets.contains(change.write_back.bucket));
        self.refused = left;
        abandoned.into_iter().map(|(_, change)| change).collect()
    }

    /// When a refused one is tried again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.refused.iter().map(|(due, _)| *due).min()
    }

    /// The next statement; one at a time.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Vec<Change>> {
        if self.under_way {
            return None;
        }
        let due = self.refused.iter().position(|(due, _)| *due <= now);
        // In turn with the others, which must not wait for however many refused ones.
        let changes = match due.filter(|_| !self.refused_last || self.waiting.is_empty()) {
            Some(at) => vec![self.refused.swap_remove(at).1],
            None if self.waiting.is_empty() => return None,
            None => {
                let rest = self.waiting.split_off(self.waiting.len().min(self.most));
                std::mem::replace(&mut self.waiting, rest)
            }
        };
        self.refused_last = due.is_some() && !self.refused_last;
        self.under_way = true;
        Some(changes)
    }

    /// The statement was answered.
    pub(super) fn written(&mut self) {
        self.under_way = false;
        self.most = self.most.saturating_mul(2).min(MAX_WRITE_BACKS);
    }

    /// The statement failed, not by its rows: all go again in their old order, before what came meanwhile.
    pub(super) fn failed(&mut self, mut changes: Vec<Change>) {
        self.under_way = false;
        changes.append(&mut self.waiting);
        self.waiting = changes;
    }

    /// The database refuses the statement: half of it goes next. One alone is the row at fault: it is tried with a
    /// plain reason at once, then with growing pauses, and returned.
    pub(super) fn refuse(&mut self, mut changes: Vec<Change>, now: Instant, random: f64) -> Option<&Change> {
        if changes.len() != 1 {
            self.most = (changes.len() / 2).max(1);
            self.failed(changes);
            return None;
        }
        self.under_way = false;
        // Where there is one there may be more: the next statements grow anew.
        self.most = 1;
        let mut change = changes.pop()?;
        change.refusals = change.refusals.saturating_add(1);
        let due = if change.refusals == 1 {
            PLAIN_REASON.clone_into(&mut change.write_back.error);
            now
        } else {
            let (initial, max) = REFUSED_PAUSE;
            now + backoff(initial, max, change.refusals - 1, random)
        };
        self.refused.push((due, change));
        self.refused.last().map(|(_, change)| change)
    }
}
