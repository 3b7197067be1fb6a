//! Keys whose first event waits for a retry, and what operators do to them meanwhile.

use std::cmp::Reverse;
use std::time::Duration;

use outbox_core::{EventId, RetryState};
use tokio::time::Instant;

use super::{Order, Place};
use crate::engine::pending::{Pending, not_before};

/// How far a due time may shift by the way through the database and still count as unchanged.
const RETRY_SHIFT: Duration = Duration::from_millis(500);

/// A waiting event whose state in the table is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Asked {
    turn: u64,
    pub(in crate::engine) id: i64,
    pub(in crate::engine) event_id: EventId,
    /// `None` for a blocked one that is not in memory.
    due: Option<Instant>,
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
    pub(in crate::engine) fn waiting(&mut self, skip: usize, most: usize) -> Vec<Asked> {
        if skip == 0 {
            // Timers of what was let go before its time: those of blocked events would stay for a year.
            let keys = &self.keys;
            self.timers
                .retain(|Reverse((due, turn))| keys.get(turn).is_some_and(|key| key.place == Place::Waiting(*due)));
        }
        let waiting = self.timers.iter().skip(skip).filter_map(|Reverse((due, turn))| {
            let key = self.keys.get(turn).filter(|key| key.place == Place::Waiting(*due))?;
            let head = key.queue.front()?;
            Some(Asked { turn: *turn, id: head.id(), event_id: head.envelope.event_id, due: Some(*due) })
        });
        let mut asked: Vec<Asked> = waiting.take(most).collect();
        let outside = self.blocked_outside.iter().skip(skip.saturating_sub(self.timers.len()));
        let outside = outside.map(|(&id, &(event_id, turn, _))| Asked { turn, id, event_id, due: None });
        asked.extend(outside.take(most - asked.len()));
        asked
    }

    /// How many places [`Order::waiting`] goes through.
    pub(in crate::engine) fn timers(&self) -> usize {
        self.timers.len() + self.blocked_outside.len()
    }

    /// Events that are known to wait for an operator.
    pub(in crate::engine) fn blocked(&self) -> usize {
        let heads = self.keys.values().filter_map(|key| key.queue.front());
        heads.filter(|head| head.blocked).count() + self.blocked_outside.len()
    }

    /// Takes over how the table sees a waiting event. When it is no longer there it comes out, as by
    /// [`Order::take`]: a row about its retries may have been left behind.
    pub(in crate::engine) fn refresh(&mut self, asked: &Asked, state: RetryState, now: Instant) -> Option<Pending> {
        let Asked { turn, id, due, .. } = *asked;
        let Some(due) = due else {
            self.refresh_outside(id, state);
            return None;
        };
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
                let due = retrying.and_then(|retrying| not_before(&retrying, now));
                // The same due time comes back a little shifted; only an operator's change moves the timer.
                let moved = match (head.not_before, due) {
                    (Some(old), Some(new)) => old.max(new) - old.min(new) > RETRY_SHIFT,
                    (old, new) => old != new,
                };
                head.attempts = retrying.map_or(0, |retrying| retrying.attempts);
                head.crashes = retrying.map_or(0, |retrying| retrying.crashes);
                let blocked = retrying.is_some_and(|retrying| retrying.blocked);
                // A blocked event has no due time that could shift.
                let moved = if blocked && head.blocked { false } else { moved || blocked != head.blocked };
                head.blocked = blocked;
                if moved {
                    head.not_before = due;
                }
            }
        });
        self.evaluate(turn, now);
        gone
    }

    /// The same for a blocked event that is not in memory: it is read again when it is blocked no more.
    fn refresh_outside(&mut self, id: i64, state: RetryState) {
        let still = matches!(state, RetryState::Waiting(retrying) if retrying.blocked);
        if !still && let Some((_, store_key, _)) = self.blocked_outside.remove(&id) {
            self.spill.open(store_key);
        }
    }
}
