//! A bound on log lines of one kind: the first ones in full, then a count. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// How long a count of lines lasts: a few lines a minute are enough to see that something goes on.
pub(super) const PERIOD: Duration = Duration::from_secs(20);

/// Lines of one kind written in full in one period: enough to see what kind of events they are about.
pub(super) const LINES: u32 = 20;

/// Counts lines of one kind.
#[derive(Debug)]
pub(super) struct LogLimit {
    most: u32,
    begun: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LogLimit {
    pub(super) fn new(most: u32) -> Self {
        Self { most, begun: None, written: 0, left_out: 0 }
    }

    /// Whether one more line may be written; otherwise it is counted.
    pub(super) fn permit(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            self.begun = Some(now);
            self.written = 0;
        }
        if self.written < self.most {
            self.written += 1;
            return true;
        }
        self.left_out = self.left_out.saturating_add(1);
        false
    }

    /// How many were left out, once their period is over.
    pub(super) fn take_left_out(&mut self, now: Instant) -> Option<u64> {
        (self.left_out > 0 && self.is_over(now)).then(|| std::mem::take(&mut self.left_out))
    }

    fn is_over(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now - begun >= PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_count() {
        let begun = Instant::now();
        let mut limit = LogLimit::new(LINES);
        let written = (0..1_000).filter(|_| limit.permit(begun)).count();
        assert_eq!(written, 20);
        assert_eq!(limit.take_left_out(begun), None, "one count for the whole period");
        assert_eq!(limit.take_left_out(begun + PERIOD), Some(980));
        assert_eq!(limit.take_left_out(begun + PERIOD), None);
        assert!(limit.permit(begun + PERIOD));
    }
}
