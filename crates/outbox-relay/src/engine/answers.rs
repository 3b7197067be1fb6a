//! What the session makes of each result: the table of `docs/lifecycle.md` in code.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_core::{Envelope, ErrorKind, Outcome, PublishError, Receipt, Renewal, StoreError};
use tokio::time::Instant;

use super::pending::Pending;
use super::reporter::{Lines, StoreCall};
use super::session::{End, Session, lease_end};
use super::tasks::{Done, Purpose, Unsettled, topic_of};
use super::write_backs::one_each;
use crate::health::{Counters, DestinationState, Gauges};
use crate::metrics::Claim;

impl Session<'_> {
    pub(super) fn take_in(&mut self, done: Done, now: Instant) {
        match done {
            Done::Read { lane, reread, result } => {
                self.lane = Some(lane);
                self.on_read(reread, result, now);
            }
            Done::Swept { lane, after, result } => {
                self.lane = Some(lane);
                self.on_swept(after, result, now);
            }
            Done::Published { batch, purpose, outcomes } => self.on_published(batch, &purpose, outcomes, now),
            Done::Withheld { batch, purpose } => self.on_withheld(batch, &purpose, now),
            Done::TookMore(result) => self.on_took_more(result, now),
            Done::GaveBack(result) => self.on_gave_back(result, now),
            Done::Settled { confirmed, result } => self.on_settled(confirmed, result, now),
            Done::WroteBack { changes, result } => self.on_wrote_back(changes, result, now),
            Done::Probed(result) => self.on_probed(result, now),
            Done::TurnCame(turn) => self.on_turn(turn, now),
            Done::ForgotDeaths { buckets, result } => {
                self.forgetting = false;
                match result {
                    Ok(()) => {
                        self.parts.reporter.store_works(StoreCall::ForgetDeaths);
                        self.on_deaths_forgotten(buckets, now);
                    }
                    Err(error) => self.store_failed(StoreCall::ForgetDeaths, &error, now),
                }
            }
            Done::Refreshed { asked, result } => {
                self.refreshing = false;
                match result.and_then(|states| one_each(states, asked.len())) {
                    Ok(states) => {
                        self.store_works(StoreCall::Refresh);
                        for (asked, state) in asked.iter().zip(states) {
                            self.on_refreshed(asked, state, now);
                        }
                    }
                    Err(error) => self.store_failed(StoreCall::Refresh, &error, now),
                }
            }
            Done::Renewed { sent, result } => {
                self.renewing = false;
                match result {
                    Ok(Renewal::Held(standing)) => {
                        self.store_works(StoreCall::Renew);
                        self.renewal_knock.answered();
                        self.lease_end = lease_end(sent, self.parts.config.lease);
                        self.on_standing(standing, now);
                    }
                    Ok(Renewal::Lost) => self.lost(),
                    Err(error) => {
                        self.parts.reporter.store_failed(StoreCall::Renew, &error);
                        // Several tries are left before the lease ends.
                        let longest = self.parts.config.lease / 10;
                        self.next_renewal = now + self.renewal_knock.failed(now, longest, fastrand::f64());
                    }
                }
            }
        }
    }

    pub(super) fn store_works(&mut self, call: StoreCall) {
        self.parts.reporter.store_works(call);
        self.store_knock.answered();
    }

    pub(super) fn store_failed(&mut self, call: StoreCall, error: &StoreError, now: Instant) {
        self.parts.reporter.store_failed(call, error);
        self.store_pause = now + self.store_knock.failed(now, Duration::MAX, fastrand::f64());
    }

    pub(super) fn lost(&mut self) {
        if self.end.is_none() {
            if !self.ownership.tokens.is_empty() {
                Counters::add(&self.parts.reporter.counters.lease_losses, 1);
                tracing::warn!(route = self.parts.config.name, "the route is lost: another relay may own it");
            }
            self.end = Some(End::Lost);
        }
    }

    fn on_published(
        &mut self,
        batch: Vec<Pending>,
        purpose: &Purpose,
        outcomes: Result<Vec<Outcome>, String>,
        now: Instant,
    ) {
        self.publishing -= 1;
        let mut keys: Vec<u64> = batch.iter().map(|pending| pending.key).collect();
        let on_trial = batch.iter().any(|pending| pending.on_trial);
        match outcomes {
            Ok(outcomes) => {
                let (mut throttled, mut confirmed) = (false, Vec::new());
                // A publisher that keeps order goes by the aggregate, also when the route does not.
                let in_order = self.parts.publisher.capabilities().keeps_order_in_batch;
                let followers =
                    followers(&batch, &outcomes, |pending| if in_order { pending.store_key } else { pending.key });
                self.trace_outcomes(&batch, &outcomes);
                // From the last to the first, so that events of one key go back in order.
                for (at, (pending, outcome)) in batch.into_iter().zip(outcomes).enumerate().rev() {
                    if followers.contains(&at) {
                        self.send_again(pending);
                        continue;
                    }
                    throttled |= matches!(&outcome, Err(error) if error.kind() == ErrorKind::Throttled);
                    match outcome {
                        Ok(receipt) => confirmed.push((pending, receipt)),
                        Err(error) => self.on_error(pending, purpose, &error, now),
                    }
                }
                // After the failures: where one of them opened the breaker, a confirm does not end the outage.
                for (pending, receipt) in confirmed {
                    self.on_confirmed(&pending, receipt, now);
                }
                if throttled {
                    self.window.throttled();
                }
            }
            Err(panic) => {
                if self.parts.reporter.may_log(Lines::Panics, now) {
                    let route = &self.parts.config.name;
                    tracing::error!(route, events = batch.len(), panic, "the publisher panicked");
                }
                let alone = batch.len() == 1;
                for mut pending in batch.into_iter().rev() {
                    pending.solo = true;
                    if alone {
                        let error = PublishError::new(ErrorKind::Failed, format!("the publisher panicked: {panic}"));
                        self.parts.reporter.counters.recorded.failed(&pending.envelope.event_type, error.kind());
                        self.charge(pending, &error);
                    } else {
                        // Any of them may be to blame: each is sent alone, none is charged yet.
                        self.send_again(pending);
                    }
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            self.order.evaluate(key, now);
        }
        self.purpose_ended(purpose, now);
        if on_trial {
            self.outlived(now);
        }
    }

    /// One line for a batch, and one for each of its events. No payload, no header.
    fn trace_outcomes(&self, batch: &[Pending], outcomes: &[Outcome]) {
        let route = &self.parts.config.name;
        let confirmed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        tracing::debug!(route, events = batch.len(), confirmed, "published");
        if !tracing::enabled!(tracing::Level::TRACE) {
            return;
        }
        for (Pending { envelope, .. }, outcome) in batch.iter().zip(outcomes) {
            let outcome = match outcome {
                Ok(Receipt { duplicate: true, .. }) => "duplicate",
                Ok(_) => "confirmed",
                Err(error) => error.kind().as_str(),
            };
            let Envelope { event_id, aggregate_type, aggregate_id, event_type, .. } = envelope;
            tracing::trace!(route, %event_id, aggregate_type, aggregate_id, event_type, outcome, "answered");
        }
    }

    /// Nothing was sent, and nobody is to blame.
    fn on_withheld(&mut self, batch: Vec<Pending>, purpose: &Purpose, now: Instant) {
        self.publishing -= 1;
        let keys: BTreeSet<u64> = batch.iter().map(|pending| pending.key).collect();
        if batch.iter().any(|pending| pending.on_trial) {
            self.call_off();
        }
        for pending in batch.into_iter().rev() {
            self.send_again(pending);
        }
        for key in keys {
            self.order.evaluate(key, now);
        }
        self.purpose_ended(purpose, now);
    }

    /// A batch with a purpose has come to its end, whatever its outcome was.
    pub(super) fn purpose_ended(&mut self, purpose: &Purpose, now: Instant) {
        match purpose {
            Purpose::Ordinary => {}
            Purpose::Suspect => self.suspects.answered(),
            Purpose::TopicProbe(topic) => self.topics.probe_ended(topic, now, fastrand::f64()),
        }
    }

    fn on_confirmed(&mut self, pending: &Pending, receipt: Receipt, now: Instant) {
        let counters = &self.parts.reporter.counters;
        Counters::add(&counters.published, 1);
        Counters::add(&counters.duplicates_reported, usize::from(receipt.duplicate));
        counters.recorded.delivered(pending.envelope.created_at);
        self.parts.destination.confirmed(now);
        self.window.confirmed();
        self.topic_confirmed(pending, now);
        self.order.finish(pending.key, pending.store_key);
        self.careful.is_done(pending.id());
        let (bucket, bytes) = (pending.bucket, pending.bytes);
        self.confirmed.push(Unsettled { event: pending.confirmed(), bucket, bytes, claim: pending.claim.clone() });
    }

    fn topic_confirmed(&mut self, pending: &Pending, now: Instant) {
        if self.topics.is_empty() {
            return;
        }
        // Over a panic nothing is known about the topic: its own probes go on.
        let Ok(topic) = topic_of(self.parts.publisher.as_ref(), &pending.envelope) else { return };
        if self.topics.resume(&topic) {
            if self.parts.reporter.may_log(Lines::Topics, now) {
                tracing::info!(route = self.parts.config.name, topic = %topic, "the topic works again");
            }
            self.order.unpark(&topic, now);
        }
    }

    fn on_error(&mut self, mut pending: Pending, purpose: &Purpose, error: &PublishError, now: Instant) {
        self.parts.reporter.counters.recorded.failed(&pending.envelope.event_type, error.kind());
        match error.kind() {
            ErrorKind::Rejected => {
                pending.crashes = 0;
                self.give_up(pending, error.kind().as_str(), &error.report());
            }
            ErrorKind::Failed => self.charge(pending, error),
            ErrorKind::Misconfigured => self.misconfigured(pending, error, now),
            ErrorKind::Unconfirmed if *purpose == Purpose::Suspect => {
                pending.cuts = pending.cuts.saturating_add(1);
                self.parts.destination.doubted(now, fastrand::f64());
                self.window.leave(pending.bucket, pending.bytes);
                if let Some(earlier) = self.suspects.accuse(pending) {
                    self.window.enter(earlier.bucket, earlier.bytes);
                    self.send_again(earlier);
                }
            }
            kind => {
                // Unavailable, Throttled, a lost answer, and kinds that are not known here yet.
                if kind == ErrorKind::Unconfirmed {
                    pending.cuts = pending.cuts.saturating_add(1);
                }
                self.parts.destination.failed(error, now, fastrand::f64());
                self.send_again(pending);
            }
        }
    }

    /// Pauses the topic that is at fault. One that is not the event's own would hold nothing back: the event would
    /// come again at once, so the destination as a whole is paused.
    fn misconfigured(&mut self, mut pending: Pending, error: &PublishError, now: Instant) {
        let at_fault = error.topic().filter(|topic| self.topics.has_room_for(topic));
        let own = at_fault.map(|_| topic_of(self.parts.publisher.as_ref(), &pending.envelope)).transpose();
        match (at_fault, own) {
            (_, Err(panic)) => {
                pending.solo = true;
                let error = PublishError::new(ErrorKind::Failed, format!("the publisher panicked: {panic}"));
                self.charge(pending, &error);
            }
            (Some(topic), Ok(Some(own))) if *topic == *own => {
                let report = error.report();
                let paused = self.topics.pause(topic, &report, now, fastrand::f64());
                if paused && self.parts.reporter.may_log(Lines::Topics, now) {
                    let route = &self.parts.config.name;
                    tracing::warn!(route, topic, error = report, "the topic is paused until it is mended");
                }
                self.send_again(pending);
            }
            _ => {
                self.parts.destination.failed(error, now, fastrand::f64());
                self.send_again(pending);
            }
        }
    }

    /// Nothing is charged: it goes back to its place, once a crash that was charged for the sending is taken back.
    fn send_again(&mut self, pending: Pending) {
        if pending.on_trial {
            self.acquit(pending);
            return;
        }
        self.window.leave(pending.bucket, pending.bytes);
        self.order.give_back(pending);
    }

    fn on_probed(&mut self, result: Result<(), PublishError>, now: Instant) {
        let accused = self.suspects.take_accused();
        let well = result.is_ok();
        self.parts.destination.probed(result, now, fastrand::f64());
        let Some(pending) = accused else { return };
        if well {
            // It was alone and the broker is well: it is the event.
            self.parts.destination.cleared(now);
            self.window.enter(pending.bucket, pending.bytes);
            let detail = "sent alone, its answer was lost while the broker answered a probe";
            self.charge(pending, &PublishError::new(ErrorKind::Unconfirmed, detail));
        } else {
            let key = pending.key;
            self.window.enter(pending.bucket, pending.bytes);
            self.send_again(pending);
            self.order.evaluate(key, now);
        }
    }

    fn on_settled(&mut self, confirmed: Vec<Unsettled>, result: Result<(), StoreError>, now: Instant) {
        self.settling = false;
        match result {
            Ok(()) => {
                self.store_works(StoreCall::Settle);
                tracing::debug!(route = self.parts.config.name, events = confirmed.len(), "deleted what was confirmed");
                for Unsettled { event, bucket, bytes, claim } in confirmed {
                    Claim::settled(claim.as_ref(), now);
                    self.window.leave(bucket, bytes);
                    self.forget.push(event.id);
                }
            }
            Err(error) => {
                self.confirmed.extend(confirmed);
                self.store_failed(StoreCall::Settle, &error, now);
            }
        }
    }

    /// Tells the status as it is now.
    pub(super) fn report(&mut self, now: Instant) {
        self.parts.reporter.turn(now);
        if self.holds_nothing() {
            // The events that met with an outage are gone: no confirm can end it any more.
            self.parts.destination.cleared(now);
        }
        let destination = &*self.parts.destination;
        let state = match (destination.error(), self.topics.summary()) {
            (Some(error), _) => DestinationState::Paused(error.report()),
            (None, Some((count, reason))) => DestinationState::TopicsPaused(count, reason),
            (None, None) if destination.is_known() => DestinationState::Up,
            (None, None) => DestinationState::Unknown,
        };
        self.parts.reporter.destination(state);
        let gauges = &self.parts.reporter.gauges;
        Gauges::set(&gauges.in_flight, self.window.events());
        Gauges::set(&gauges.waiting, self.order.stuck().events);
        Gauges::set(&gauges.spilled_aggregates, self.order.spilled_keys());
        Gauges::set(&gauges.refused_write_backs, self.changes.refused());
        Gauges::set(&gauges.paused_topics, self.topics.len());
        Gauges::set(&gauges.breaker, self.parts.destination.breaker.code());
    }

    fn holds_nothing(&self) -> bool {
        let queued = self.order.active().events + self.order.stuck().events + self.order.spilled_keys();
        queued == 0 && self.window.events() == 0
    }
}

/// Positions of failed events that follow a failed event of their key in the same batch: they were not sent, or not
/// in their turn, so their outcome says nothing about them or the destination.
fn followers(batch: &[Pending], outcomes: &[Outcome], key: impl Fn(&Pending) -> u64) -> BTreeSet<usize> {
    let mut failed = BTreeSet::new();
    let mut followers = BTreeSet::new();
    for (at, (pending, outcome)) in batch.iter().zip(outcomes).enumerate() {
        if outcome.is_err() && !failed.insert(key(pending)) {
            followers.insert(at);
        }
    }
    followers
}
