//! Keys that stand aside: parked for a paused topic, or suspected of cutting the connection.

use std::sync::Arc;

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
                self.move_to(turn, store_key, Place::Ready, now);
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
            let store_key = key.store_key;
            let mut head = None;
            self.change(turn, store_key, |key| {
                head = key.queue.pop_front();
                if let Some(head) = &head {
                    key.bytes -= head.bytes;
                    key.out += 1;
                }
                key.place = Place::Out;
            });
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
            let Some(key) = self.keys.get(&turn).filter(|key| key.place == Place::Suspect) else { continue };
            let store_key = key.store_key;
            let mut suspect = None;
            self.change(turn, store_key, |key| {
                suspect = key.queue.pop_front();
                if let Some(suspect) = &suspect {
                    key.bytes -= suspect.bytes;
                    key.out += 1;
                }
                key.place = Place::Out;
            });
            if suspect.is_some() {
                return suspect;
            }
        }
        None
    }
}
