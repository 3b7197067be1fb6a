//! Keys that give up their place in memory, so that what is stuck keeps within its budget.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Key, Order, Place};

/// The longest time that an evicted key stays out before it is read again. For one that waits for a retry: an
/// operator's change is seen by then. For one of a paused topic: a safety net, since it is read again when the topic
/// works. Short, a long wait would read the whole backlog over and over.
const EVICTED_GATE: Duration = Duration::from_secs(60);

/// The same for one that is blocked, whose changes are seen otherwise: a safety net.
const BLOCKED_GATE: Duration = Duration::from_secs(600);

impl Order {
    /// Keeps stuck events within their budget: the key that came last gives up its place in memory.
    pub(super) fn shrink(&mut self, turn: u64, now: Instant) {
        if self.stuck.events <= self.budget.events && self.stuck.bytes <= self.budget.bytes {
            return;
        }
        let Some(key) = self.keys.get(&turn) else { return };
        let until = match &key.place {
            // The refresh finds out when an operator lets it go.
            Place::Waiting(_) if key.queue.front().is_some_and(|head| head.blocked) => now + BLOCKED_GATE,
            // Not all the time until a retry: operators may make it due, or delete it.
            Place::Waiting(due) => (*due).min(now + EVICTED_GATE),
            // One key of each paused topic stays, to probe with: at most as many as there are paused topics.
            Place::Parked(topic) if self.parked.get(topic).is_none_or(|turns| turns.len() <= 1) => return,
            Place::Parked(_) => now + EVICTED_GATE,
            // Suspects are at most one window; the others are not stuck.
            Place::Suspect | Place::Careful | Place::Ready | Place::Out => return,
        };
        let store_key = key.store_key;
        let mut evicted = VecDeque::new();
        self.change(turn, store_key, |key| {
            evicted = std::mem::take(&mut key.queue);
            key.bytes = 0;
        });
        if let Some(Key { place: Place::Parked(topic), .. }) = self.keys.remove(&turn) {
            if let Some(turns) = self.parked.get_mut(&topic)
                && turns.last() == Some(&turn)
            {
                turns.pop();
            }
            self.evicted.entry(topic).or_default().insert(store_key);
        }
        if let Some(head) = evicted.front().filter(|head| head.blocked) {
            self.blocked_outside.insert(head.id(), (head.envelope.event_id, store_key, head.bucket));
        }
        for pending in evicted {
            self.drop_event(store_key, pending.id());
        }
        self.spill.gate(store_key, until);
    }
}
