//! How much a read asks for, and how long it may take, after reads that could not be made in time. Pure.

use std::time::Duration;

/// The longest time for a read of ordinary size: 16 MiB over a slow link, or a page through many dead rows.
const PATIENCE: Duration = Duration::from_secs(20);

/// Doublings of the patience: up to 10 minutes, in which a link of 2 MB/s brings the largest row there can be.
const MAX_DOUBLINGS: u32 = 5;

/// Steps by which the bytes are cut, a quarter each: from 16 MiB to one row alone.
const MAX_STEPS: u32 = 12;

/// Reads in time after which a step is taken back.
const READS_PER_STEP: u32 = 16;

/// A link too slow for what was asked for must not repeat the same read for ever: each read that ran out of time makes
/// the next one smaller and more patient. A row that is too large by itself is then read alone.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    steps: u32,
    in_time: u32,
}

impl Pace {
    pub(crate) fn bytes(&self, max_bytes: usize) -> usize {
        max_bytes.checked_shr(2 * self.steps).unwrap_or(0).max(1)
    }

    pub(crate) fn patience(&self) -> Duration {
        PATIENCE * 2_u32.pow(self.steps.min(MAX_DOUBLINGS))
    }

    /// Whether a read needs more time than the transaction's usual limit.
    pub(crate) fn is_slow(&self) -> bool {
        self.steps > 0
    }

    /// A read has failed after this long. Only one that ran out of time says something about the size.
    pub(crate) fn failed(&mut self, after: Duration) {
        if after >= self.patience() - self.patience() / 10 {
            self.steps = (self.steps + 1).min(MAX_STEPS);
            self.in_time = 0;
        }
    }

    pub(crate) fn succeeded(&mut self) {
        if self.steps > 0 {
            self.in_time += 1;
            if self.in_time >= READS_PER_STEP {
                (self.steps, self.in_time) = (self.steps - 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_and_smaller_until_reads_are_in_time() {
        const MIB: usize = 1024 * 1024;
        let mut pace = Pace::default();
        pace.failed(Duration::from_secs(1));
        assert_eq!((pace.bytes(16 * MIB), pace.patience(), pace.is_slow()), (16 * MIB, PATIENCE, false));
        pace.failed(PATIENCE);
        assert_eq!((pace.bytes(16 * MIB), pace.patience(), pace.is_slow()), (4 * MIB, 2 * PATIENCE, true));
        for _ in 0..50 {
            pace.failed(Duration::from_secs(3600));
        }
        assert_eq!((pace.bytes(16 * MIB), pace.patience()), (1, 32 * PATIENCE));
        for _ in 0..MAX_STEPS * READS_PER_STEP {
            pace.succeeded();
        }
        assert_eq!((pace.bytes(16 * MIB), pace.is_slow()), (16 * MIB, false));
    }
}
