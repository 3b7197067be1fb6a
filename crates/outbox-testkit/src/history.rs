//! The history checker: what was committed against what arrived.
//!
//! Pure: it is told what producers committed and rolled back, then judges one sequence of arrivals. It knows no
//! database and no broker, so every test that ends with "none lost, none invented, in order" ends with the same code.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use outbox_core::EventId;

/// How many examples of each fault a verdict holds: enough to start looking, few enough to read.
pub const MAX_EXAMPLES: usize = 5;

/// What producers did. Their order in each aggregate is told by *places*: numbers that grow from commit to commit of
/// one aggregate, for example the version in the row that the producers lock. Gaps are allowed.
#[derive(Debug, Clone, Default)]
pub struct History {
    committed: HashMap<EventId, Step>,
    rolled_back: HashSet<EventId>,
    aggregates: HashMap<String, usize>,
    contradictory: HashSet<EventId>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    aggregate: usize,
    place: i64,
}

/// What became of a history. `Display` tells it in a few lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Events that were committed.
    pub committed: usize,
    /// Committed events that arrived at least once.
    pub delivered: usize,
    /// Committed events that never arrived.
    pub lost: usize,
    /// Distinct events that arrived although nobody committed them: rolled back, or never heard of.
    pub invented: usize,
    /// Arrivals of committed events beyond the first of each.
    pub duplicates: usize,
    /// First arrivals that came after one of a later place of the same aggregate.
    pub order_violations: usize,
    /// Events that were told twice or as both committed and rolled back: the record itself is wrong.
    pub contradictory: usize,
    /// Some of the events that were lost.
    pub lost_examples: Vec<EventId>,
    /// Some of the events that were invented.
    pub invented_examples: Vec<EventId>,
    /// Some of the events that came too late, with their aggregates.
    pub order_examples: Vec<(String, EventId)>,
}

impl History {
    /// Tells of an event whose transaction was committed, with its place among the events of its aggregate.
    pub fn committed(&mut self, event: EventId, aggregate: &str, place: i64) {
        let next = self.aggregates.len();
        let aggregate = *self.aggregates.entry(aggregate.to_owned()).or_insert(next);
        match self.committed.entry(event) {
            Entry::Vacant(entry) => drop(entry.insert(Step { aggregate, place })),
            Entry::Occupied(_) => drop(self.contradictory.insert(event)),
        }
        if self.rolled_back.contains(&event) {
            self.contradictory.insert(event);
        }
    }

    /// Tells of an event whose transaction was rolled back.
    pub fn rolled_back(&mut self, event: EventId) {
        if self.committed.contains_key(&event) || !self.rolled_back.insert(event) {
            self.contradictory.insert(event);
        }
    }

    /// Judges what arrived, in the order of arrival, copies included.
    #[must_use]
    pub fn judge(&self, arrivals: impl IntoIterator<Item = EventId>) -> Verdict {
        let mut verdict =
            Verdict { committed: self.committed.len(), contradictory: self.contradictory.len(), ..Verdict::default() };
        let mut seen = HashSet::with_capacity(self.committed.len());
        // The latest place that has arrived, by aggregate.
        let mut latest: Vec<Option<i64>> = vec![None; self.aggregates.len()];
        for event in arrivals {
            let first = seen.insert(event);
            let Some(step) = self.committed.get(&event) else {
                if first {
                    verdict.invented += 1;
                    keep(&mut verdict.invented_examples, || event);
                }
                continue;
            };
            if !first {
                verdict.duplicates += 1;
                continue;
            }
            verdict.delivered += 1;
            let latest = &mut latest[step.aggregate];
            if latest.is_some_and(|latest| latest > step.place) {
                verdict.order_violations += 1;
                keep(&mut verdict.order_examples, || (self.aggregate(step.aggregate), event));
            } else {
                *latest = Some(step.place);
            }
        }
        verdict.lost = verdict.committed - verdict.delivered;
        for event in self.committed.keys().filter(|event| !seen.contains(event)).take(MAX_EXAMPLES) {
            verdict.lost_examples.push(*event);
        }
        verdict.lost_examples.sort_unstable();
        verdict
    }

    fn aggregate(&self, number: usize) -> String {
        let found = self.aggregates.iter().find(|(_, other)| **other == number);
        found.map_or_else(String::new, |(name, _)| name.clone())
    }
}

impl Verdict {
    /// Whether the promises held: nothing lost, nothing invented, order kept. Copies are no breach by themselves: how
    /// many there may be depends on what happened, so the caller judges [`Verdict::duplicates`].
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.lost == 0 && self.invented == 0 && self.order_violations == 0 && self.contradictory == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, delivered, lost, invented, duplicates, order_violations, contradictory, .. } = self;
        write!(
            f,
            "{committed} committed, {delivered} delivered, {lost} lost, {invented} invented, {duplicates} duplicates, \
             {order_violations} order violations"
        )?;
        if *contradictory > 0 {
            write!(f, ", {contradictory} contradictions in the record")?;
        }
        if !self.lost_examples.is_empty() {
            write!(f, "\nlost, for example: {:?}", self.lost_examples)?;
        }
        if !self.invented_examples.is_empty() {
            write!(f, "\ninvented, for example: {:?}", self.invented_examples)?;
        }
        if !self.order_examples.is_empty() {
            write!(f, "\ntoo late, for example: {:?}", self.order_examples)?;
        }
        Ok(())
    }
}

fn keep<T>(examples: &mut Vec<T>, example: impl FnOnce() -> T) {
    if examples.len() < MAX_EXAMPLES {
        examples.push(example());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn id(number: u128) -> EventId {
        EventId::from_uuid(Uuid::from_u128(number))
    }

    /// Aggregate `a` has events 1, 2, 3 in this order, `b` has 4 and 5, and 9 was rolled back.
    fn history() -> History {
        let mut history = History::default();
        for (event, aggregate, place) in [(2, "a", 20), (1, "a", 10), (3, "a", 30), (4, "b", 1), (5, "b", 2)] {
            history.committed(id(event), aggregate, place);
        }
        history.rolled_back(id(9));
        history
    }

    #[test]
    fn arrivals_are_counted_by_what_is_wrong_with_them() {
        // (lost, invented, duplicates, order violations)
        let check = |arrivals: &[u128], expected: (usize, usize, usize, usize)| {
            let verdict = history().judge(arrivals.iter().map(|&event| id(event)));
            let found = (verdict.lost, verdict.invented, verdict.duplicates, verdict.order_violations);
            assert_eq!(found, expected, "{arrivals:?}");
            assert_eq!(verdict.holds(), expected.0 == 0 && expected.1 == 0 && expected.3 == 0, "{arrivals:?}");
            assert_eq!((verdict.committed, verdict.delivered), (5, 5 - expected.0), "{arrivals:?}");
        };
        check(&[1, 2, 3, 4, 5], (0, 0, 0, 0));
        check(&[4, 1, 5, 2, 3], (0, 0, 0, 0)); // aggregates are independent
        check(&[], (5, 0, 0, 0));
        check(&[1, 2, 4, 5], (1, 0, 0, 0));
        check(&[1, 2, 3, 4, 5, 9, 9, 7], (0, 2, 0, 0)); // rolled back, and never heard of; once each
        check(&[1, 2, 1, 3, 3, 4, 5], (0, 0, 2, 0)); // copies have no order
        check(&[2, 1, 3, 4, 5], (0, 0, 0, 1));
        check(&[3, 1, 2, 5, 4], (0, 0, 0, 3)); // each that was overtaken
        check(&[2, 3, 1, 1, 9], (2, 1, 1, 1));
    }

    #[test]
    fn an_order_is_judged_by_places_and_not_by_the_order_of_telling() {
        let mut history = History::default();
        history.committed(id(1), "a", 2);
        history.committed(id(2), "a", 1);
        assert_eq!(history.judge([id(1), id(2)]).order_violations, 1);
        assert!(history.judge([id(2), id(1)]).holds());
    }

    #[test]
    fn a_record_that_contradicts_itself_never_holds() {
        let check = |tell: fn(&mut History)| {
            let mut history = history();
            tell(&mut history);
            let verdict = history.judge([1, 2, 3, 4, 5].map(id));
            assert!(!verdict.holds());
            assert_eq!(verdict.contradictory, 1);
            assert!(verdict.to_string().contains("1 contradictions"));
        };
        check(|history| history.committed(id(1), "a", 40));
        check(|history| history.committed(id(9), "a", 40));
        check(|history| history.rolled_back(id(1)));
        check(|history| history.rolled_back(id(9)));
    }

    #[test]
    fn examples_are_few_and_name_what_is_wrong() {
        let mut history = History::default();
        for event in 0..100 {
            history.committed(id(event), "a", i64::try_from(event).unwrap());
        }
        let arrivals = (200..300).chain((0..50).rev()).map(id);
        let verdict = history.judge(arrivals);
        assert_eq!((verdict.lost, verdict.invented, verdict.order_violations), (50, 100, 49));
        assert_eq!(verdict.lost_examples.len(), MAX_EXAMPLES);
        assert_eq!(verdict.invented_examples, [200, 201, 202, 203, 204].map(id));
        assert_eq!(verdict.order_examples[0], ("a".to_owned(), id(48)));
        let text = verdict.to_string();
        assert!(
            text.starts_with("100 committed, 50 delivered, 50 lost, 100 invented, 0 duplicates, 49 order"),
            "{text}"
        );
        assert!(text.contains(&id(200).to_string()) && text.contains(&id(48).to_string()), "{text}");
    }
}
