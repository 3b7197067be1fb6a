//! Which event may go next. Pure: the caller brings the time and does the I/O.
//!
//! Events of one ordering key wait for each other; keys go on beside each other. A key is *ready*, *out* (at the
//! publisher or being written back), or *stuck* (its first event waits for a retry, a paused topic, or its turn as a
//! suspect). Stuck events have a budget of their own; what exceeds it is dropped and remembered in the spill.

mod aside;
mod eviction;
mod leaving;
mod waiting;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use outbox_core::{Buckets, Claimed, EventId};
use tokio::time::Instant;

pub(super) use self::waiting::Asked;
use super::pending::Pending;
use super::spill::{MAX_SPILLED_KEYS, Reread, Spill};
use crate::health::Counters;
use crate::metrics::Claim;
use crate::{Ordering, RouteConfig};

/// Events of one key in memory. Enough to keep a busy aggregate going between two reads, few enough that a thousand
/// busy ones fit.
pub(super) const EVENTS_PER_KEY: usize = 64;

/// A spilled key is read again when it has at most this many left, so that it need not run dry.
const HUNGRY_BELOW: usize = EVENTS_PER_KEY / 4;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Ready,
    Out,
    Waiting(Instant),
    Parked(Arc<str>),
    Suspect,
    /// Its first event is to be sent alone, after a crash was charged to it.
    Careful,
}

impl Place {
    fn is_stuck(&self) -> bool {
        matches!(self, Self::Waiting(_) | Self::Parked(_) | Self::Suspect)
    }
}

#[derive(Debug)]
struct Key {
    /// In id order.
    queue: VecDeque<Pending>,
    store_key: u64,
    bucket: u16,
    bytes: usize,
    /// Events at the publisher or being written back.
    out: usize,
    place: Place,
}

/// Queued events and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

/// How much [`Order::take`] may hand over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) events: usize,
    pub(super) bytes: usize,
    /// The first event may exceed `bytes`: nothing else is at the publisher.
    pub(super) first_may_exceed: bool,
    /// The publisher keeps order within a batch, so a key may have several events in it.
    pub(super) several_per_key: bool,
}

#[derive(Debug)]
pub(super) struct Order {
    ordering: Ordering,
    keys: HashMap<u64, Key>,
    ready: VecDeque<u64>,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    parked: HashMap<Arc<str>, Vec<u64>>,
    /// Store keys that were evicted while their topic was paused.
    evicted: HashMap<Arc<str>, HashSet<u64>>,
    suspects: VecDeque<u64>,
    /// Buckets whose events are sent carefully.
    careful_buckets: Buckets,
    /// Careful keys to whose first event no crash is charged, and those where one is: they go last.
    careful: VecDeque<u64>,
    charged: VecDeque<u64>,
    /// Blocked events that gave up their place in memory: an operator's change to them must be seen all the same.
    blocked_outside: BTreeMap<i64, (EventId, u64, u16)>,
    spill: Spill,
    active: Load,
    stuck: Load,
    budget: Load,
    /// Ids dropped since the lane was last told.
    dropped: Vec<i64>,
    /// Nothing of these is taken in or handed over.
    leaving: Buckets,
    /// Ids of theirs that came back since the lane was last told.
    left: Vec<i64>,
    /// The read whose events are being taken in.
    claim: Option<Arc<Claim>>,
}

impl Order {
    pub(super) fn new(config: &RouteConfig) -> Self {
        Self {
            ordering: config.ordering,
            keys: HashMap::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            parked: HashMap::new(),
            evicted: HashMap::new(),
            suspects: VecDeque::new(),
            careful_buckets: Buckets::NONE,
            careful: VecDeque::new(),
            charged: VecDeque::new(),
            blocked_outside: BTreeMap::new(),
            spill: Spill::default(),
            active: Load::default(),
            stuck: Load::default(),
            budget: Load { events: config.queue_events, bytes: config.queue_bytes },
            dropped: Vec::new(),
            leaving: Buckets::NONE,
            left: Vec::new(),
            claim: None,
        }
    }

    /// Events that could go as soon as the publisher has room.
    pub(super) fn active(&self) -> Load {
        self.active
    }

    /// Events in memory that wait for a retry, a paused topic or their turn as a suspect.
    pub(super) fn stuck(&self) -> Load {
        self.stuck
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn spilled_keys(&self) -> usize {
        self.spill.len()
    }

    /// No new events may be read: too many keys are spilled.
    pub(super) fn is_full(&self) -> bool {
        self.spill.len() >= MAX_SPILLED_KEYS
    }

    pub(super) fn take_dropped(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.dropped)
    }

    /// What is taken in next was claimed by one read.
    pub(super) fn begin_claim(&mut self, counters: &Arc<Counters>, now: Instant) {
        self.claim = Some(Claim::begin(counters, now));
    }

    /// Takes in what a forward read found.
    pub(super) fn admit(&mut self, events: Vec<Claimed>, now: Instant) {
        for claimed in events {
            let (key, id) = (claimed.key, claimed.envelope.id);
            // What comes before all that was dropped may still go first.
            let must_drop = self.ordering == Ordering::Aggregate && self.spill.is_ahead_of(key, id);
            if must_drop || !self.admit_one(claimed, now) {
                self.drop_event(key, id);
                // Only a refusal for want of room comes here, and only keys of an order are refused.
                self.feed(key);
            }
        }
        self.claim = None;
    }

    /// The next read of spilled keys that have room.
    pub(super) fn begin_reread(&mut self, now: Instant) -> Option<Reread> {
        self.spill.open_gates(now);
        self.spill.begin()
    }

    pub(super) fn wants_reread(&self) -> bool {
        self.spill.is_hungry()
    }

    /// Takes in what a read of spilled keys found; it covered all ids up to `covered`.
    pub(super) fn end_reread(&mut self, reread: &Reread, covered: i64, events: Vec<Claimed>, now: Instant) {
        for claimed in events {
            let (key, id) = (claimed.key, claimed.envelope.id);
            // Once something of a key is dropped, be it by an eviction during the read, all later ones are.
            let must_drop = self.ordering == Ordering::Aggregate && self.spill.dropped_meanwhile(key);
            if must_drop || !self.admit_one(claimed, now) {
                self.drop_event(key, id);
            }
        }
        self.claim = None;
        for store_key in self.spill.end(reread, covered) {
            match self.keys.get(&store_key).filter(|_| self.ordering == Ordering::Aggregate) {
                Some(key) if key.place.is_stuck() || key.queue.len() > HUNGRY_BELOW => {}
                _ => self.spill.feed(store_key),
            }
        }
    }

    /// A sweep found an id that no read has returned: have it read. `false` when it was dropped by ourselves.
    pub(super) fn found_by_sweep(&mut self, id: i64, store_key: u64) -> bool {
        if self.spill.covers(store_key, id) {
            return false;
        }
        self.spill.drop_event(store_key, id);
        self.spill.feed(store_key);
        true
    }

    /// What an event waits for: its aggregate, or itself alone when the route keeps no order.
    pub(super) fn turn_of(&self, claimed: &Claimed) -> u64 {
        match self.ordering {
            Ordering::Aggregate => claimed.key,
            Ordering::None => claimed.envelope.id.cast_unsigned(),
        }
    }

    /// `false` when there is no room for it.
    fn admit_one(&mut self, claimed: Claimed, now: Instant) -> bool {
        let (store_key, id) = (claimed.key, claimed.envelope.id);
        let key = self.turn_of(&claimed);
        if let Some(existing) = self.keys.get(&key) {
            let over = self.stuck.events >= self.budget.events || self.stuck.bytes >= self.budget.bytes;
            if existing.queue.len() >= EVENTS_PER_KEY || (existing.place.is_stuck() && over) {
                return false;
            }
        }
        self.blocked_outside.remove(&id);
        let mut pending = Pending::new(claimed, key, now);
        pending.claim.clone_from(&self.claim);
        self.change(key, store_key, |key| {
            key.bucket = pending.bucket;
            let at = key.queue.partition_point(|queued| queued.id() < pending.id());
            key.bytes += pending.bytes;
            key.queue.insert(at, pending);
        });
        self.evaluate(key, now);
        true
    }

    /// Hands over events in the order of their keys' turns, one at a time of each key unless the publisher keeps
    /// order in a batch. `paused` names the paused topic that an event would go to.
    pub(super) fn take(
        &mut self,
        room: Room,
        now: Instant,
        mut paused: impl FnMut(&Pending) -> Option<Arc<str>>,
    ) -> Vec<Pending> {
        let mut batch: Vec<Pending> = Vec::new();
        let mut bytes = 0;
        while batch.len() < room.events
            && let Some(turn) = self.ready.pop_front()
        {
            let Some(key) = self.keys.get(&turn).filter(|key| key.place == Place::Ready) else { continue };
            let Some(head) = key.queue.front() else { continue };
            if let Some(topic) = paused(head) {
                self.park(turn, topic, now);
                continue;
            }
            let fits = bytes + head.bytes <= room.bytes || (batch.is_empty() && room.first_may_exceed);
            if !fits || (head.solo && !batch.is_empty()) {
                self.ready.push_front(turn);
                break;
            }
            let solo = head.solo;
            let most = if room.several_per_key && !solo { room.events - batch.len() } else { 1 };
            let store_key = key.store_key;
            let fits = |taken: usize, bytes: usize, next: &Pending| {
                taken == 0
                    || (taken < most
                        && bytes + next.bytes <= room.bytes
                        && next.not_before.is_none()
                        && next.defect.is_none()
                        && !next.solo
                        && !next.is_suspect()
                        && next.crashes == 0)
            };
            let mut taken = 0;
            self.change(turn, store_key, |key| {
                while let Some(next) = key.queue.pop_front() {
                    if !fits(taken, bytes, &next) {
                        key.queue.push_front(next);
                        break;
                    }
                    taken += 1;
                    bytes += next.bytes;
                    key.bytes -= next.bytes;
                    key.out += 1;
                    batch.push(next);
                }
                key.place = Place::Out;
            });
            self.feed(turn);
            if solo {
                break;
            }
        }
        batch
    }

    /// An event came back and must be sent again. Several of one key are given back from the last to the first.
    pub(super) fn give_back(&mut self, pending: Pending) {
        let (key, store_key) = (pending.key, pending.store_key);
        if self.leaving.contains(pending.bucket) {
            self.left.push(pending.id());
            self.finish(key, store_key);
            if self.keys.get(&key).is_some_and(|key| key.out == 0 && key.queue.is_empty()) {
                self.keys.remove(&key);
            }
            return;
        }
        self.change(key, store_key, |key| {
            key.bucket = pending.bucket;
            key.out = key.out.saturating_sub(1);
            key.bytes += pending.bytes;
            let at = key.queue.partition_point(|queued| queued.id() < pending.id());
            key.queue.insert(at, pending);
        });
    }

    /// An event is done: confirmed, or moved to the dead letters, or gone.
    pub(super) fn finish(&mut self, key: u64, store_key: u64) {
        self.change(key, store_key, |key| key.out = key.out.saturating_sub(1));
    }

    /// Finds a key's place anew after [`Order::give_back`] or [`Order::finish`].
    pub(super) fn evaluate(&mut self, turn: u64, now: Instant) {
        let Some(key) = self.keys.get(&turn) else { return };
        let store_key = key.store_key;
        let place = match key.queue.front() {
            _ if key.out > 0 => Place::Out,
            None => {
                self.keys.remove(&turn);
                self.spill.feed(store_key);
                return;
            }
            Some(head) => match head.not_before {
                Some(due) if due > now => Place::Waiting(due),
                // Careful events go alone too: a careful suspect is both.
                _ if head.is_suspect() && !self.needs_care(head) => Place::Suspect,
                _ => match &key.place {
                    Place::Parked(topic) => Place::Parked(Arc::clone(topic)),
                    _ => self.free_place(head),
                },
            },
        };
        self.move_to(turn, store_key, place, now);
    }

    fn move_to(&mut self, turn: u64, store_key: u64, place: Place, now: Instant) {
        if self.keys.get(&turn).is_some_and(|key| key.place != place) {
            match &place {
                Place::Ready => self.ready.push_back(turn),
                Place::Waiting(due) => self.timers.push(Reverse((*due, turn))),
                Place::Parked(topic) => self.parked.entry(Arc::clone(topic)).or_default().push(turn),
                Place::Suspect => self.suspects.push_back(turn),
                Place::Careful => self.push_careful(turn),
                Place::Out => {}
            }
            self.change(turn, store_key, |key| key.place = place);
        }
        self.shrink(turn, now);
        self.feed(turn);
    }

    fn drop_event(&mut self, store_key: u64, id: i64) {
        self.dropped.push(id);
        self.spill.drop_event(store_key, id);
    }

    /// Has a spilled key read again when it has room.
    fn feed(&mut self, turn: u64) {
        if let Some(key) = self.keys.get(&turn)
            && !key.place.is_stuck()
            && key.queue.len() <= HUNGRY_BELOW
        {
            let store_key = key.store_key;
            self.spill.feed(store_key);
        }
    }

    /// Changes a key and keeps the loads right. Makes the key if it is new: first it has no place among the ready.
    fn change(&mut self, turn: u64, store_key: u64, change: impl FnOnce(&mut Key)) {
        let key = self.keys.entry(turn).or_insert_with(|| Key {
            // Most keys have one event in memory at a time.
            queue: VecDeque::with_capacity(1),
            store_key,
            bucket: 0,
            bytes: 0,
            out: 0,
            place: Place::Out,
        });
        let before = Load { events: key.queue.len(), bytes: key.bytes };
        let load = if key.place.is_stuck() { &mut self.stuck } else { &mut self.active };
        load.events -= before.events;
        load.bytes -= before.bytes;
        change(key);
        let load = if key.place.is_stuck() { &mut self.stuck } else { &mut self.active };
        load.events += key.queue.len();
        load.bytes += key.bytes;
    }
}

#[cfg(test)]
mod tests;
