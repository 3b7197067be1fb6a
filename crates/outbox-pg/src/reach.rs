//! How many ids one read of a route with a filter looks at. Pure.

use std::time::Duration;

/// Ids that the first read looks at: some tens of milliseconds when all are other routes' events.
const LEAST: i64 = 100_000;

/// The most: ids are handed out for years before a gap is wider.
const MOST: i64 = 1 << 40;

/// A read that took less than this looks at twice as many ids the next time: most were gaps or long gone.
const QUICK: Duration = Duration::from_millis(250);

/// A read that took longer than this looks at half of them the next time.
const SLOW: Duration = Duration::from_secs(1);

/// Rows of other routes are no limit to a read, so ids are. A sequence that has counted to a billion over an almost
/// empty table must be crossed in a few reads all the same: hence more ids as long as that costs little time.
#[derive(Debug)]
pub(crate) struct Reach(i64);

impl Default for Reach {
    fn default() -> Self {
        Self(LEAST)
    }
}

impl Reach {
    pub(crate) const fn ids(&self) -> i64 {
        self.0
    }

    /// A read has looked at all of them in this time, and there are more.
    pub(crate) fn crossed(&mut self, took: Duration) {
        if took < QUICK {
            self.0 = (self.0 * 2).min(MOST);
        } else if took > SLOW {
            self.0 = (self.0 / 2).max(LEAST);
        }
    }

    /// A read has failed, perhaps for want of time, or has reached the end: the next one begins small.
    pub(crate) fn begin_small(&mut self) {
        self.0 = LEAST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_crossed_in_few_reads_and_rows_in_small_ones() {
        let (mut reach, mut crossed, mut reads) = (Reach::default(), 0, 0);
        while crossed < 10_000_000_000_i64 {
            crossed += reach.ids();
            reach.crossed(Duration::from_millis(1));
            reads += 1;
        }
        assert!(reads < 20, "{reads}");
        for _ in 0..100 {
            reach.crossed(Duration::from_secs(60));
        }
        assert_eq!(reach.ids(), LEAST);
        reach.crossed(QUICK);
        assert_eq!(reach.ids(), LEAST);
        for _ in 0..100 {
            reach.crossed(Duration::ZERO);
        }
        assert_eq!(reach.ids(), MOST);
        reach.begin_small();
        assert_eq!(reach.ids(), LEAST);
    }
}
