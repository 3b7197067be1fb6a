//! Buckets that are given back, and those that are gained.

use outbox_core::Buckets;

use super::Order;
use crate::engine::spill::Spill;

impl Order {
    /// Drops what is in memory of these buckets; what is at the publisher is dropped when it comes back. Of what was
    /// spilled the keys stay: a read of them finds nothing more.
    pub(in crate::engine) fn leave(&mut self, buckets: Buckets) {
        self.leaving = self.leaving.and(buckets);
        self.blocked_outside.retain(|_, (_, _, bucket)| !buckets.contains(*bucket));
        let turns: Vec<(u64, u64)> = self
            .keys
            .iter()
            .filter(|(_, key)| buckets.contains(key.bucket))
            .map(|(turn, key)| (*turn, key.store_key))
            .collect();
        for (turn, store_key) in turns {
            let mut ids = Vec::new();
            self.change(turn, store_key, |key| {
                ids.extend(key.queue.drain(..).map(|pending| pending.id()));
                key.bytes = 0;
            });
            self.left.append(&mut ids);
            if self.keys.get(&turn).is_some_and(|key| key.out == 0) {
                self.keys.remove(&turn);
            }
        }
    }

    /// These are ours no longer: should they come again, they are as good as any.
    pub(in crate::engine) fn gone(&mut self, buckets: Buckets) {
        self.leaving = self.leaving.without(buckets);
    }

    /// Ids of leaving buckets that are in memory no longer, for the lane to forget.
    pub(in crate::engine) fn take_left(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.left)
    }

    /// The lane goes back to zero and returns all that is not in memory. What was spilled is among it and must not be
    /// asked for by its keys any more: a read of them that began in an earlier ownership would go on behind rows that
    /// it had to turn away, and overtake them. Returns what the lane was not told as dropped, for it to forget.
    pub(in crate::engine) fn begin_anew(&mut self) -> Vec<i64> {
        self.spill = Spill::default();
        self.evicted.clear();
        self.blocked_outside.clear();
        self.take_dropped()
    }
}
