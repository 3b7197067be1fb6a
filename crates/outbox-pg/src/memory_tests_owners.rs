//! Another relay of the same route: aggregates go to it and come back, each a bucket of its own.

use std::collections::{BTreeMap, HashSet};

use super::{Phase, Schedule, Variant};

impl Schedule {
    /// Between two reads the lane is told what has become of its buckets.
    pub(super) fn turn(&mut self) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        self.turned = (0..self.aggregates).filter(|aggregate| self.is_ours(*aggregate)).collect();
        if std::mem::take(&mut self.gained) && self.variant != Variant::GainsWithoutRewind {
            self.memory.rewind();
            if self.variant != Variant::KeepsWhatItSpilled {
                self.spilled.clear();
                self.reread_from = None;
                self.forget.append(&mut self.dropped);
            }
        }
        self.read_tokens.clone_from(&self.tokens);
    }

    /// Whether a row of the read under way is to be taken in.
    pub(super) fn is_current(&self, aggregate: u64) -> bool {
        let token = |tokens: &BTreeMap<u64, u64>| tokens.get(&aggregate).copied().unwrap_or(0);
        self.variant == Variant::StaleRowsTakenIn && !self.away.contains(&aggregate)
            || self.is_ours(aggregate) && token(&self.tokens) == token(&self.read_tokens)
    }

    /// The other relay, which reads what is its own at once and in order, and settles it sooner or later.
    pub(super) fn other_relay(&mut self) {
        let seen: HashSet<i64> = self.theirs.iter().copied().collect();
        let table: Vec<(i64, u64)> = self.server.table.iter().map(|(id, aggregate)| (*id, *aggregate)).collect();
        for (id, aggregate) in table {
            if self.away.contains(&aggregate) && !seen.contains(&id) && self.random.one_in(2) {
                let earlier = self.theirs.iter().filter_map(|id| Some((id, self.server.table.get(id)?)));
                let first = self.server.table.iter().find(|(id, of)| **of == aggregate && !seen.contains(id));
                if earlier.filter(|(_, of)| **of == aggregate).count() == 0 && first == Some((&id, &aggregate)) {
                    self.delivered.push((id, aggregate));
                    self.theirs.push(id);
                }
            }
        }
        self.theirs_settle(false);
    }

    pub(super) fn theirs_settle(&mut self, all: bool) {
        for id in std::mem::take(&mut self.theirs) {
            if all || self.random.one_in(2) {
                self.server.table.remove(&id);
            } else {
                self.theirs.push(id);
            }
        }
    }

    /// One of our aggregates goes to the other relay or comes back from it.
    pub(super) fn change_owner(&mut self) {
        let aggregate = self.random.below(self.aggregates);
        if self.alone || !self.is_routes(aggregate) {
            return;
        }
        if self.away.contains(&aggregate) {
            // It gives back what is settled only, as we do.
            if !self.theirs.iter().any(|id| self.server.table.get(id) == Some(&aggregate)) {
                self.away.remove(&aggregate);
                self.gain(aggregate);
            }
        } else if !self.leaving.contains(&aggregate) {
            self.leaving.insert(aggregate);
        }
        self.give_back();
    }

    pub(super) fn gain(&mut self, aggregate: u64) {
        *self.tokens.entry(aggregate).or_default() += 1;
        self.gained = true;
    }

    /// Gives back what is being given back and of which nothing is at the broker.
    pub(super) fn give_back(&mut self) {
        let busy = |aggregate: &u64| self.unsettled.iter().any(|id| self.server.table.get(id) == Some(aggregate));
        let undrained = self.variant == Variant::GivesBackUndrained;
        let drained: Vec<u64> =
            self.leaving.iter().copied().filter(|aggregate| undrained || !busy(aggregate)).collect();
        for aggregate in drained {
            self.leaving.remove(&aggregate);
            self.away.insert(aggregate);
        }
    }

    /// A row of a bucket that is being given back, or was since it was read.
    pub(super) fn turn_away(&mut self, id: i64) {
        if self.variant != Variant::RemembersWhatItGaveBack {
            self.forget.push(id);
        }
    }
}
