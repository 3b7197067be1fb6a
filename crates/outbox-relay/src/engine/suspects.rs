//! When events that may be cutting the connection get their turn to be sent alone. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::pending::Pending;

/// How long others go before suspects, and suspects before others.
const TURN: Duration = Duration::from_secs(1);

/// Suspects and all others take turns: after at most one window of others, or one second, the route drains and sends
/// suspects one at a time.
#[derive(Debug)]
pub(super) struct Suspects {
    window: usize,
    /// Since when a suspect has been waiting behind others, and how many of them were sent.
    waiting: Option<(Instant, usize)>,
    /// Until when the suspects' turn lasts.
    turn_ends: Option<Instant>,
    out: bool,
    /// Was sent alone and got no answer: the next probe tells whether the broker was to blame.
    accused: Option<Pending>,
}

impl Suspects {
    pub(super) fn new(window: usize) -> Self {
        Self { window, waiting: None, turn_ends: None, out: false, accused: None }
    }

    /// The bucket of the event that a probe is about to acquit or convict.
    pub(super) fn accused_of(&self) -> Option<u16> {
        self.accused.as_ref().map(|accused| accused.bucket)
    }

    /// A suspect is at the broker, alone.
    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    pub(super) fn sent(&mut self) {
        self.out = true;
    }

    pub(super) fn answered(&mut self) {
        self.out = false;
    }

    pub(super) fn others_sent(&mut self, count: usize) {
        if let Some((_, sent)) = &mut self.waiting {
            *sent += count;
        }
    }

    pub(super) fn is_their_turn(&mut self, suspect_waits: bool, others_wait: bool, now: Instant) -> bool {
        if !suspect_waits {
            (self.waiting, self.turn_ends) = (None, None);
            return false;
        }
        if let Some(ends) = self.turn_ends {
            if now < ends || !others_wait {
                return true;
            }
            (self.waiting, self.turn_ends) = (Some((now, 0)), None);
            return false;
        }
        let (since, sent) = *self.waiting.get_or_insert((now, 0));
        let turn = !others_wait || sent >= self.window || now - since >= TURN;
        if turn {
            self.turn_ends = Some(now + TURN);
        }
        turn
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.map(|(since, _)| since + TURN)
    }

    pub(super) fn accuse(&mut self, pending: Pending) -> Option<Pending> {
        self.accused.replace(pending)
    }

    pub(super) fn take_accused(&mut self) -> Option<Pending> {
        self.accused.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_and_others_take_turns() {
        let now = Instant::now();
        let mut suspects = Suspects::new(100);
        assert!(!suspects.is_their_turn(false, true, now));
        assert!(!suspects.is_their_turn(true, true, now), "others first");
        suspects.others_sent(100);
        assert!(suspects.is_their_turn(true, true, now), "after one window of others");
        assert!(!suspects.is_their_turn(true, true, now + TURN), "the others' turn again");
        assert!(suspects.is_their_turn(true, true, now + 2 * TURN), "after a second of others");
    }

    #[test]
    fn a_suspect_goes_at_once_when_nothing_else_waits() {
        assert!(Suspects::new(100).is_their_turn(true, false, Instant::now()));
    }
}
