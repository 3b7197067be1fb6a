//! Which rows are a route's own: patterns as PostgreSQL's `LIKE` has them, bound and never put into a statement. Pure.

use outbox_core::{Buckets, Filter, Pattern, Routes, Selection};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// A row is the route's own when one of the first patterns matches its aggregate type and one of the second its event
/// type, and nothing of what earlier routes take does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matching {
    /// Every row is the route's own: where no other condition is either, no statement need look.
    takes_all: bool,
    aggregate_types: Vec<String>,
    event_types: Vec<String>,
    /// Aggregate types that an earlier route takes, whatever the event type.
    taken_aggregate_types: Vec<String>,
    /// Event types that an earlier route takes, whatever the aggregate type.
    taken_event_types: Vec<String>,
    /// What an earlier route takes by both: pairs of patterns.
    taken_pairs: (Vec<String>, Vec<String>),
}

impl Matching {
    pub(crate) fn of(selection: &Selection) -> Self {
        let routes = selection.routes();
        let all: Vec<&Filter> = routes.iter().map(|(_, filter)| filter).take(selection.place() + 1).collect();
        match all.split_last() {
            Some((filter, earlier)) => Self::new(filter, earlier),
            None => Self::new(&Filter::default(), &[]),
        }
    }

    /// What none of the routes takes.
    pub(crate) fn left_over(routes: &Routes) -> Self {
        let all: Vec<&Filter> = routes.iter().map(|(_, filter)| filter).collect();
        Self::new(&Filter::default(), &all)
    }

    fn new(filter: &Filter, earlier: &[&Filter]) -> Self {
        let mut matching = Self {
            takes_all: earlier.is_empty() && filter.matches_all(),
            aggregate_types: like_all(&filter.aggregate_type),
            event_types: like_all(&filter.event_type),
            taken_aggregate_types: Vec::new(),
            taken_event_types: Vec::new(),
            taken_pairs: (Vec::new(), Vec::new()),
        };
        // What has nothing in common with the filter need not be compared with each row.
        for earlier in earlier.iter().filter(|earlier| earlier.overlaps(filter)) {
            match (earlier.aggregate_type.as_slice(), earlier.event_type.as_slice()) {
                (aggregate_types, []) => matching.taken_aggregate_types.extend(like_all(aggregate_types)),
                ([], event_types) => matching.taken_event_types.extend(like_all(event_types)),
                (aggregate_types, event_types) => {
                    for aggregate_type in aggregate_types {
                        for event_type in event_types {
                            matching.taken_pairs.0.push(like(aggregate_type));
                            matching.taken_pairs.1.push(like(event_type));
                        }
                    }
                }
            }
        }
        matching
    }

    /// Whether rows must be looked at to tell whether a reader of these buckets is to return them.
    pub(crate) fn is_needed(&self, buckets: Buckets) -> bool {
        !self.takes_all || buckets != Buckets::ALL
    }

    /// Binds what the statements `…_matching.sql` have last: six arrays, and the buckets as a number of 64 bits.
    pub(crate) fn bind<'q>(
        &self,
        query: Query<'q, Postgres, PgArguments>,
        buckets: Buckets,
    ) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(self.aggregate_types.clone())
            .bind(self.event_types.clone())
            .bind(self.taken_aggregate_types.clone())
            .bind(self.taken_event_types.clone())
            .bind(self.taken_pairs.0.clone())
            .bind(self.taken_pairs.1.clone())
            .bind(buckets.bits().cast_signed())
    }
}

fn like_all(patterns: &[Pattern]) -> Vec<String> {
    if patterns.is_empty() { vec!["%".to_owned()] } else { patterns.iter().map(like).collect() }
}

/// `*` becomes `%`; what `LIKE` takes for special loses its meaning.
fn like(pattern: &Pattern) -> String {
    let mut like = String::with_capacity(pattern.as_str().len() + 4);
    for character in pattern.as_str().chars() {
        match character {
            '*' => like.push('%'),
            '%' | '_' | '\\' => like.extend(['\\', character]),
            _ => like.push(character),
        }
    }
    like
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(aggregate_types: &[&str], event_types: &[&str]) -> Filter {
        let filter = Filter::default().aggregate_types(aggregate_types.iter().copied()).unwrap();
        filter.event_types(event_types.iter().copied()).unwrap()
    }

    #[test]
    fn only_the_star_is_special() {
        let check = |pattern: &str, expected: &str| assert_eq!(like(&Pattern::new(pattern).unwrap()), expected);
        check("order.*", "order.%");
        check("100%_\\*", "100\\%\\_\\\\%");
        check("zażółć", "zażółć");
    }

    #[test]
    fn a_route_that_takes_everything_is_filtered_by_its_buckets_alone() {
        let matching = |name: &str, routes: &Routes| Matching::of(&routes.selection(name).unwrap());
        let all = matching("a", &Routes::everything("a"));
        assert!(!all.is_needed(Buckets::ALL) && all.is_needed(Buckets::ALL.without(Buckets::NONE.with(7))));
        let routes = Routes::new([("a", filter(&["*"], &[])), ("b", filter(&["x"], &[]))]);
        assert!(routes.is_err());
        let routes = Routes::new([
            ("a", filter(&["order"], &[])),
            ("b", filter(&["cart", "bag"], &["x.*", "y"])),
            ("c", filter(&["cart"], &[])),
            ("d", filter(&[], &["x.z"])),
            ("e", filter(&[], &[])),
        ]);
        let routes = routes.unwrap();
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        // Of the earlier ones only the second has something in common with it.
        let third = matching("c", &routes);
        assert!(third.is_needed(Buckets::ALL));
        assert_eq!((third.aggregate_types, third.event_types), (texts(&["cart"]), texts(&["%"])));
        assert_eq!((third.taken_aggregate_types, third.taken_event_types), (texts(&[]), texts(&[])));
        let pairs = (texts(&["cart", "cart", "bag", "bag"]), texts(&["x.%", "y", "x.%", "y"]));
        assert_eq!(third.taken_pairs, pairs);
        let last = matching("e", &routes);
        assert_eq!((last.aggregate_types, last.event_types), (texts(&["%"]), texts(&["%"])));
        assert_eq!((last.taken_aggregate_types, last.taken_event_types), (texts(&["order", "cart"]), texts(&["x.z"])));
        assert_eq!(last.taken_pairs, pairs);
    }
}
