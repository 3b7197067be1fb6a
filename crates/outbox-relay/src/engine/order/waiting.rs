//! Keys whose first event waits for a retry, and what operators do to them meanwhile.

use std::cmp::Reverse;
use std::time::Duration;

use outbox_core::{EventId, RetryState};
use tokio::time::Instant;

use super::{Order, Place};
use crate::engine::pending::{Pending, due_at};

/// How far a due time may shift by the way through the database and still count as unchanged.
const RETRY_SHIFT: Duration = Duration::from_millis(500);

/// A waiting event whose state in the table is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Asked {
    turn: u64,
    pub(in crate::engine) id: i64,
    pub(in crate::engine) event_id: EventId,
    due: Instant,
}

impl Order {
    /// Lets the keys go whose retry is due.
    pub(in crate::engine) fn wake(&mut self, now: Instant) {
        while let Some(Reverse((due, turn))) = self.timers.peek().copied() {
            if due > now {
                break;
            }
            self.timers.pop();
            if self.keys.get(&turn).is_some_and(|key| key.place == Place::Waiting(due)) {
                self.evaluate(turn, now);
            }
        }
        self.spill.open_gates(now);
    }

    /// When something that waits is due.
    pub(in crate::engine) fn next_due(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((due, _))| *due);
        timer.into_iter().chain(self.spill.next_gate()).min()
    }

    /// Some of the events that wait for a retry, from `skip` on, so that an operator's changes are seen.
    pub(in crate::engine) fn waiting(&self, skip: usize, most: usize) -> Vec<Asked> {
        let waiting = self.timers.iter().skip(skip).filter_map(|Reverse((due, turn))| {
            let key = self.keys.get(turn).filter(|key| key.place == Place::Waiting(*due))?;
            let head = key.queue.front()?;
            Some(Asked { turn: *turn, id: head.id(), event_id: head.envelope.event_id, due: *due })
        });
        waiting.take(most).collect()
    }

    pub(in crate::engine) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Takes over how the table sees a waiting event. When it is no longer there it comes out, as by
    /// [`Order::take`]: a row about its retries may have been left behind.
    pub(in crate::engine) fn refresh(&mut self, asked: &Asked, state: RetryState, now: Instant) -> Option<Pending> {
        let Asked { turn, id, due, .. } = *asked;
        // An answer that was overtaken by the next attempt says nothing about the one after it.
        let key = self.keys.get(&turn).filter(|key| key.place == Place::Waiting(due))?;
        if key.queue.front().map(Pending::id) != Some(id) {
            return None;
        }
        let store_key = key.store_key;
        let mut gone = None;
        self.change(turn, store_key, |key| {
            if state == RetryState::Gone {
                if let Some(head) = key.queue.pop_front() {
                    key.bytes -= head.bytes;
                    key.out += 1;
                    gone = Some(head);
                }
            } else if let Some(head) = key.queue.front_mut() {
                let retrying = match state {
                    RetryState::Waiting(retrying) => Some(retrying),
                    RetryState::Clear | RetryState::Gone => None,
                };
                let due = retrying.map(|retrying| due_at(retrying.due_in, now));
                // The same due time comes back a little shifted; only an operator's change moves the timer.
                let moved = match (head.not_before, due) {
                    (Some(old), Some(new)) => old.max(new) - old.min(new) > RETRY_SHIFT,
                    (old, new) => old != new,
                };
                head.attempts = retrying.map_or(0, |retrying| retrying.attempts);
                if moved {
                    head.not_before = due;
                }
            }
        });
        self.evaluate(turn, now);
        gone
    }
}
