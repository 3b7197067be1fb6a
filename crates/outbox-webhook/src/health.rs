//! What the answers so far say about the endpoint: asked to wait, in trouble, or well. Pure: the caller brings the time.
//!
//! A 500, a 502, a 408 or a lost answer is either one event's fault or the endpoint's. One answer does not tell; the answers
//! around it do: an endpoint that takes other events is well. So troubles are counted since an event was last taken.
//! In an outage nothing is taken, and nothing is charged; a poisonous event among good ones stands out.

use std::time::Duration;

use outbox_core::{ErrorKind, EventId, PublishError};
use tokio::time::Instant;

/// As long as the relay's longest pause between two probes by default, so that its next probe comes after a rest.
const REST: Duration = Duration::from_secs(2);
/// So many troubles in a row, of several events, are no coincidence: at a failure rate of one in ten, one event in
/// 100 000 begins such a row.
const MANY_TROUBLES: u32 = 5;
/// The longest time that `Retry-After` is honoured for, and then again: a receiver's mistake or a quota of a day must
/// not keep the route from noticing that it is over.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(300);

/// Whose the endpoint's troubles seem to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Of one event, or of few among others that were taken.
    OfOne,
    /// Of all events: none was taken between many troubles of several.
    Common,
}

/// The endpoint as its answers show it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Troubles since an event was last taken.
    troubles: u32,
    /// The event that had them all, as long as it was one.
    only: Option<EventId>,
    last_trouble: Option<Instant>,
    /// No check has been made since the last trouble.
    is_untold: bool,
    wait_until: Option<Instant>,
}

impl Health {
    /// An event was taken.
    pub(crate) fn accepted(&mut self) {
        (self.troubles, self.only, self.last_trouble, self.is_untold) = (0, None, None, false);
    }

    /// An event had trouble.
    pub(crate) fn trouble(&mut self, id: EventId, now: Instant) -> Trouble {
        self.only = if self.troubles == 0 { Some(id) } else { self.only.filter(|only| *only == id) };
        self.troubles = self.troubles.saturating_add(1);
        self.last_trouble = Some(now);
        self.is_untold = true;
        if self.is_common() { Trouble::Common } else { Trouble::OfOne }
    }

    /// The endpoint asked to be left alone for a while.
    pub(crate) fn asked_to_wait(&mut self, wait: Duration, now: Instant) {
        let until = now + wait.min(MAX_WAIT);
        self.wait_until = self.wait_until.max(Some(until));
    }

    /// Why nothing should be sent now.
    pub(crate) fn against_sending(&self, now: Instant) -> Option<PublishError> {
        let resting = || (self.is_common() && self.in_rest(now)).then(|| self.in_trouble());
        self.waiting(now).or_else(resting)
    }

    /// Why an endpoint that can be connected to is not well. The relay charges an event that was sent alone and not
    /// answered when the check that follows is good, so a second trouble in a row makes that one a bad one, however
    /// long after the trouble it comes.
    pub(crate) fn against_checking(&mut self, now: Instant) -> Option<PublishError> {
        let is_told_now = std::mem::take(&mut self.is_untold);
        let resting = || (self.troubles > 1 && (is_told_now || self.in_rest(now))).then(|| self.in_trouble());
        self.waiting(now).or_else(resting)
    }

    fn is_common(&self) -> bool {
        self.troubles >= MANY_TROUBLES && self.only.is_none()
    }

    fn in_rest(&self, now: Instant) -> bool {
        self.last_trouble.is_some_and(|last| now < last + REST)
    }

    fn waiting(&self, now: Instant) -> Option<PublishError> {
        let left =
            self.wait_until.and_then(|until| until.checked_duration_since(now)).filter(|left| !left.is_zero())?;
        let detail = format!("the endpoint asked to wait (Retry-After); nothing is sent for another {left:.0?}");
        Some(PublishError::new(ErrorKind::Throttled, detail))
    }

    fn in_trouble(&self) -> PublishError {
        let detail = format!(
            "the endpoint took none of the last {} requests (5xx, 408 or no answer); nothing is sent for up to {REST:?}",
            self.troubles
        );
        PublishError::new(ErrorKind::Unavailable, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn id(number: u128) -> EventId {
        EventId::from_uuid(Uuid::from_u128(number))
    }

    #[test]
    fn an_event_that_fails_among_others_stays_to_blame() {
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(health.trouble(id(1), now), Trouble::OfOne);
            health.accepted();
            assert!(health.against_sending(now).is_none() && health.against_checking(now).is_none());
        }
    }

    #[test]
    fn an_event_that_fails_alone_stays_to_blame_and_holds_nobody_up() {
        let (mut health, now) = (Health::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(health.trouble(id(1), now), Trouble::OfOne);
            assert!(health.against_sending(now).is_none());
        }
    }

    #[test]
    fn an_outage_is_nobodys_fault_and_gives_the_endpoint_a_rest() {
        let (mut health, now) = (Health::default(), Instant::now());
        health.accepted();
        for number in 1..=4 {
            assert_eq!(health.trouble(id(number), now), Trouble::OfOne, "{number}");
            assert!(health.against_sending(now).is_none());
        }
        for number in 5..100 {
            assert_eq!(health.trouble(id(number), now), Trouble::Common, "{number}");
        }
        assert_eq!(health.trouble(id(1), now), Trouble::Common, "whoever comes again");
        for obstacle in [health.against_sending(now), health.against_checking(now)] {
            assert_eq!(obstacle.unwrap().kind(), ErrorKind::Unavailable);
        }
        let later = now + REST;
        assert!(health.against_sending(later).is_none() && health.against_checking(later).is_none());
        assert_eq!(health.trouble(id(1), later), Trouble::Common);
        assert!(health.against_sending(later).is_some());
        health.accepted();
        assert!(health.against_sending(later).is_none() && health.against_checking(later).is_none());
        assert_eq!(health.trouble(id(1), later), Trouble::OfOne);
    }

    #[test]
    fn the_first_trouble_leaves_the_check_good_the_second_in_a_row_does_not() {
        let (mut health, now) = (Health::default(), Instant::now());
        health.trouble(id(1), now);
        assert!(health.against_checking(now).is_none());
        health.trouble(id(1), now);
        assert_eq!(health.against_checking(now).unwrap().kind(), ErrorKind::Unavailable);
        health.accepted();
        health.trouble(id(1), now);
        assert!(health.against_checking(now).is_none());
    }

    /// Whatever pause the relay makes between a trouble and its probe.
    #[test]
    fn the_check_that_follows_a_trouble_is_bad_however_late_it_comes() {
        let (mut health, now) = (Health::default(), Instant::now());
        health.trouble(id(1), now);
        health.trouble(id(1), now);
        let late = now + 100 * REST;
        assert!(health.against_checking(late).is_some());
        assert!(health.against_checking(late).is_none(), "once");
        health.trouble(id(1), late);
        health.accepted();
        assert!(health.against_checking(late).is_none());
    }

    #[test]
    fn a_wait_is_honoured_within_its_bound_and_never_shortened() {
        let (mut health, now) = (Health::default(), Instant::now());
        let second = Duration::from_secs(1);
        health.asked_to_wait(10 * second, now);
        health.asked_to_wait(second, now);
        health.accepted();
        let error = health.against_sending(now).unwrap();
        assert_eq!(error.kind(), ErrorKind::Throttled);
        assert!(error.report().contains("another 10s"), "{}", error.report());
        assert_eq!(health.against_checking(now + 9 * second).unwrap().kind(), ErrorKind::Throttled);
        assert!(health.against_sending(now + 10 * second).is_none());
        health.asked_to_wait(Duration::MAX, now);
        assert!(health.against_sending(now + MAX_WAIT - second).is_some());
        assert!(health.against_sending(now + MAX_WAIT).is_none());
    }
}
