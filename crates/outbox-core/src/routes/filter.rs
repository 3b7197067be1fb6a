//! Which events a route matches.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{InvalidPattern, Pattern};

/// Which events a route matches: those whose aggregate type is matched by one of the first patterns *and* whose event
/// type is matched by one of the second. An empty list matches all. The default matches every event.
///
/// ```
/// use outbox_core::Filter;
///
/// let orders = Filter::default().aggregate_types(["order"])?.event_types(["order.*"])?;
/// assert!(orders.matches("order", "order.placed") && !orders.matches("order", "refunded"));
/// # Ok::<(), outbox_core::InvalidPattern>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Filter {
    /// Patterns over aggregate types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregate_type: Vec<Pattern>,
    /// Patterns over event types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_type: Vec<Pattern>,
}

impl Filter {
    /// Chooses the patterns over aggregate types.
    ///
    /// # Errors
    /// The first text that is no pattern.
    pub fn aggregate_types<T: Into<String>>(
        mut self,
        patterns: impl IntoIterator<Item = T>,
    ) -> Result<Self, InvalidPattern> {
        self.aggregate_type = patterns.into_iter().map(Pattern::new).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Chooses the patterns over event types.
    ///
    /// # Errors
    /// The first text that is no pattern.
    pub fn event_types<T: Into<String>>(
        mut self,
        patterns: impl IntoIterator<Item = T>,
    ) -> Result<Self, InvalidPattern> {
        self.event_type = patterns.into_iter().map(Pattern::new).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Whether an event of these types is matched.
    #[must_use]
    pub fn matches(&self, aggregate_type: &str, event_type: &str) -> bool {
        let one_of = |patterns: &[Pattern], name: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
        };
        one_of(&self.aggregate_type, aggregate_type) && one_of(&self.event_type, event_type)
    }

    /// Whether every event is matched.
    #[must_use]
    pub fn matches_all(&self) -> bool {
        let all = |patterns: &[Pattern]| patterns.is_empty() || patterns.iter().any(is_star);
        all(&self.aggregate_type) && all(&self.event_type)
    }

    /// Whether there could be an event that both match.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.aggregate_type, &other.aggregate_type) && overlap(&self.event_type, &other.event_type)
    }
}

pub(super) fn overlap(ours: &[Pattern], theirs: &[Pattern]) -> bool {
    let both = |ours: &Pattern| theirs.iter().any(|theirs| ours.overlaps(theirs));
    ours.is_empty() || theirs.is_empty() || ours.iter().any(both)
}

/// As it would be written in the config.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [("aggregate_type", &self.aggregate_type), ("event_type", &self.event_type)];
        let mut written = lists.into_iter().filter(|(_, patterns)| !patterns.is_empty()).peekable();
        if written.peek().is_none() {
            return f.write_str("everything");
        }
        for (place, (name, patterns)) in written.enumerate() {
            write!(f, "{}{name} = {patterns:?}", if place > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Whether a pattern stands for every name.
pub(super) fn is_star(pattern: &Pattern) -> bool {
    pattern.as_str().bytes().all(|byte| byte == b'*')
}
