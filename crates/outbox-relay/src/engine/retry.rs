//! When a charged event may be tried again, and when it is given up. Pure.

use std::time::Duration;

use crate::RouteConfig;

/// What becomes of an event after a charged attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    /// Try again after the delay.
    Retry { attempts: u32, delay: Duration },
    /// The last attempt is spent.
    Dead { attempts: u32 },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RetryPolicy {
    max_attempts: u32,
    initial: Duration,
    max: Duration,
}

impl RetryPolicy {
    pub(super) fn new(config: &RouteConfig) -> Self {
        Self { max_attempts: config.max_attempts, initial: config.retry_initial, max: config.retry_max }
    }

    /// Charges one attempt. `random` is uniform in 0..1.
    pub(super) fn charge(&self, attempts: u32, random: f64) -> Disposition {
        let attempts = attempts.saturating_add(1);
        if attempts >= self.max_attempts {
            return Disposition::Dead { attempts };
        }
        Disposition::Retry { attempts, delay: backoff(self.initial, self.max, attempts, random) }
    }
}

/// Exponential backoff with full jitter above the initial delay: uniform between `initial` and
/// `initial × 2^(attempt - 1)`, never above `max`. Attempts are counted from 1.
pub(super) fn backoff(initial: Duration, max: Duration, attempt: u32, random: f64) -> Duration {
    // 2^40 times the smallest delay of 1 ms exceeds every permitted maximum (a year).
    let doublings = attempt.saturating_sub(1).min(40);
    let bound = initial.as_secs_f64() * f64::from(2_u32).powi(i32::try_from(doublings).unwrap_or(40));
    let bound = bound.min(max.as_secs_f64()).max(initial.as_secs_f64());
    let delay = initial.as_secs_f64() + random.clamp(0.0, 1.0) * (bound - initial.as_secs_f64());
    Duration::try_from_secs_f64(delay).unwrap_or(max).clamp(initial, max.max(initial))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_bound_doubles_up_to_the_maximum() {
        let check = |attempt, random, millis| {
            let delay = backoff(SECOND, 300 * SECOND, attempt, random);
            assert_eq!(delay, Duration::from_millis(millis), "attempt {attempt}, random {random}");
        };
        check(1, 1.0, 1_000);
        check(2, 1.0, 2_000);
        check(2, 0.5, 1_500);
        check(4, 1.0, 8_000);
        check(10, 1.0, 300_000);
        check(0, 0.5, 1_000);
    }

    #[test]
    fn the_last_attempt_kills() {
        let policy = RetryPolicy { max_attempts: 3, initial: SECOND, max: SECOND };
        assert_eq!(policy.charge(0, 0.0), Disposition::Retry { attempts: 1, delay: SECOND });
        assert_eq!(policy.charge(1, 0.0), Disposition::Retry { attempts: 2, delay: SECOND });
        assert_eq!(policy.charge(2, 0.0), Disposition::Dead { attempts: 3 });
        assert_eq!(policy.charge(u32::MAX, 0.0), Disposition::Dead { attempts: u32::MAX });
    }

    proptest! {
        // B21: no overflow, no zero delay, never above the cap, whatever stands in the table.
        #[test]
        fn always_between_base_and_cap(
            base in prop_oneof![Just(Duration::from_millis(1)), Just(86_400 * SECOND)],
            extra in 0_u64..365 * 86_400,
            attempts in prop_oneof![0_u32..=64, Just(1_000), Just(i32::MAX as u32), any::<u32>()],
            random in 0.0..1.0,
        ) {
            let cap = base + Duration::from_secs(extra);
            let delay = backoff(base, cap, attempts, random);
            prop_assert!(base <= delay && delay <= cap, "{delay:?} outside {base:?}..{cap:?}");
        }
    }
}
