//! An event in the relay's memory.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Claimed, Confirmed, Envelope, Retrying};
use tokio::time::Instant;

use super::careful::MAX_CRASHES;
use crate::RouteConfig;
use crate::metrics::Claim;

/// A claimed event with what the engine has learnt about it.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) envelope: Envelope,
    /// The store's ordering key.
    pub(super) store_key: u64,
    /// What it waits for: the store's key, or itself alone when the route keeps no order.
    pub(super) key: u64,
    pub(super) bucket: u16,
    /// Charged attempts.
    pub(super) attempts: u32,
    /// Charged crashes.
    pub(super) crashes: u32,
    /// One of them was charged for the sending under way, and is taken back when that is answered.
    pub(super) on_trial: bool,
    /// It waits for an operator.
    pub(super) blocked: bool,
    /// A retry row may exist.
    pub(super) retried: bool,
    /// Not to be sent before this time.
    pub(super) not_before: Option<Instant>,
    /// Times in a row that its answer was lost.
    pub(super) cuts: u8,
    /// To be sent in a batch of its own: a publisher panicked on a batch that held it.
    pub(super) solo: bool,
    /// Why the row can't be published as it stands.
    pub(super) defect: Option<String>,
    /// What it counts for in windows and queues.
    pub(super) bytes: usize,
    /// The read that brought it, until it fails.
    pub(super) claim: Option<Arc<Claim>>,
}

/// When a delay from the table is over. Anyone may have written anything there: beyond the longest configurable
/// delay clocks overflow.
pub(super) fn due_at(due_in: Duration, now: Instant) -> Instant {
    now + due_in.min(RouteConfig::MAX_DURATION)
}

/// Until when an event waits that the table sees like this. A blocked one does so for longer than anybody lives to see;
/// the refresh finds out when an operator has let it go.
pub(super) fn not_before(retrying: &Retrying, now: Instant) -> Option<Instant> {
    if retrying.blocked {
        return Some(due_at(Duration::MAX, now));
    }
    // Too many crashes: it is not sent any more, so there is nothing to wait for.
    let waits = !retrying.due_in.is_zero() && retrying.crashes < MAX_CRASHES;
    waits.then(|| due_at(retrying.due_in, now))
}

impl Pending {
    pub(super) fn new(claimed: Claimed, key: u64, now: Instant) -> Self {
        let retrying = claimed.retrying;
        Self {
            bytes: claimed.envelope.bytes(),
            envelope: claimed.envelope,
            store_key: claimed.key,
            key,
            bucket: claimed.bucket,
            attempts: retrying.map_or(0, |retrying| retrying.attempts),
            crashes: retrying.map_or(0, |retrying| retrying.crashes),
            on_trial: false,
            blocked: retrying.is_some_and(|retrying| retrying.blocked),
            retried: retrying.is_some(),
            not_before: retrying.and_then(|retrying| not_before(&retrying, now)),
            cuts: 0,
            solo: false,
            defect: claimed.defect,
            claim: None,
        }
    }

    /// It has been given up and stays in its place.
    pub(super) fn block(&mut self, now: Instant) {
        self.blocked = true;
        self.not_before = Some(due_at(Duration::MAX, now));
    }

    pub(super) fn id(&self) -> i64 {
        self.envelope.id
    }

    /// Two lost answers in a row: it may be this event that cuts the connection.
    pub(super) fn is_suspect(&self) -> bool {
        self.cuts >= 2
    }

    pub(super) fn confirmed(&self) -> Confirmed {
        Confirmed { id: self.envelope.id, event_id: self.envelope.event_id, retried: self.retried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_beyond_all_clocks_is_cut() {
        let now = Instant::now();
        assert_eq!(due_at(Duration::MAX, now), now + RouteConfig::MAX_DURATION);
        assert_eq!(due_at(Duration::ZERO, now), now);
    }
}
