//! One outage, a few lines: the first error in full, then counts, then one line when it is over.

use tokio::time::Instant;

use super::log_limit::{LogLimit, PERIOD};

/// Outages of one dependency that are told from beginning to end in one period. One that comes and goes faster is
/// told only as long as it lasts then.
const OUTAGES: u32 = 2;

/// The log of one dependency.
#[derive(Debug)]
pub(super) struct OutageLog {
    what: &'static str,
    route: String,
    outage: Option<Outage>,
    limit: LogLimit,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    reported: Instant,
    errors: u64,
    /// A line about it was written, so its end gets one too.
    told: bool,
}

impl OutageLog {
    pub(super) fn new(what: &'static str, route: &str) -> Self {
        Self { what, route: route.to_owned(), outage: None, limit: LogLimit::new(OUTAGES) }
    }

    /// Returns whether it wrote a line.
    pub(super) fn failed(&mut self, now: Instant, kind: &str, error: &str) -> bool {
        let (what, route) = (self.what, self.route.as_str());
        match &mut self.outage {
            None => {
                let told = self.limit.permit(now);
                if told {
                    tracing::warn!(route, kind, error, "{what} is away or refuses; events wait, nothing is lost");
                }
                self.outage = Some(Outage { since: now, reported: now, errors: 1, told });
                told
            }
            Some(outage) => {
                outage.errors += 1;
                let due = now - outage.reported >= PERIOD;
                if due {
                    (outage.reported, outage.told) = (now, true);
                    let (errors, seconds) = (outage.errors, (now - outage.since).as_secs());
                    tracing::warn!(route, kind, error, errors, seconds, "{what} is still away or refuses");
                }
                due
            }
        }
    }

    /// Returns whether it wrote a line.
    pub(super) fn works(&mut self, now: Instant) -> bool {
        let Some(outage) = self.outage.take().filter(|outage| outage.told) else { return false };
        let (errors, seconds) = (outage.errors, (now - outage.since).as_secs_f64());
        let route = &self.route;
        match self.limit.take_left_out(now) {
            None => tracing::info!(route, errors, seconds, "{} works again", self.what),
            Some(more) => {
                tracing::info!(route, errors, seconds, untold_outages = more, "{} works again", self.what);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_outage_that_goes_on_is_told_three_times_a_minute() {
        let begun = Instant::now();
        let mut log = OutageLog::new("the destination", "orders");
        let times = (0..600_u32).map(|n| begun + n * Duration::from_millis(100));
        let lines = times.filter(|now| log.failed(*now, "unavailable", "no")).count();
        assert_eq!(lines, 3);
        assert!(log.works(begun + Duration::from_secs(60)));
        assert!(!log.works(begun + Duration::from_secs(60)));
    }

    #[test]
    fn outages_that_come_and_go_are_few_lines() {
        let begun = Instant::now();
        let mut log = OutageLog::new("the destination", "orders");
        let mut lines = 0;
        for n in 0..600 {
            let now = begun + n * Duration::from_millis(100);
            lines += usize::from(log.failed(now, "throttled", "full"));
            lines += usize::from(log.works(now));
        }
        assert_eq!(lines, 12, "two beginnings and two ends in each of three periods");
    }
}
