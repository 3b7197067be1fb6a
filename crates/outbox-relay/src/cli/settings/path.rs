//! Where a value stands: `relay.window`, or `route[1].rabbitmq.url` for a value of the second `[[route]]`.

use std::fmt;

/// The place of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    /// Which `[[route]]`, counted from 0; `None` for what stands in another table.
    pub(crate) route: Option<usize>,
    /// The path as keys have it: `route.window` for a value of any route.
    pub(crate) key: String,
}

impl Path {
    pub(crate) fn new(route: Option<usize>, key: impl Into<String>) -> Self {
        Self { route, key: key.into() }
    }

    /// A value of a route.
    pub(crate) fn of_route(route: usize, below: &str) -> Self {
        Self { route: Some(route), key: format!("route.{below}") }
    }

    /// The place of another key of the same route, or of none.
    pub(crate) fn beside(&self, key: impl Into<String>) -> Self {
        Self { route: self.route, key: key.into() }
    }

    /// Reads `relay.window`, `route[1].window` and `route.1.window`. `route.window` speaks of no route in particular.
    pub(crate) fn parse(text: &str) -> Self {
        let of = |text: &str| {
            let rest = text.strip_prefix("route")?;
            let (index, below) = match rest.strip_prefix('[') {
                Some(rest) => rest.split_once("].")?,
                None => rest.strip_prefix('.')?.split_once('.')?,
            };
            Some(Self::of_route(place(index)?, below))
        };
        of(text).unwrap_or_else(|| Self::new(None, text))
    }

    /// The variable that sets it.
    pub(crate) fn variable(&self) -> String {
        let upper = self.key.to_uppercase().replace('.', "__");
        match upper.strip_prefix("ROUTE__") {
            Some(below) => format!("OUTBOX__ROUTE__{}__{below}", self.route.unwrap_or(0)),
            None => format!("OUTBOX__{upper}"),
        }
    }
}

/// The number of a route, in the one way to write it: `00` and `+0` would be further names of `0`.
pub(crate) fn place(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.route, self.key.strip_prefix("route")) {
            (Some(route), Some(below)) => write!(f, "route[{route}]{below}"),
            _ => f.write_str(&self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_and_read() {
        let check = |text: &str, shown: &str, variable: &str| {
            let path = Path::parse(text);
            assert_eq!((path.to_string().as_str(), path.variable().as_str()), (shown, variable));
        };
        check("relay.window", "relay.window", "OUTBOX__RELAY__WINDOW");
        check("route[1].window", "route[1].window", "OUTBOX__ROUTE__1__WINDOW");
        check("route.1.window", "route[1].window", "OUTBOX__ROUTE__1__WINDOW");
        check("route[12].rabbitmq.url", "route[12].rabbitmq.url", "OUTBOX__ROUTE__12__RABBITMQ__URL");
        check("route.rabbitmq.url", "route.rabbitmq.url", "OUTBOX__ROUTE__0__RABBITMQ__URL");
        check("route[01].window", "route[01].window", "OUTBOX__ROUTE[01]__WINDOW");
        check("route[x].window", "route[x].window", "OUTBOX__ROUTE[X]__WINDOW");
    }
}
