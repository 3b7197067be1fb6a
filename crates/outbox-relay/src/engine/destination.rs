//! What is known about the destination; it outlives an ownership.

use std::sync::Arc;

use outbox_core::{ErrorKind, PublishError};
use tokio::time::Instant;

use super::breaker::Breaker;
use super::outage_log::OutageLog;
use crate::RouteConfig;
use crate::health::Counters;

/// Whether the destination may be sent to, and what is told about it.
///
/// A good probe says that the destination can be reached, not that it takes events: a full queue, a closed pipe and
/// a broker whose answers get lost all pass it. So a probe closes the breaker, and what ends an outage is a confirm,
/// except where the outage was about reaching the destination and no event has proved the probe wrong since.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) breaker: Breaker,
    log: OutageLog,
    counters: Arc<Counters>,
    /// Why it is paused as a whole.
    error: Option<PublishError>,
    /// Whether a probe or an event has been answered.
    known: bool,
    /// A good probe ends the outage.
    probe_tells: bool,
    /// A good probe has ended an outage and no event has been confirmed since.
    unproven: bool,
}

impl Destination {
    pub(super) fn new(config: &RouteConfig, counters: &Arc<Counters>, now: Instant) -> Self {
        let mut breaker = Breaker::new(config.probe_max);
        breaker.probe_first(now);
        Self {
            breaker,
            log: OutageLog::new("the destination", &config.name),
            counters: Arc::clone(counters),
            error: None,
            known: false,
            probe_tells: true,
            unproven: false,
        }
    }

    pub(super) fn error(&self) -> Option<&PublishError> {
        self.error.as_ref()
    }

    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    /// A session begins. The one before took its probe with it, and its events, of which one could have ended the
    /// outage: a probe tells again.
    pub(super) fn session_begins(&mut self, now: Instant) {
        self.breaker.probe_lost(now);
        if self.error.is_some() {
            (self.probe_tells, self.unproven) = (true, false);
            if self.breaker.is_closed() {
                self.breaker.probe_first(now);
            }
        }
    }

    /// An event's answer puts the blame on the destination.
    pub(super) fn failed(&mut self, error: &PublishError, now: Instant, random: f64) {
        self.known = true;
        if self.breaker.is_closed() {
            self.outage(error.clone(), error.kind() == ErrorKind::Unavailable && !self.unproven, now);
        }
        self.breaker.trip(now, random);
    }

    /// An event that was sent alone got no answer: a probe shall tell whose fault it is, before anybody is blamed.
    pub(super) fn doubted(&mut self, now: Instant, random: f64) {
        self.breaker.trip(now, random);
    }

    /// A probe was answered.
    pub(super) fn probed(&mut self, result: Result<(), PublishError>, now: Instant, random: f64) {
        self.known = true;
        match result {
            Ok(()) => {
                self.breaker.probe_succeeded();
                if self.error.is_some() && self.probe_tells {
                    self.cleared(now);
                    self.unproven = true;
                }
            }
            Err(error) => {
                self.outage(error, true, now);
                self.breaker.probe_failed(now, random);
            }
        }
    }

    /// An event was confirmed. While the breaker is open that says nothing: another answer of the same time opened it.
    pub(super) fn confirmed(&mut self, now: Instant) {
        self.known = true;
        if self.breaker.is_closed() {
            self.unproven = false;
            self.breaker.confirmed();
            self.cleared(now);
        }
    }

    /// The outage was not the destination's fault, or concerned events that are no longer there.
    pub(super) fn cleared(&mut self, now: Instant) {
        if self.breaker.is_closed() && self.error.take().is_some() {
            self.log.works(now);
        }
    }

    fn outage(&mut self, error: PublishError, probe_tells: bool, now: Instant) {
        self.log.failed(now, error.kind().as_str(), &error.report());
        if self.error.is_none() {
            Counters::add(&self.counters.outages, 1);
            self.probe_tells = probe_tells;
        }
        self.error = Some(error);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn destination() -> (Destination, Instant) {
        let now = Instant::now();
        let mut destination = Destination::new(&RouteConfig::new("orders"), &Arc::default(), now);
        assert!(destination.breaker.begin_probe(now));
        destination.probed(Ok(()), now, 0.5);
        (destination, now)
    }

    fn fails(destination: &mut Destination, kind: ErrorKind, now: Instant) {
        destination.failed(&PublishError::new(kind, "no"), now, 0.5);
        let later = now + Duration::from_secs(10);
        assert!(destination.breaker.begin_probe(later));
        destination.probed(Ok(()), later, 0.5);
        assert!(destination.breaker.is_closed());
    }

    #[test]
    fn a_probe_ends_only_an_outage_that_a_probe_can_see() {
        for kind in [ErrorKind::Throttled, ErrorKind::Unconfirmed, ErrorKind::Misconfigured] {
            let (mut destination, now) = destination();
            fails(&mut destination, kind, now);
            assert!(destination.error().is_some(), "{kind}");
            destination.confirmed(now);
            assert!(destination.error().is_none(), "{kind}");
        }
        let (mut destination, now) = destination();
        fails(&mut destination, ErrorKind::Unavailable, now);
        assert!(destination.error().is_none());
        fails(&mut destination, ErrorKind::Unavailable, now);
        assert!(destination.error().is_some(), "the probe was wrong before");
        destination.session_begins(now);
        assert!(destination.breaker.begin_probe(now));
        destination.probed(Ok(()), now, 0.5);
        assert!(destination.error().is_none(), "its events are no longer here");
    }
}
