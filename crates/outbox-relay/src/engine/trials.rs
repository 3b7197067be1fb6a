//! Sends careful events: waits until the event is alone, charges a crash to it, sends it, and takes the charge back with
//! whatever answer comes. `careful` decides which and for how long.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Buckets, Change as RowChange, WriteBack, WriteBackStatus};
use tokio::time::Instant;

use super::careful::MAX_CRASHES;
use super::pending::Pending;
use super::retry::backoff;
use super::session::{REFRESH, Session};
use super::tasks::{self, Change, Purpose, Turn};
use super::write_backs::row_change;
use crate::RouteConfig;

/// The kind of a charged crash and of the dead letter that comes of it.
const KIND_CRASH: &str = "crash";

/// How long the end of a session waits to take a charge back.
const ACQUIT_DEADLINE: Duration = Duration::from_secs(3);

impl Session<'_> {
    /// Nothing is at the publisher any more: the event that is to be sent alone waits for the process's turn.
    pub(super) fn start_trial(&mut self) {
        if self.publishing == 0 && self.careful.queue() {
            self.work.spawn(tasks::turn(Arc::clone(self.parts.turns)));
        }
    }

    /// The turn has come: the event is chosen now, by how things are now.
    pub(super) fn on_turn(&mut self, turn: Option<Turn>, now: Instant) {
        let held = self.careful.dequeue();
        let may_send = turn.is_some() && self.may_publish(now) && self.window.room().0 > 0;
        let is_ours = |session: &Self, pending: &Pending| session.readable().contains(pending.bucket);
        let chosen = match held {
            Some(held) => Some(held),
            None if may_send => self.take_careful(now),
            None => None,
        };
        let (Some((pending, purpose)), Some(turn)) = (chosen, turn) else { return };
        if !may_send || !is_ours(self, &pending) {
            return self.put_back(pending, &purpose, now);
        }
        self.window.enter(pending.bucket, pending.bytes);
        if pending.defect.is_some() || pending.crashes >= MAX_CRASHES {
            if pending.defect.is_some() {
                self.give_up_defect(pending);
            } else {
                let reason = format!(
                    "{} relays in a row ended without a goodbye while they sent this event alone: it is taken to kill \
                     the process, and was not sent again",
                    pending.crashes
                );
                self.give_up(pending, KIND_CRASH, &reason);
            }
            self.purpose_ended(&purpose, now);
            return;
        }
        self.careful.charging(turn);
        let crashes = pending.crashes.saturating_add(1);
        // Whoever takes over does so when this lease has ended: others shall go first then, too.
        let (config, random) = (self.parts.config, fastrand::f64());
        let delay = config.lease + backoff(config.retry_initial, config.retry_max, crashes, random);
        let delay = delay.min(RouteConfig::MAX_DURATION);
        let error = format!("sent alone by a relay that has not told how that ended; crash {crashes} of {MAX_CRASHES}");
        let write_back = row_change(&pending, KIND_CRASH, error, RowChange::Retry { delay });
        let write_back = WriteBack { crashes, ..write_back };
        self.on_trial = Some(row_change(&pending, KIND_CRASH, String::new(), RowChange::Acquit));
        self.changes.push(Change { write_back, then_send: Some(purpose), refusals: 0, pending });
    }

    fn take_careful(&mut self, now: Instant) -> Option<(Pending, Purpose)> {
        let (topics, publisher) = (&self.topics, self.parts.publisher);
        let pending = self.order.take_careful(now, |head| tasks::paused_topic(topics, publisher.as_ref(), head))?;
        // Alone anyway, a suspect is tried as one too.
        let purpose = if pending.is_suspect() { Purpose::Suspect } else { Purpose::Ordinary };
        Some((pending, purpose))
    }

    /// It was not sent, and nothing was charged.
    fn put_back(&mut self, pending: Pending, purpose: &Purpose, now: Instant) {
        let key = pending.key;
        self.order.give_back(pending);
        self.order.evaluate(key, now);
        self.purpose_ended(purpose, now);
    }

    /// The charge has been answered for.
    pub(super) fn on_charged(
        &mut self,
        write_back: &WriteBack,
        mut pending: Pending,
        purpose: Purpose,
        status: WriteBackStatus,
        now: Instant,
    ) {
        match status {
            WriteBackStatus::Done => {
                (pending.crashes, pending.retried, pending.on_trial) = (write_back.crashes, true, true);
                // While a bucket is given back nothing of it is sent.
                if self.may_publish(now) && self.readable().contains(pending.bucket) {
                    self.careful.charged();
                    self.publish(vec![pending], purpose);
                } else {
                    self.call_off();
                    self.window.enter(pending.bucket, pending.bytes);
                    self.acquit(pending);
                    self.purpose_ended(&purpose, now);
                }
            }
            WriteBackStatus::Gone => {
                self.call_off();
                self.done(&pending);
                self.order.evaluate(pending.key, now);
                self.purpose_ended(&purpose, now);
            }
            WriteBackStatus::Fenced => {
                self.call_off();
                self.lost();
            }
        }
    }

    /// The database refuses the charge: the event is not sent without, and holds up nobody.
    pub(super) fn on_charge_refused(&mut self, mut pending: Pending, purpose: &Purpose, now: Instant) {
        self.call_off();
        self.window.leave(pending.bucket, pending.bytes);
        pending.not_before = Some(now + REFRESH);
        self.put_back(pending, purpose, now);
    }

    pub(super) fn call_off(&mut self) {
        self.on_trial = None;
        self.careful.called_off();
    }

    /// The event on trial was answered, whatever the answer: the process has outlived it.
    pub(super) fn outlived(&mut self, now: Instant) {
        self.on_trial = None;
        if self.careful.outlived() {
            tracing::info!(
                route = self.parts.config.name,
                "sending events one at a time ends: the relay has outlived them"
            );
            self.order.care_for(Buckets::NONE, now);
        }
    }

    /// Takes the charge of an event back that goes on to wait for its turn. It must be in the window.
    pub(super) fn acquit(&mut self, mut pending: Pending) {
        (pending.crashes, pending.on_trial) = (0, false);
        self.write(pending, KIND_CRASH, String::new(), RowChange::Acquit);
    }

    /// The session ends while an event is on trial, not by its fault: nobody shall pay for a broker that is slow to
    /// answer. What is at the publisher is dropped first, so that it can't kill the process after that.
    pub(super) async fn take_back_charge(&mut self) {
        let Some(acquittal) = self.on_trial.take() else { return };
        self.work.abort_all();
        let acquittal = [acquittal];
        let written = self.parts.store.write_back(&self.ownership, &acquittal);
        let problem = match tokio::time::timeout(ACQUIT_DEADLINE, written).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {ACQUIT_DEADLINE:?}"),
        };
        tracing::warn!(
            route = self.parts.config.name,
            error = problem,
            "an event stays charged with a crash that it did not cause; a confirm takes it back"
        );
    }

    /// Whether what was taken over has been outlived, and telling the table so.
    pub(super) fn start_forgetting(&mut self, now: Instant) {
        if self.forgetting || !self.careful.is_counting() {
            return;
        }
        if now >= self.next_prune {
            self.next_prune = now + REFRESH;
            let order = &self.order;
            self.careful.prune(|turn| order.is_going(turn));
        }
        if let Some(buckets) = self.careful.outlived_buckets().filter(|_| self.shares.is_settled()) {
            self.forgetting = true;
            let (store, ownership) = (Arc::clone(self.parts.store), Arc::clone(&self.ownership));
            self.work.spawn(tasks::forget_deaths(store, ownership, buckets));
        }
    }

    pub(super) fn on_deaths_forgotten(&mut self, buckets: Buckets, now: Instant) {
        self.careful.forgotten(buckets);
        self.order.care_for(self.careful.buckets(), now);
    }

    /// Says that the relay is careful with what it has taken over, if it is.
    pub(super) fn tell_care(&self) {
        let buckets = self.careful.buckets();
        if !buckets.is_empty() {
            tracing::warn!(
                route = self.parts.config.name,
                buckets = buckets.len(),
                deaths = self.ownership.deaths.values().max(),
                most = self.parts.config.window,
                "owners of the route died in a row: events are sent one at a time at first, in case one of them kills"
            );
        }
    }
}
