//! Whether a destination may be sent to. Pure: the caller brings the time.

use std::time::Duration;

use tokio::time::Instant;

use super::retry::backoff;

/// The first pause after a failure; doubles up to the route's `probe_max`.
const INITIAL_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

/// Closed: events flow. Open: nothing is sent until the pause is over. Half-open: a probe is under way.
#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Failures since an event was last confirmed; a destination that only answers probes does not reset it.
    streak: u32,
    probe_max: Duration,
}

impl Breaker {
    pub(super) fn new(probe_max: Duration) -> Self {
        // It begins with a probe: readiness is known before the first event comes.
        Self { state: State::Closed, streak: 0, probe_max }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The state as a number: 0 closed, 1 half-open, 2 open.
    pub(super) fn code(&self) -> usize {
        match self.state {
            State::Closed => 0,
            State::HalfOpen => 1,
            State::Open { .. } => 2,
        }
    }

    /// A failure of the destination. While it is open or probing already, nothing changes: the answers of one
    /// outage count once.
    pub(super) fn trip(&mut self, now: Instant, random: f64) {
        if self.state == State::Closed {
            self.pause(now, random);
        }
    }

    /// Starts a probe at once, for a destination of which nothing is known yet.
    pub(super) fn probe_first(&mut self, now: Instant) {
        self.state = State::Open { until: now };
    }

    /// When the next probe is due; `None` unless open.
    pub(super) fn probe_due(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => Some(until),
            State::Closed | State::HalfOpen => None,
        }
    }

    /// Turns open into half-open when the pause is over; the caller then sends the probe.
    pub(super) fn begin_probe(&mut self, now: Instant) -> bool {
        let due = self.probe_due().is_some_and(|until| until <= now);
        if due {
            self.state = State::HalfOpen;
        }
        due
    }

    pub(super) fn probe_succeeded(&mut self) {
        self.state = State::Closed;
    }

    pub(super) fn probe_failed(&mut self, now: Instant, random: f64) {
        self.pause(now, random);
    }

    /// The destination confirmed an event: the next failure begins with a short pause again.
    pub(super) fn confirmed(&mut self) {
        self.streak = 0;
    }

    /// The probe under way was given up with the session that made it: the next one begins at once.
    pub(super) fn probe_lost(&mut self, now: Instant) {
        if self.state == State::HalfOpen {
            self.state = State::Open { until: now };
        }
    }

    /// Between half and the whole of the bound, so that an outage of hours costs about one probe per `probe_max`.
    fn pause(&mut self, now: Instant, random: f64) {
        self.streak = self.streak.saturating_add(1);
        let initial = INITIAL_PAUSE.min(self.probe_max);
        self.state = State::Open { until: now + backoff(initial, self.probe_max, self.streak, 0.5 + random / 2.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: Duration = Duration::from_secs(2);

    #[test]
    fn opens_probes_and_closes() {
        let now = Instant::now();
        let mut breaker = Breaker::new(MAX);
        breaker.trip(now, 1.0);
        assert_eq!(breaker.probe_due(), Some(now + INITIAL_PAUSE));
        breaker.trip(now + MAX, 1.0);
        assert_eq!(breaker.probe_due(), Some(now + INITIAL_PAUSE), "answers of one outage count once");
        assert!(!breaker.begin_probe(now));
        assert!(breaker.begin_probe(now + INITIAL_PAUSE));
        assert!(!breaker.is_closed() && breaker.probe_due().is_none());
        breaker.probe_failed(now, 1.0);
        assert_eq!(breaker.probe_due(), Some(now + 2 * INITIAL_PAUSE));
        assert!(breaker.begin_probe(now + MAX));
        breaker.probe_succeeded();
        assert!(breaker.is_closed());
        breaker.trip(now, 1.0);
        assert_eq!(breaker.probe_due(), Some(now + 4 * INITIAL_PAUSE), "a probe alone does not end the streak");
        breaker.probe_succeeded();
        breaker.confirmed();
        breaker.trip(now, 1.0);
        assert_eq!(breaker.probe_due(), Some(now + INITIAL_PAUSE));
    }

    #[test]
    fn a_lost_probe_is_made_again() {
        let now = Instant::now();
        let mut breaker = Breaker::new(MAX);
        breaker.probe_lost(now);
        assert!(breaker.is_closed());
        breaker.probe_first(now);
        assert!(breaker.begin_probe(now));
        breaker.probe_lost(now);
        assert_eq!(breaker.probe_due(), Some(now));
    }

    proptest! {
        #[test]
        fn a_pause_never_exceeds_probe_max(failures in 1_usize..100, random in 0.0..1.0) {
            let now = Instant::now();
            let mut breaker = Breaker::new(MAX);
            breaker.trip(now, random);
            for _ in 0..failures {
                breaker.probe_failed(now, random);
            }
            let due = breaker.probe_due().expect("open");
            prop_assert!(due > now && due <= now + MAX);
        }
    }
}
