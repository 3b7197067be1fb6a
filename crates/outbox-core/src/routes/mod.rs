//! Which events go where: the ordered routes of a relay. The first one that matches takes an event.

mod filter;
mod pattern;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::filter::Filter;
use self::filter::{is_star, overlap};
pub use self::pattern::{InvalidPattern, Pattern};

/// The most routes of one relay. Each has a reader, a window and at least three database connections of its own.
pub const MAX_ROUTES: usize = 32;

/// The most patterns in one list. PostgreSQL compares each row with them one by one.
pub const MAX_PATTERNS: usize = 100;

/// A route's name and filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
    #[serde(default, rename = "match")]
    filter: Filter,
}

/// The routes of a relay in their order. An event goes to the first one whose filter matches it, and to no other.
///
/// Cheap to clone. Serialized it is what relays compare to find out whether they have the same routes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Named>")]
pub struct Routes(Arc<[Named]>);

impl Serialize for Routes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

/// What is wrong with a list of routes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRoutes {
    /// There is none.
    #[error("there is no route")]
    None,
    /// More than [`MAX_ROUTES`].
    #[error("{routes} routes are too many: at most {MAX_ROUTES}")]
    TooMany {
        /// How many.
        routes: usize,
    },
    /// Two have the same name.
    #[error("`{name}` is the name of an earlier route")]
    Name {
        /// The later one, counted from 0.
        route: usize,
        /// The earlier one.
        earlier: usize,
        /// Their name.
        name: String,
    },
    /// More than [`MAX_PATTERNS`] in one list.
    #[error("{patterns} patterns in one list are too many: at most {MAX_PATTERNS}")]
    Patterns {
        /// The route, counted from 0.
        route: usize,
        /// How many.
        patterns: usize,
    },
    /// Earlier routes take everything that it matches.
    #[error("can never get an event: {by} {verb} everything that it matches", by = taken_by(.by), verb = if .by.len() == 1 { "takes" } else { "take" })]
    Unreachable {
        /// The route, counted from 0.
        route: usize,
        /// The names of the routes that leave nothing to it.
        by: Vec<String>,
    },
}

impl InvalidRoutes {
    /// The route that is to blame, counted from 0; `None` when it is the list.
    #[must_use]
    pub const fn route(&self) -> Option<usize> {
        match self {
            Self::None | Self::TooMany { .. } => None,
            Self::Name { route, .. } | Self::Patterns { route, .. } | Self::Unreachable { route, .. } => Some(*route),
        }
    }
}

fn taken_by(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(" and ")
}

impl Routes {
    /// Puts routes in order.
    ///
    /// # Errors
    /// Everything that is wrong, not only the first.
    pub fn new<T: Into<String>>(routes: impl IntoIterator<Item = (T, Filter)>) -> Result<Self, Vec<InvalidRoutes>> {
        let named = |(name, filter): (T, Filter)| Named { name: name.into(), filter };
        Self::checked(routes.into_iter().map(named).collect())
    }

    /// One route that takes every event.
    pub fn everything(name: impl Into<String>) -> Self {
        Self([Named { name: name.into(), filter: Filter::default() }].into())
    }

    fn checked(routes: Vec<Named>) -> Result<Self, Vec<InvalidRoutes>> {
        let mut errors = Vec::new();
        match routes.len() {
            0 => errors.push(InvalidRoutes::None),
            count if count > MAX_ROUTES => errors.push(InvalidRoutes::TooMany { routes: count }),
            _ => {}
        }
        // A list that is too long is not looked at further: that would take its square.
        for (route, Named { name, filter }) in routes.iter().enumerate().take(MAX_ROUTES) {
            if let Some(earlier) = routes.iter().take(route).position(|other| other.name == *name) {
                errors.push(InvalidRoutes::Name { route, earlier, name: name.clone() });
            }
            let patterns = filter.aggregate_type.len().max(filter.event_type.len());
            if patterns > MAX_PATTERNS {
                errors.push(InvalidRoutes::Patterns { route, patterns });
            } else if let Some(by) = hidden_by(filter, &routes[..route]) {
                errors.push(InvalidRoutes::Unreachable { route, by });
            }
        }
        if errors.is_empty() { Ok(Self(routes.into())) } else { Err(errors) }
    }

    /// How many; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Names and filters, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Filter)> {
        self.0.iter().map(|Named { name, filter }| (name.as_str(), filter))
    }

    /// The events that the route of this name takes.
    #[must_use]
    pub fn selection(&self, name: &str) -> Option<Selection> {
        let place = self.0.iter().position(|route| route.name == name)?;
        Some(Selection { routes: self.clone(), place })
    }

    /// The place of the route that takes events of these types; `None` when none does.
    #[must_use]
    pub fn place_of(&self, aggregate_type: &str, event_type: &str) -> Option<usize> {
        self.0.iter().position(|route| route.filter.matches(aggregate_type, event_type))
    }

    /// Whether no event is left over.
    #[must_use]
    pub fn take_all(&self) -> bool {
        self.0.iter().any(|route| route.filter.matches_all())
    }

    /// Pairs of routes, by place, between which events of one aggregate may be divided by their types: those are not
    /// ordered against each other.
    #[must_use]
    pub fn splits(&self) -> Vec<(usize, usize)> {
        let divide = |first: &Filter, second: &Filter| {
            // Where the first one takes an aggregate type it takes it whole, or leaves nothing to the second.
            let covered = |theirs: &Pattern| first.event_type.iter().any(|ours| ours.covers(theirs));
            let whole =
                first.event_type.is_empty() || (!second.event_type.is_empty() && second.event_type.iter().all(covered));
            !whole && overlap(&first.aggregate_type, &second.aggregate_type)
        };
        let later_of = |place: usize| (place + 1..self.0.len()).map(move |later| (place, later));
        let pairs = (0..self.0.len()).flat_map(later_of);
        pairs.filter(|(first, second)| divide(&self.0[*first].filter, &self.0[*second].filter)).collect()
    }

    /// In one line, how these routes differ from those that are in force.
    #[must_use]
    pub fn difference(&self, in_force: &Self) -> String {
        let mut parts = Vec::new();
        for Named { name, filter } in &*self.0 {
            match in_force.0.iter().find(|route| route.name == *name) {
                None => parts.push(format!("`{name}` is new ({filter})")),
                Some(theirs) if theirs.filter != *filter => {
                    parts.push(format!("`{name}` matches {filter} instead of {}", theirs.filter));
                }
                Some(_) => {}
            }
        }
        for Named { name, filter } in &*in_force.0 {
            if !self.0.iter().any(|route| route.name == *name) {
                parts.push(format!("`{name}` is gone ({filter})"));
            }
        }
        if parts.is_empty() { "the same routes in another order".to_owned() } else { parts.join("; ") }
    }
}

impl TryFrom<Vec<Named>> for Routes {
    type Error = String;

    fn try_from(routes: Vec<Named>) -> Result<Self, String> {
        Self::checked(routes).map_err(|errors| errors.first().map(ToString::to_string).unwrap_or_default())
    }
}

/// The routes that together leave nothing to this filter; `None` when something is left.
fn hidden_by(filter: &Filter, earlier: &[Named]) -> Option<Vec<String>> {
    /// For each earlier route, which of these patterns it takes in.
    fn covered(own: &[Pattern], earlier: &[Named], of: fn(&Filter) -> &[Pattern]) -> Vec<Vec<bool>> {
        let covers = |ours: &[Pattern], own: &Pattern| ours.is_empty() || ours.iter().any(|ours| ours.covers(own));
        let by = |route: &Named| match own {
            [] => vec![of(&route.filter).is_empty() || of(&route.filter).iter().any(is_star)],
            own => own.iter().map(|own| covers(of(&route.filter), own)).collect(),
        };
        earlier.iter().map(by).collect()
    }
    let aggregate_types = covered(&filter.aggregate_type, earlier, |filter| &filter.aggregate_type);
    let event_types = covered(&filter.event_type, earlier, |filter| &filter.event_type);
    let pairs = (0..filter.aggregate_type.len().max(1)).flat_map(|aggregate_type| {
        (0..filter.event_type.len().max(1)).map(move |event_type| (aggregate_type, event_type))
    });
    let mut names: Vec<String> = Vec::new();
    for (aggregate_type, event_type) in pairs {
        let takes = |place: &usize| aggregate_types[*place][aggregate_type] && event_types[*place][event_type];
        let by = &earlier[(0..earlier.len()).find(takes)?].name;
        if !names.contains(by) {
            names.push(by.clone());
        }
    }
    Some(names)
}

/// The events that one route takes: those that it matches and no earlier one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    routes: Routes,
    place: usize,
}

impl Selection {
    /// Every event, for a route of this name.
    pub fn everything(name: impl Into<String>) -> Self {
        Self { routes: Routes::everything(name), place: 0 }
    }

    /// The route's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.routes.0[self.place].name
    }

    /// All routes of the relay.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// The route's place among them, counted from 0.
    #[must_use]
    pub const fn place(&self) -> usize {
        self.place
    }

    /// Whether an event of these types is one of them.
    #[must_use]
    pub fn takes(&self, aggregate_type: &str, event_type: &str) -> bool {
        self.routes.place_of(aggregate_type, event_type) == Some(self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(aggregate_types: &[&str], event_types: &[&str]) -> Filter {
        let filter = Filter::default().aggregate_types(aggregate_types.iter().copied()).unwrap();
        filter.event_types(event_types.iter().copied()).unwrap()
    }

    fn routes(list: &[(&str, &[&str], &[&str])]) -> Result<Routes, Vec<String>> {
        let list =
            list.iter().map(|(name, aggregate_types, event_types)| (*name, filter(aggregate_types, event_types)));
        Routes::new(list).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_first_match_takes_an_event() {
        let routes =
            routes(&[("a", &["order"], &["order.*"]), ("b", &["order", "cart"], &[]), ("c", &[], &["*.late"])]);
        let routes = routes.unwrap();
        let check = |aggregate_type: &str, event_type: &str, place: Option<usize>| {
            assert_eq!(routes.place_of(aggregate_type, event_type), place, "{aggregate_type} {event_type}");
            for (at, (name, _)) in routes.iter().enumerate() {
                let selection = routes.selection(name).unwrap();
                assert_eq!((selection.place(), selection.name()), (at, name));
                assert_eq!(selection.takes(aggregate_type, event_type), place == Some(at));
            }
        };
        check("order", "order.placed", Some(0));
        check("order", "order.late", Some(0));
        check("order", "paid", Some(1));
        check("cart", "order.placed", Some(1));
        check("invoice", "invoice.late", Some(2));
        check("invoice", "invoice.sent", None);
        assert!(!routes.take_all() && Routes::everything("x").take_all());
        assert!(routes.selection("d").is_none());
    }

    #[test]
    fn contradictions_are_all_named() {
        let check = |list: &[(&str, &[&str], &[&str])], expected: &[&str]| {
            assert_eq!(routes(list).err().unwrap_or_default(), expected);
        };
        check(&[], &["there is no route"]);
        check(&[("a", &["x"], &[]), ("b", &[], &[])], &[]);
        check(
            &[("a", &[], &[]), ("b", &["x"], &[]), ("a", &["y"], &["z"])],
            &[
                "can never get an event: `a` takes everything that it matches",
                "`a` is the name of an earlier route",
                "can never get an event: `a` takes everything that it matches",
            ],
        );
        check(
            &[("a", &["x*"], &[]), ("b", &[], &["y"]), ("c", &["xz", "w"], &["y"])],
            &["can never get an event: `a` and `b` take everything that it matches"],
        );
        check(&[("a", &["x"], &["y"]), ("b", &["x"], &["y", "z"]), ("c", &["x"], &["*"])], &[]);
        check(
            &[("a", &["*"], &["**"]), ("b", &[], &[])],
            &["can never get an event: `a` takes everything that it matches"],
        );
        check(&[("a", &["x"; 101], &[])], &["101 patterns in one list are too many: at most 100"]);
        let many = Routes::new((0..33).map(|number| (format!("r{number}"), filter(&[&format!("t{number}")], &[]))));
        assert_eq!(many.unwrap_err(), [InvalidRoutes::TooMany { routes: 33 }]);
    }

    #[test]
    fn a_split_aggregate_type_is_seen() {
        let check = |list: &[(&str, &[&str], &[&str])], expected: &[(usize, usize)]| {
            assert_eq!(routes(list).unwrap().splits(), expected);
        };
        check(&[("a", &["order"], &[]), ("b", &[], &[])], &[]);
        check(&[("a", &["order"], &["order.*"]), ("b", &[], &[])], &[(0, 1)]);
        check(&[("a", &["order"], &["order.*"]), ("b", &["cart"], &[]), ("c", &["ord*"], &[])], &[(0, 2)]);
        check(&[("a", &[], &["a.*"]), ("b", &[], &["b.*"])], &[(0, 1)]);
        check(&[("a", &["x"], &["y.*"]), ("b", &["x", "z"], &["y.z"])], &[]);
    }

    #[test]
    fn differences_are_told_in_one_line() {
        let now = routes(&[("a", &["x"], &[]), ("b", &[], &[])]).unwrap();
        let check = |list: &[(&str, &[&str], &[&str])], expected: &str| {
            assert_eq!(routes(list).unwrap().difference(&now), expected);
        };
        check(
            &[("a", &["x"], &["y"]), ("b", &[], &[])],
            "`a` matches aggregate_type = [\"x\"], event_type = [\"y\"] instead of aggregate_type = [\"x\"]",
        );
        check(
            &[("c", &["x"], &[]), ("b", &[], &[])],
            "`c` is new (aggregate_type = [\"x\"]); `a` is gone (aggregate_type = [\"x\"])",
        );
        check(
            &[("b", &["x"], &[])],
            "`b` matches aggregate_type = [\"x\"] instead of everything; `a` is gone (aggregate_type = [\"x\"])",
        );
        let (one, other) =
            (routes(&[("a", &["x"], &[]), ("b", &["y"], &[])]), routes(&[("b", &["y"], &[]), ("a", &["x"], &[])]));
        assert_eq!(one.unwrap().difference(&other.unwrap()), "the same routes in another order");
    }

    #[test]
    fn routes_are_told_by_their_text() {
        let some = routes(&[("a", &["x\"\\"], &["y"]), ("b", &[], &[])]).unwrap();
        let text = serde_json::to_string(&some).unwrap();
        assert_eq!(
            text,
            r#"[{"name":"a","match":{"aggregate_type":["x\"\\"],"event_type":["y"]}},{"name":"b","match":{}}]"#
        );
        assert_eq!(serde_json::from_str::<Routes>(&text).unwrap(), some);
        for bad in ["[]", r#"[{"name":"a","match":{"age":"1"}}]"#, r#"[{"name":"a","match":{"event_type":[""]}}]"#] {
            assert!(serde_json::from_str::<Routes>(bad).is_err(), "{bad}");
        }
    }
}
