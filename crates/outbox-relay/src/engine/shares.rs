//! How much of the route is this relay's: it gives back what is too much when another joins, and takes what is free when
//! one has gone. What stays goes on meanwhile.
//!
//! A bucket that is given back takes four steps: nothing of it is handed over or taken in any more, what was in memory is
//! dropped; what is at the publisher, unsettled or being written back comes to its end; the bucket is ours no longer; the
//! store is told. A bucket that is gained takes two: the store says that it is ours; before the next read the lane goes
//! back to zero for it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Acquisition, Activity, Buckets, Claimed, Lane, Ownership, Standing, StoreError};
use tokio::time::Instant;

use super::reporter::StoreCall;
use super::session::{End, NextRead, Session};
use super::tasks;

/// Between two renewals of a relay that has the route to itself: so soon it notices another.
const ALONE: Duration = Duration::from_secs(5);

/// Between two renewals of a relay that shares the route: so soon it notices what others have given back.
const AMONG_OTHERS: Duration = Duration::from_secs(1);

/// For each relay of a route that much, so that all together ask the database four times a second at most, or three times
/// in each lease.
const FOR_EACH: Duration = Duration::from_millis(250);

/// What a session knows and does about its share.
#[derive(Debug)]
pub(super) struct Shares {
    /// As the last renewal told it, until something was made of it.
    standing: Option<Standing>,
    relays: usize,
    /// Being given back, until nothing of them is under way.
    leaving: Buckets,
    /// Ours no longer, and not known yet to be given back. Until then nothing more is taken.
    returning: Option<Arc<Ownership>>,
    /// A call of the store that takes or gives back is under way.
    asking: bool,
    /// Since the lane was last told.
    gained: Buckets,
    /// What the lane keeps to.
    turned: Buckets,
    /// As it was when the read under way began.
    read_in: Arc<Ownership>,
}

impl Shares {
    /// With a lane that was opened for this ownership.
    pub(super) fn new(ownership: &Arc<Ownership>) -> Self {
        Self {
            standing: None,
            relays: 1,
            leaving: Buckets::NONE,
            returning: None,
            asking: false,
            gained: Buckets::NONE,
            turned: ownership.buckets(),
            read_in: Arc::clone(ownership),
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// The read under way, or the last one, was made in this ownership.
    pub(super) fn is_as_read(&self, ownership: &Arc<Ownership>) -> bool {
        Arc::ptr_eq(&self.read_in, ownership)
    }

    /// No bucket comes or goes.
    pub(super) fn is_settled(&self) -> bool {
        self.gained.is_empty() && self.leaving.is_empty() && self.returning.is_none() && !self.asking
    }

    /// How long after a renewal the next one is made. Two more are left before the lease ends.
    pub(super) fn renewal_pause(&self, lease: Duration, random: f64) -> Duration {
        let most = lease / 3;
        match u32::try_from(self.relays).unwrap_or(u32::MAX) {
            0 | 1 => ALONE.min(most),
            // Spread, so that relays that were woken together do not stay in step.
            relays => FOR_EACH.saturating_mul(relays).max(AMONG_OTHERS).min(most).mul_f64(0.8 + 0.2 * random),
        }
    }
}

impl Session<'_> {
    /// What may be read and sent.
    pub(super) fn readable(&self) -> Buckets {
        self.ownership.buckets().without(self.shares.leaving)
    }

    pub(super) fn on_standing(&mut self, standing: Standing, now: Instant) {
        self.shares.relays = standing.relays;
        self.shares.standing = Some(standing);
        let pause = self.shares.renewal_pause(self.parts.config.lease, fastrand::f64());
        self.next_renewal = self.next_renewal.min(now + pause);
        if !self.shares.asking && self.shares.returning.is_none() {
            // Nothing is left that a failed call could have been about.
            self.parts.reporter.store_works(StoreCall::Share);
        }
    }

    /// One call at a time: first what must go, then what may come.
    pub(super) fn start_share(&mut self) {
        if self.shares.asking {
            return;
        }
        if self.shares.returning.is_none() && self.shares.leaving.is_empty() {
            let Some(Standing { share, free, .. }) = self.shares.standing.take() else { return };
            let owned = self.ownership.tokens.len();
            if owned > share {
                self.begin_to_leave(owned - share);
            } else if owned < share && free > 0 {
                self.shares.asking = true;
                self.work.spawn(tasks::take_more(Arc::clone(self.parts.store), Arc::clone(&self.ownership)));
            }
        }
        if self.shares.returning.is_none() {
            self.shares.returning = self.drained().map(Arc::new);
        }
        if let Some(part) = &self.shares.returning {
            self.shares.asking = true;
            self.work.spawn(tasks::give_back(Arc::clone(self.parts.store), Arc::clone(part)));
        }
    }

    /// Chooses those of which least is under way: a publish that hangs holds nothing else up.
    fn begin_to_leave(&mut self, count: usize) {
        let mut buckets: Vec<u16> = self.ownership.buckets().iter().collect();
        buckets.sort_by_key(|bucket| (self.window.holds(*bucket), std::cmp::Reverse(*bucket)));
        let leaving: Buckets = buckets.into_iter().take(count).collect();
        self.shares.leaving = leaving;
        self.order.leave(leaving);
    }

    /// What is being given back and has drained is ours no longer.
    fn drained(&mut self) -> Option<Ownership> {
        let leaving = self.shares.leaving;
        if leaving.is_empty() {
            return None;
        }
        for change in self.changes.abandon(leaving) {
            self.window.leave(change.pending.bucket, change.pending.bytes);
            self.order.give_back(change.pending);
        }
        let elsewhere = [self.suspects.accused_of(), self.careful.holds()];
        let is_idle = |bucket: &u16| self.window.holds(*bucket) == 0 && !elsewhere.contains(&Some(*bucket));
        let drained: Buckets = leaving.iter().filter(is_idle).collect();
        if drained.is_empty() {
            return None;
        }
        let part = self.ownership.only(drained);
        self.ownership = Arc::new(self.ownership.only(self.ownership.buckets().without(drained)));
        self.shares.leaving = leaving.without(drained);
        self.order.gone(drained);
        self.careful.gives(drained);
        Some(part)
    }

    pub(super) fn on_gave_back(&mut self, result: Result<(), StoreError>, now: Instant) {
        self.shares.asking = false;
        match result {
            Ok(()) => {
                self.parts.reporter.store_works(StoreCall::Share);
                self.shares.returning = None;
                if self.shares.leaving.is_empty() {
                    self.tell_share();
                }
            }
            Err(error) => self.store_failed(StoreCall::Share, &error, now),
        }
    }

    pub(super) fn on_took_more(&mut self, result: Result<Acquisition, StoreError>, now: Instant) {
        self.shares.asking = false;
        match result {
            Ok(Acquisition::Owned(ownership)) => {
                self.parts.reporter.store_works(StoreCall::Share);
                let gained = ownership.buckets().without(self.ownership.buckets());
                if !gained.is_empty() {
                    self.shares.gained = self.shares.gained.and(gained);
                    self.careful.takes(&ownership.only(gained));
                    self.order.care_for(self.careful.buckets(), now);
                    self.ownership = Arc::new(ownership);
                    self.next_read = NextRead::At(now);
                    self.tell_share();
                    self.tell_care();
                }
            }
            Ok(Acquisition::Lost) => self.lost(),
            Ok(Acquisition::OtherRoutes { .. }) => {
                self.end.get_or_insert(End::OtherRoutes);
            }
            // The next renewal tells whether there is still something to take.
            Err(error) => self.store_failed(StoreCall::Share, &error, now),
        }
    }

    /// Tells the lane, between two reads, what has become of the buckets. Returns what it reads.
    pub(super) fn turn(&mut self, lane: &mut dyn Lane) -> Buckets {
        let readable = self.readable();
        let gained: Buckets = self.shares.gained.iter().filter(|bucket| readable.contains(*bucket)).collect();
        if !gained.is_empty() {
            self.forget.append(&mut self.order.begin_anew());
        }
        if !gained.is_empty() || readable != self.shares.turned {
            lane.turn_to(readable, gained);
        }
        (self.shares.gained, self.shares.turned) = (Buckets::NONE, readable);
        self.shares.read_in = Arc::clone(&self.ownership);
        readable
    }

    /// Takes out what was read of buckets that are being given back, or were since the read began: their next owner
    /// sends it, be it ourselves after the lane has gone back.
    pub(super) fn turn_away(&mut self, events: &mut Vec<Claimed>) {
        let (read_in, leaving) = (&self.shares.read_in, self.shares.leaving);
        if Arc::ptr_eq(read_in, &self.ownership) && leaving.is_empty() {
            return;
        }
        let token = |ownership: &Ownership, bucket: u16| ownership.tokens.get(&bucket).copied();
        events.retain(|claimed| {
            let bucket = claimed.bucket;
            let held = token(&self.ownership, bucket);
            let stays = !leaving.contains(bucket) && held.is_some() && held == token(read_in, bucket);
            if !stays {
                self.forget.push(claimed.envelope.id);
            }
            stays
        });
    }

    pub(super) fn tell_share(&mut self) {
        let (route, buckets, relays) = (&self.parts.config.name, self.ownership.tokens.len(), self.shares.relays);
        self.parts.reporter.owner(buckets);
        match buckets {
            Buckets::COUNT => tracing::info!(route, "this relay owns the route"),
            0 => {
                tracing::info!(route, "another relay owns the route; waiting for a share or to take over");
                self.parts.wakeup.note(Activity::Resting);
            }
            _ => tracing::info!(route, buckets, relays, "this relay owns a share of the route"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outbox_core::Selection;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn renewals_are_as_rare_as_the_lease_and_the_others_allow() {
        let (selection, lease) = (Selection::everything("r"), Duration::from_secs(15));
        let (tokens, deaths) = (BTreeMap::new(), BTreeMap::new());
        let ownership = Ownership { selection, owner: Uuid::nil(), lease, tokens, deaths };
        let mut shares = Shares::new(&Arc::new(ownership));
        let mut check = |relays, lease, random, milliseconds| {
            shares.relays = relays;
            let pause = shares.renewal_pause(Duration::from_secs(lease), random);
            assert_eq!(pause, Duration::from_millis(milliseconds), "{relays} relays, {lease} s, {random}");
        };
        check(1, 15, 0.3, 5_000);
        check(1, 3_600, 0.3, 5_000);
        check(1, 3, 0.3, 1_000);
        check(2, 15, 1.0, 1_000);
        check(2, 15, 0.0, 800);
        check(2, 3, 1.0, 1_000);
        check(10, 15, 1.0, 2_500);
        check(50, 15, 1.0, 5_000);
        check(50, 15, 0.0, 4_000);
    }
}
