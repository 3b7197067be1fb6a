//! What was dropped for want of room, so that it is read again. Pure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use tokio::time::Instant;

/// Ordering keys that may be spilled at once; each costs about 100 bytes. At the limit the route stops reading new
/// events until some have gone out.
pub(super) const MAX_SPILLED_KEYS: usize = 1_000_000;

/// Keys read again by one statement: enough to fill a batch when each has one event.
const KEYS_PER_READ: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dropped {
    first: i64,
    last: i64,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its events in memory come first.
    Behind,
    /// Queued to be read again.
    Hungry,
    /// Not before this time: its first event waits for a retry or a paused topic.
    Gated(Instant),
    /// A read is under way.
    Reading,
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

    pub(super) fn contains(&self, key: u64) -> bool {
        self.keys.contains_key(&key)
    }

    /// Whether this id of this key lies in a dropped range.
    pub(super) fn covers(&self, key: u64, id: i64) -> bool {
        self.keys.get(&key).is_some_and(|dropped| dropped.first <= id && id <= dropped.last)
    }

    /// Notes that an event was dropped. The key waits behind its events in memory until it is called hungry.
    pub(super) fn drop_event(&mut self, key: u64, id: i64) {
        let dropped = self.keys.entry(key).or_insert(Dropped { first: id, last: id, place: Place::Behind });
        dropped.first = dropped.first.min(id);
        dropped.last = dropped.last.max(id);
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

    /// The key's first event may not go before `until`: read it again then.
    pub(super) fn gate(&mut self, key: u64, until: Instant) {
        if let Some(dropped) = self.keys.get_mut(&key)
            && dropped.place != Place::Reading
        {
            dropped.place = Place::Gated(until);
            self.gates.push(Reverse((until, key)));
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
                dropped.place = Place::Reading;
                first = first.min(dropped.first);
                last = last.max(dropped.last);
                keys.push(key);
            }
        }
        // Ids are positive, so the subtraction can't overflow; saturating for what a table may hold anyway.
        (!keys.is_empty()).then(|| Reread { keys, after: first.saturating_sub(1), through: last })
    }

    /// The read has ended and covered every id up to `covered`; its events that found no room again are in
    /// `dropped_again`. An abandoned read covered nothing. Returns the keys that are still spilled.
    pub(super) fn end(&mut self, reread: &Reread, covered: i64, dropped_again: &[(u64, i64)]) -> Vec<u64> {
        let mut first_again: HashMap<u64, i64> = HashMap::new();
        for &(key, id) in dropped_again {
            let first = first_again.entry(key).or_insert(id);
            *first = (*first).min(id);
        }
        let mut left = Vec::new();
        for &key in &reread.keys {
            let Some(dropped) = self.keys.get_mut(&key) else { continue };
            dropped.place = Place::Behind;
            let uncovered = (dropped.last > covered).then(|| dropped.first.max(covered.saturating_add(1)));
            let again = first_again.get(&key).copied();
            match again.into_iter().chain(uncovered).min() {
                Some(first) => {
                    dropped.first = first;
                    left.push(key);
                }
                None => {
                    self.keys.remove(&key);
                }
            }
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
        assert_eq!(spill.end(&reread, 20, &[]), [1]);
        assert!(!spill.covers(1, 20) && spill.covers(1, 21));
        spill.feed(1);
        let reread = reading(&mut spill);
        assert_eq!(spill.end(&reread, 30, &[(1, 25), (1, 28)]), [1]);
        assert!(!spill.covers(1, 24) && spill.covers(1, 25) && spill.covers(1, 30));
        spill.feed(1);
        let reread = reading(&mut spill);
        assert!(spill.end(&reread, 30, &[]).is_empty());
        assert!(!spill.contains(1));
    }

    #[test]
    fn an_abandoned_read_changes_nothing() {
        let mut spill = Spill::default();
        spill.drop_event(1, 10);
        spill.feed(1);
        let reread = reading(&mut spill);
        assert_eq!(spill.end(&reread, reread.after, &[]), [1]);
        assert!(spill.covers(1, 10));
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
