//! How often a database is called that does not answer. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause: a server that is asked that often is not kept busy, and a short trouble costs no more.
const SHORTEST: Duration = Duration::from_millis(500);

/// The longest pause: it is also how long a database that is back may wait for the first call.
const LONGEST: Duration = Duration::from_secs(2);

/// Failures so far apart have nothing to do with each other.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// The pauses between calls that fail. They grow, so that a server that starts is not kept busy with logins, and are
/// drawn, so that many relays do not knock in step.
#[derive(Debug, Default)]
pub(super) struct Knock {
    failures: u32,
    last: Option<Instant>,
}

impl Knock {
    /// A call has failed: how long to wait for the next, `longest` at most. `draw` is between 0 and 1.
    pub(super) fn failed(&mut self, now: Instant, longest: Duration, draw: f64) -> Duration {
        let again = self.last.is_some_and(|last| now.saturating_duration_since(last) < FORGOTTEN);
        self.failures = if again { self.failures.saturating_add(1) } else { 0 };
        self.last = Some(now);
        let grown = SHORTEST.saturating_mul(1 << self.failures.min(8));
        grown.min(LONGEST).min(longest).mul_f64(0.5 + 0.5 * draw.clamp(0.0, 1.0))
    }

    /// A call has succeeded.
    pub(super) fn answered(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew_after_an_answer() {
        let (mut knock, mut now) = (Knock::default(), Instant::now());
        let mut pauses = |knock: &mut Knock, longest: Duration, count: usize| -> Vec<u128> {
            let pause = |_| {
                let pause = knock.failed(now, longest, 1.0);
                now += pause;
                pause.as_millis()
            };
            (0..count).map(pause).collect()
        };
        let day = Duration::from_secs(86_400);
        assert_eq!(pauses(&mut knock, day, 6), [500, 1_000, 2_000, 2_000, 2_000, 2_000]);
        knock.answered();
        assert_eq!(pauses(&mut knock, Duration::from_millis(800), 3), [500, 800, 800]);
        assert_eq!(pauses(&mut knock, day, 100)[99], 2_000);
        let late = Instant::now() + day;
        assert_eq!(knock.failed(late, day, 0.0), Duration::from_millis(250));
    }
}
