//! One outage, a few lines: the first error in full, then counts, then one line when it is over.

use std::time::Duration;

use tokio::time::Instant;

/// Between two lines about an outage that goes on.
const REPEAT: Duration = Duration::from_secs(20);

/// The log of one dependency.
#[derive(Debug)]
pub(super) struct OutageLog {
    what: &'static str,
    route: String,
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    reported: Instant,
    errors: u64,
}

impl OutageLog {
    pub(super) fn new(what: &'static str, route: &str) -> Self {
        Self { what, route: route.to_owned(), outage: None }
    }

    pub(super) fn failed(&mut self, now: Instant, kind: &str, error: &str) {
        let (what, route) = (self.what, self.route.as_str());
        match &mut self.outage {
            None => {
                tracing::warn!(route, kind, error, "{what} is away or refuses; events wait, nothing is lost");
                self.outage = Some(Outage { since: now, reported: now, errors: 1 });
            }
            Some(outage) => {
                outage.errors += 1;
                if now - outage.reported >= REPEAT {
                    outage.reported = now;
                    let (errors, seconds) = (outage.errors, (now - outage.since).as_secs());
                    tracing::warn!(route, kind, error, errors, seconds, "{what} is still away or refuses");
                }
            }
        }
    }

    pub(super) fn works(&mut self, now: Instant) {
        if let Some(outage) = self.outage.take() {
            let (errors, seconds) = (outage.errors, (now - outage.since).as_secs_f64());
            tracing::info!(route = self.route, errors, seconds, "{} works again", self.what);
        }
    }
}
