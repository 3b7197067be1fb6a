//! Keys that stand aside: parked for a paused topic, suspected of cutting the connection, or of killing the process.

use std::sync::Arc;

use outbox_core::Buckets;
use tokio::time::Instant;

use super::{Order, Place};
use crate::engine::pending::Pending;

impl Order {
    pub(super) fn park(&mut self, turn: u64, topic: Arc<str>, now: Instant) {
        if let Some(store_key) = self.keys.get(&turn).map(|key| key.store_key) {
            self.move_to(turn, store_key, Place::Parked(topic), now);
        }
    }

    /// Lets the keys of a topic go.
    pub(in crate::engine) fn unpark(&mut self, topic: &str, now: Instant) {
        for store_key in self.evicted.remove(topic).unwrap_or_default() {
            self.spill.open(store_key);
        }
        for turn in self.parked.remove(topic).unwrap_or_default() {
            if let Some(key) = self.keys.get(&turn)
                && matches!(&key.place, Place::Parked(parked) if **parked == *topic)
            {
                let store_key = key.store_key;
                let place = key.queue.front().map_or(Place::Ready, |head| self.free_place(head));
                self.move_to(turn, store_key, place, now);
            }
        }
    }

    /// One event of a paused topic, sent to see whether the topic is back.
    pub(in crate::engine) fn take_parked(&mut self, topic: &str) -> Option<Pending> {
        let turns = self.parked.get_mut(topic)?;
        while let Some(turn) = turns.pop() {
            let Some(key) = self.keys.get(&turn) else { continue };
            if !matches!(&key.place, Place::Parked(parked) if **parked == *topic) {
                continue;
            }
            let head = self.take_head(turn);
            return head;
        }
        self.parked.remove(topic);
        None
    }

    /// Whether a suspect waits for its turn.
    pub(in crate::engine) fn has_suspect(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// The next suspect, to be sent while nothing else is at the publisher.
    pub(in crate::engine) fn take_suspect(&mut self) -> Option<Pending> {
        while let Some(turn) = self.suspects.pop_front() {
            if self.keys.get(&turn).is_none_or(|key| key.place != Place::Suspect) {
                continue;
            }
            let suspect = self.take_head(turn);
            if suspect.is_some() {
                return suspect;
            }
        }
        None
    }

    /// Takes the first event of a key out.
    fn take_head(&mut self, turn: u64) -> Option<Pending> {
        let store_key = self.keys.get(&turn)?.store_key;
        let mut head = None;
        self.change(turn, store_key, |key| {
            head = key.queue.pop_front();
            if let Some(head) = &head {
                key.bytes -= head.bytes;
                key.out += 1;
            }
            key.place = Place::Out;
        });
        head
    }

    /// From now on events of these buckets are sent carefully, and of others not unless a crash is charged to them.
    pub(in crate::engine) fn care_for(&mut self, buckets: Buckets, now: Instant) {
        self.careful_buckets = buckets;
        for turn in std::mem::take(&mut self.careful) {
            if self.keys.get(&turn).is_some_and(|key| key.place == Place::Careful) {
                self.free(turn, now);
            }
        }
    }

    /// Finds the place of a key whose first event may go.
    fn free(&mut self, turn: u64, now: Instant) {
        let Some(key) = self.keys.get_mut(&turn) else { return };
        let store_key = key.store_key;
        // A place among the careful would be found unchanged, and not be queued again.
        key.place = Place::Out;
        let place = self.keys.get(&turn).and_then(|key| key.queue.front()).map(|head| self.free_place(head));
        if let Some(place) = place {
            self.move_to(turn, store_key, place, now);
        }
    }

    pub(in crate::engine) fn needs_care(&self, event: &Pending) -> bool {
        event.crashes > 0 || self.careful_buckets.contains(event.bucket)
    }

    /// The place of a key whose first event may go.
    pub(super) fn free_place(&self, head: &Pending) -> Place {
        if self.needs_care(head) { Place::Careful } else { Place::Ready }
    }

    pub(super) fn push_careful(&mut self, turn: u64) {
        let head = self.keys.get(&turn).and_then(|key| key.queue.front());
        match head.is_some_and(|head| head.crashes > 0) {
            true => self.charged.push_back(turn),
            false => self.careful.push_back(turn),
        }
    }

    /// Whether a careful event waits for its turn.
    pub(in crate::engine) fn has_careful(&self) -> bool {
        !self.careful.is_empty() || !self.charged.is_empty()
    }

    /// The next careful event, to be sent while nothing else is at the publisher; one to which a crash is charged after
    /// all others. `paused` as for [`Order::take`].
    pub(in crate::engine) fn take_careful(
        &mut self,
        now: Instant,
        mut paused: impl FnMut(&Pending) -> Option<Arc<str>>,
    ) -> Option<Pending> {
        while let Some(turn) = self.careful.pop_front().or_else(|| self.charged.pop_front()) {
            let Some(key) = self.keys.get(&turn).filter(|key| key.place == Place::Careful) else { continue };
            let Some(head) = key.queue.front() else { continue };
            if let Some(topic) = paused(head) {
                self.park(turn, topic, now);
                continue;
            }
            let head = self.take_head(turn);
            self.feed(turn);
            return head;
        }
        None
    }

    /// Whether a key's events go, or would if nothing stood in the way but the destination: not so when its first event
    /// waits for a retry or an operator, or when nothing of it is in memory.
    pub(in crate::engine) fn is_going(&self, turn: u64) -> bool {
        self.keys.get(&turn).is_some_and(|key| !matches!(key.place, Place::Waiting(_)))
    }
}
