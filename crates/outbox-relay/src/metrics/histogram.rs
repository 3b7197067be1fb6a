//! How durations are spread, in a fixed number of buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets in milliseconds: from a local broker's answer to an event that waited out an outage of
/// hours. One set for all, so that they can be compared; 5 s is an alert's threshold.
pub(super) const BOUNDS_MS: [u64; 17] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 600_000, 7_200_000];

/// Counts by duration. The last one is above all bounds.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_micros: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Of each bucket alone.
    pub(super) counts: Vec<u64>,
    pub(super) sum: Duration,
}

impl Snapshot {
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS_MS.partition_point(|bound| bound.saturating_mul(1_000) < micros);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        self.sum_micros.fetch_add(micros, Relaxed);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        Snapshot { counts, sum: Duration::from_micros(self.sum_micros.load(Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let histogram = Histogram::default();
        for millis in [0, 1, 2, 5_000, 5_001, 100_000_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let snapshot = histogram.snapshot();
        let at = |bound: u64| snapshot.counts[BOUNDS_MS.iter().position(|other| *other == bound).unwrap()];
        assert_eq!((at(1), at(2), at(5_000), at(10_000), snapshot.counts[BOUNDS_MS.len()]), (2, 1, 1, 1, 1));
        assert_eq!((snapshot.count(), snapshot.sum), (6, Duration::from_millis(100_010_004)));
    }
}
