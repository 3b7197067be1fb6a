//! Patterns over names: `*` stands for any run of characters, and nothing else is special.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::MAX_NAME_BYTES;

/// A pattern over aggregate types or event types: `*` stands for any run of characters, the empty one included;
/// everything else stands for itself. Upper and lower case differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

/// Why a text is no pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidPattern {
    /// It is empty, and names never are.
    #[error("is empty, and no name is; use `*` for all")]
    Empty,
    /// It is longer than a name may be, so it could match none.
    #[error("has {bytes} bytes, and no name has more than {MAX_NAME_BYTES}")]
    Long {
        /// Its length.
        bytes: usize,
    },
    /// It holds NUL, which no name in PostgreSQL does.
    #[error("holds a NUL, and no name does")]
    Nul,
}

impl Pattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// [`InvalidPattern`]: it could match no name.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidPattern> {
        let text = text.into();
        if text.is_empty() {
            return Err(InvalidPattern::Empty);
        }
        if text.contains('\0') {
            return Err(InvalidPattern::Nul);
        }
        let bytes = text.bytes().filter(|byte| *byte != b'*').count();
        if bytes > MAX_NAME_BYTES || text.len() > 2 * MAX_NAME_BYTES {
            return Err(InvalidPattern::Long { bytes: text.len() });
        }
        Ok(Self(text))
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it stands for this name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == name };
        let (between, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(mut left) = name.strip_prefix(head).and_then(|name| name.strip_suffix(tail)) else { return false };
        // Each part at its first place leaves the most room for those after it.
        between.split('*').all(|part| left.find(part).map(|at| left = &left[at + part.len()..]).is_some())
    }

    /// Whether it stands for every name for which `other` does.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        // A `*` of the other stands for anything, so only a `*` of this one may take it in.
        self.matches(&other.0)
    }

    /// Whether there could be a name for which both stand.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.0.as_bytes());
        // From the ends on: `below[j]` tells whether ours from i + 1 and theirs from j have a name in common.
        let mut below = vec![false; theirs.len() + 1];
        for i in (0..=ours.len()).rev() {
            let mut row = vec![false; theirs.len() + 1];
            for j in (0..=theirs.len()).rev() {
                let (our, their) = (ours.get(i), theirs.get(j));
                let after = |row: &[bool]| row.get(j + 1).copied().unwrap_or(false);
                row[j] = match (our, their) {
                    (None, None) => true,
                    (Some(b'*'), _) | (_, Some(b'*')) => {
                        (our == Some(&b'*') && (below[j] || (their.is_some() && after(&row))))
                            || (their == Some(&b'*') && (after(&row) || (our.is_some() && below[j])))
                    }
                    (Some(our), Some(their)) => our == their && after(&below),
                    _ => false,
                };
            }
            below = row;
        }
        below[0]
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        Self::new(text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    #[test]
    fn a_star_is_any_run_and_nothing_else_is_special() {
        let check = |text: &str, name: &str, matches: bool| {
            assert_eq!(pattern(text).matches(name), matches, "{text} {name}");
        };
        check("order.placed", "order.placed", true);
        check("order.placed", "order.Placed", false);
        check("order.placed", "order.placed.late", false);
        check("order.*", "order.placed", true);
        check("order.*", "order.", true);
        check("order.*", "order", false);
        check("*", "", true);
        check("*", "anything at all", true);
        check("*.placed", "order.placed", true);
        check("*.placed", ".placed", true);
        check("o*r", "or", true);
        check("o*r", "o", false);
        check("a*a", "a", false);
        check("a*b*c", "abc", true);
        check("a*b*c", "aXbYbZc", true);
        check("a*b*c", "acb", false);
        check("a**b", "ab", true);
        check("ab*ba", "aba", false);
        check("żó*ć", "żółć", true);
        for special in ["a.b", "a?b", "a%b", "a_b", "a\\b", "a[b]", "a|b", "a+b", "a\nb"] {
            check(special, special, true);
            check(special, "aXb", false);
            check(special, "a", false);
        }
    }

    #[test]
    fn covering_and_overlapping() {
        let check = |ours: &str, theirs: &str, covers: bool, overlaps: bool| {
            let (a, b) = (pattern(ours), pattern(theirs));
            assert_eq!(a.covers(&b), covers, "{ours} covers {theirs}");
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (overlaps, overlaps), "{ours} overlaps {theirs}");
        };
        check("*", "order", true, true);
        check("*", "*", true, true);
        check("**", "*", true, true);
        check("order", "*", false, true);
        check("order", "order", true, true);
        check("order", "invoice", false, false);
        check("order.*", "order.placed*", true, true);
        check("order.placed*", "order.*", false, true);
        check("order.*", "*.placed", false, true);
        check("order.*", "invoice.*", false, false);
        check("a*a", "a", false, false);
        check("a*b", "*ab", false, true);
        check("a*b", "b*a", false, false);
        check("*x*", "*y*", false, true);
    }

    #[test]
    fn what_can_match_nothing_is_refused() {
        assert_eq!(Pattern::new(""), Err(InvalidPattern::Empty));
        assert_eq!(Pattern::new("a\0"), Err(InvalidPattern::Nul));
        assert_eq!(Pattern::new("x".repeat(256)), Err(InvalidPattern::Long { bytes: 256 }));
        assert_eq!(Pattern::new("*".repeat(511)), Err(InvalidPattern::Long { bytes: 511 }));
        assert!(Pattern::new(format!("*{}", "x".repeat(255))).is_ok());
    }
}
