//! What was dropped for want of room, so that it is read again. Pure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use foldhash::HashMap;
use tokio::time::Instant;

/// Ordering keys that may be spilled at once; each costs about 100 bytes. At the limit the route stops reading new
/// events until some have gone out.
pub(super) const MAX_SPILLED_KEYS: usize = 1_000_000;

/// Keys read again by one statement: enough to fill a batch when each has one event.
const KEYS_PER_READ: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dropped {
    range: Range,
    /// Dropped since the read under way began: it may not have seen these.
    fresh: Option<Range>,
    place: Place,
}

/// Ids from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: i64,
    last: i64,
}

impl Range {
    fn with(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its events in memory come first.
    Behind,
    /// Queued to be read again.
    Hungry,
    /// Not before this time: its first event waits for a retry or a paused topic.
    Gated(Instant),
    /// A read is under way; after it the key is gated if a time is given.
    Reading(Option<Instant>),
}

/// The spilled keys with the first and last id that was dropped of each.
///
/// A key leaves only when a read of its whole range, begun after the last drop, left nothing dropped.
#[derive(Debug, Default)]
pub(super) struct Spill {
    keys: HashMap<u64, Dropped>,
    hungry: VecDeque<u64>,
    gates: BinaryHeap<Reverse<(Instant, u64)>>,
}

/// A read of spilled keys: `after < id <= through`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reread {
    pub(super) keys: Vec<u64>,
    pub(super) after: i64,
    pub(super) through: i64,
}

impl Spill {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether this id of this key comes after something of the key that was dropped.
    pub(super) fn is_ahead_of(&self, key: u64, id: i64) -> bool {
        self.keys
            .get(&key)
            .is_some_and(|dropped| dropped.range.first < id || dropped.fresh.is_some_and(|fresh| fresh.first < id))
    }

    /// Whether something of this key was dropped after the read under way began.
    pub(super) fn dropped_meanwhile(&self, key: u64) -> bool {
        self.keys.get(&key).is_some_and(|dropped| dropped.fresh.is_some())
    }

    /// Whether this id of this key lies in a dropped range.
    pub(super) fn covers(&self, key: u64, id: i64) -> bool {
        let within = |range: Range| range.first <= id && id <= range.last;
        self.keys.get(&key).is_some_and(|dropped| within(dropped.range) || dropped.fresh.is_some_and(within))
    }

    /// Notes that an event was dropped. The key waits behind its events in memory until it is called hungry.
    pub(super) fn drop_event(&mut self, key: u64, id: i64) {
        let event = Range { first: id, last: id };
        let new = Dropped { range: event, fresh: None, place: Place::Behind };
        let dropped = self.keys.entry(key).or_insert(new);
        if matches!(dropped.place, Place::Reading(_)) {
            dropped.fresh = Some(dropped.fresh.map_or(event, |fresh| fresh.with(event)));
        } else {
            dropped.range = dropped.range.with(event);
        }
    }

    /// The key has room in memory: its dropped events may be read. No effect on a key that is gated or not spilled.
    pub(super) fn feed(&mut self, key: u64) {
        if let Some(dropped) = self.keys.get_mut(&key)
            && dropped.place == Place::Behind
        {
            dropped.place = Place::Hungry;
            self.hungry.push_back(key);
        }
    }

    /// The key's first event may not go before `until`: read it again then. Of two times the earlier holds. That goes
    /// for a key that is hungry for later events too: read again at once, its first event would be given up at once
    /// for want of room, and the same read would be made over and over.
    pub(super) fn gate(&mut self, key: u64, until: Instant) {
        let Some(dropped) = self.keys.get_mut(&key) else { return };
        match &mut dropped.place {
            Place::Reading(gate) => *gate = Some(gate.map_or(until, |gate| gate.min(until))),
            Place::Gated(earlier) if *earlier <= until => {}
            Place::Behind | Place::Hungry | Place::Gated(_) => {
                dropped.place = Place::Gated(until);
                self.gates.push(Reverse((until, key)));
            }
        }
    }

    /// Opens the key's gate before its time.
    pub(super) fn open(&mut self, key: u64) {
        let Some(dropped) = self.keys.get_mut(&key) else { return };
        match &mut dropped.place {
            Place::Gated(_) => {
                dropped.place = Place::Hungry;
                self.hungry.push_back(key);
            }
            Place::Reading(gate) => *gate = None,
            Place::Behind | Place::Hungry => {}
        }
    }

    /// When the next gate opens.
    pub(super) fn next_gate(&self) -> Option<Instant> {
        self.gates.peek().map(|Reverse((until, _))| *until)
    }

    /// Opens the gates that are due.
    pub(super) fn open_gates(&mut self, now: Instant) {
        while let Some(Reverse((until, key))) = self.gates.peek().copied() {
            if until > now {
                break;
            }
            self.gates.pop();
            if let Some(dropped) = self.keys.get_mut(&key)
                && dropped.place == Place::Gated(until)
            {
                dropped.place = Place::Hungry;
                self.hungry.push_back(key);
            }
        }
    }

    pub(super) fn is_hungry(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// The next read: the keys that have waited longest, all in one statement.
    pub(super) fn begin(&mut self) -> Option<Reread> {
        let mut keys = Vec::new();
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        while keys.len() < KEYS_PER_READ
            && let Some(key) = self.hungry.pop_front()
        {
            if let Some(dropped) = self.keys.get_mut(&key)
                && dropped.place == Place::Hungry
            {
                dropped.place = Place::Reading(None);
                first = first.min(dropped.range.first);
                last = last.max(dropped.range.last);
                keys.push(key);
            }
        }
        // Ids are positive, so the subtraction can't overflow; saturating for what a table may hold anyway.
        (!keys.is_empty()).then(|| Reread { keys, after: first.saturating_sub(1), through: last })
    }

    /// The read has ended and covered every id up to `covered`; what was dropped since it began stays. An abandoned
    /// read covered nothing. Returns the keys that are still spilled.
    pub(super) fn end(&mut self, reread: &Reread, covered: i64) -> Vec<u64> {
        let mut left = Vec::new();
        for &key in &reread.keys {
            let Some(dropped) = self.keys.get_mut(&key) else { continue };
            let Range { first, last } = dropped.range;
            let uncovered = (last > covered).then(|| Range { first: first.max(covered.saturating_add(1)), last });
            let Some(range) = uncovered.into_iter().chain(dropped.fresh.take()).reduce(Range::with) else {
                self.keys.remove(&key);
                continue;
            };
            dropped.range = range;
            dropped.place = match dropped.place {
                Place::Reading(Some(until)) => {
                    self.gates.push(Reverse((until, key)));
                    Place::Gated(until)
                }
                _ => Place::Behind,
            };
            left.push(key);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(spill: &mut Spill) -> Reread {
        spill.begin().expect("a hungry key")
    }

    #[test]
    fn a_key_leaves_when_its_whole_range_was_read() {
        let mut spill = Spill::default();
        spill.drop_event(1, 10);
        spill.drop_event(1, 30);
        assert!(spill.begin().is_none(), "its events in memory come first");
        spill.feed(1);
        let reread = reading(&mut spill);
        assert_eq!(reread, Reread { keys: vec![1], after: 9, through: 30 });
        assert_eq!(spill.end(&reread, 20), [1]);
        assert!(!spill.covers(1, 20) && spill.covers(1, 21));
        spill.feed(1);
        let reread = reading(&mut spill);
        spill.drop_event(1, 25);
        spill.drop_event(1, 28);
        assert_eq!(spill.end(&reread, 30), [1]);
        assert!(!spill.covers(1, 24) && spill.covers(1, 25) && !spill.covers(1, 29));
        spill.feed(1);
        let reread = reading(&mut spill);
        assert!(spill.end(&reread, 30).is_empty());
        assert_eq!(spill.len(), 0);
    }

    #[test]
    fn an_abandoned_read_changes_nothing() {
        let mut spill = Spill::default();
        spill.drop_event(1, 10);
        spill.feed(1);
        let reread = reading(&mut spill);
        assert_eq!(spill.end(&reread, reread.after), [1]);
        assert!(spill.covers(1, 10));
    }

    #[test]
    fn what_is_dropped_during_a_read_stays_and_its_gate_holds() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        let mut spill = Spill::default();
        spill.drop_event(1, 100);
        spill.feed(1);
        let reread = reading(&mut spill);
        spill.drop_event(1, 50);
        spill.gate(1, later);
        assert!(spill.dropped_meanwhile(1) && spill.is_ahead_of(1, 51));
        assert_eq!(spill.end(&reread, 100), [1]);
        assert!(spill.covers(1, 50) && !spill.covers(1, 100) && !spill.dropped_meanwhile(1));
        spill.feed(1);
        spill.open_gates(now);
        assert!(spill.begin().is_none(), "gated");
        spill.open_gates(later);
        assert_eq!(reading(&mut spill), Reread { keys: vec![1], after: 49, through: 50 });
    }

    #[test]
    fn of_two_gates_the_earlier_holds_and_a_gate_can_be_opened() {
        let now = Instant::now();
        let later = |seconds| now + std::time::Duration::from_secs(seconds);
        let mut spill = Spill::default();
        for key in [1, 2] {
            spill.drop_event(key, 10);
            spill.gate(key, later(2));
        }
        spill.gate(1, later(1));
        spill.gate(1, later(3));
        spill.open_gates(later(1));
        assert_eq!(reading(&mut spill).keys, [1]);
        spill.open(2);
        assert_eq!(reading(&mut spill).keys, [2]);
    }

    #[test]
    fn a_hungry_key_whose_first_event_waits_is_not_read() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        let mut spill = Spill::default();
        spill.drop_event(1, 10);
        spill.drop_event(1, 20);
        spill.feed(1);
        let reread = reading(&mut spill);
        // A page ended between its events; the rest is asked for, and then the first is given up again.
        assert_eq!(spill.end(&reread, 10), [1]);
        spill.feed(1);
        spill.drop_event(1, 10);
        spill.gate(1, later);
        assert!(spill.begin().is_none());
        spill.open_gates(later);
        assert_eq!(reading(&mut spill), Reread { keys: vec![1], after: 9, through: 20 });
        assert!(spill.begin().is_none(), "once");
    }

    #[test]
    fn hungry_keys_share_one_read() {
        let mut spill = Spill::default();
        for key in 0..5 {
            spill.drop_event(key, 100 + i64::try_from(key).unwrap());
            spill.feed(key);
            spill.feed(key);
        }
        let reread = reading(&mut spill);
        assert_eq!(reread, Reread { keys: vec![0, 1, 2, 3, 4], after: 99, through: 104 });
        assert!(spill.begin().is_none());
    }

    #[test]
    fn a_gate_holds_until_its_time() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        let mut spill = Spill::default();
        spill.drop_event(1, 10);
        spill.gate(1, later);
        spill.feed(1);
        spill.open_gates(now);
        assert!(spill.begin().is_none());
        assert_eq!(spill.next_gate(), Some(later));
        spill.open_gates(later);
        assert_eq!(reading(&mut spill).keys, [1]);
    }
}
