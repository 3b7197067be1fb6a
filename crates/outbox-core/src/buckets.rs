//! The parts of a route that relays share, and what is a fair share of them. Pure.

use std::fmt;

/// A set of a route's buckets. There are 64 of them, for ever: each aggregate is in one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Buckets(u64);

impl Buckets {
    /// How many there are.
    pub const COUNT: usize = 64;
    /// All of them.
    pub const ALL: Self = Self(u64::MAX);
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Whether this one is in the set.
    #[must_use]
    pub const fn contains(self, bucket: u16) -> bool {
        self.0 & Self::bit(bucket) != 0
    }

    /// The set with this one. There is no bucket beyond 63, so nothing is added for one.
    #[must_use]
    pub const fn with(self, bucket: u16) -> Self {
        Self(self.0 | Self::bit(bucket))
    }

    /// Those that are in this set or in the other.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many are in the set.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// One bit for each bucket, that of bucket 0 the lowest.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// From the lowest to the highest.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        (0..64).filter(move |bucket| self.contains(*bucket))
    }

    const fn bit(bucket: u16) -> u64 {
        match 1_u64.checked_shl(bucket as u32) {
            Some(bit) => bit,
            None => 0,
        }
    }
}

impl FromIterator<u16> for Buckets {
    fn from_iter<T: IntoIterator<Item = u16>>(buckets: T) -> Self {
        buckets.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// How many buckets are the fair share of the relay that has so many before it, of so many in all: as many as the
/// others have, or one more. The shares of all relays make 64, so that nobody waits for what is nobody's.
#[must_use]
pub const fn fair_share(relays: usize, before: usize) -> usize {
    let relays = if relays == 0 { 1 } else { relays };
    let one_more = before < Buckets::COUNT % relays;
    Buckets::COUNT / relays + one_more as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fair_and_make_all() {
        for relays in 1..=200 {
            let shares: Vec<usize> = (0..relays).map(|before| fair_share(relays, before)).collect();
            assert_eq!(shares.iter().sum::<usize>(), Buckets::COUNT, "{relays}");
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{relays}");
            assert!(relays > Buckets::COUNT || shares.iter().all(|share| *share > 0), "{relays}");
        }
        assert_eq!(fair_share(0, 0), Buckets::COUNT);
    }

    #[test]
    fn a_set_holds_what_was_put_into_it() {
        let some: Buckets = [0, 5, 63].into_iter().collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert!(some.contains(63) && !some.contains(62) && !some.contains(64) && !Buckets::ALL.contains(64));
        assert_eq!(some.with(64), some);
        assert_eq!((some.len(), Buckets::ALL.len(), Buckets::NONE.is_empty()), (3, Buckets::COUNT, true));
        assert_eq!(Buckets::ALL.without(some).and(some), Buckets::ALL);
        assert_eq!(Buckets::ALL.without(some).len(), 61);
        assert_eq!(format!("{some:?}"), "{0, 5, 63}");
    }
}
