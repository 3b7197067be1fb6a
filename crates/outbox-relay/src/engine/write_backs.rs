//! What the session writes to the table besides deletions: retries and dead letters. Until it has committed, the
//! event's key waits.

use std::time::Duration;

use outbox_core::{
    Change as RowChange, ErrorKind, PublishError, RetryState, StoreError, StoreErrorKind, WriteBack, WriteBackStatus,
};
use tokio::time::Instant;

use super::order::Asked;
use super::pending::Pending;
use super::reporter::{Lines, StoreCall};
use super::retry::Disposition;
use super::session::Session;
use super::tasks::Change;
use crate::OnDead;
use crate::health::Counters;
use crate::metrics::Claim;

/// The kind of a dead letter whose row could not be read as an event.
const KIND_DEFECT: &str = "undecodable";

/// The kind of a write-back about an event that somebody has deleted.
const KIND_GONE: &str = "gone";

impl Session<'_> {
    /// One attempt is spent.
    pub(super) fn charge(&mut self, mut pending: Pending, error: &PublishError) {
        Counters::add(&self.parts.reporter.counters.failed, 1);
        // What is written now takes the place of a charged crash.
        (pending.crashes, pending.on_trial) = (0, false);
        match self.disposition(pending.attempts) {
            Disposition::Retry { attempts, delay } => {
                pending.attempts = attempts;
                pending.retried = true;
                pending.claim = None;
                // Convicted of cutting the connection it goes alone again, and its neighbours are spared.
                if error.kind() != ErrorKind::Unconfirmed {
                    pending.cuts = 0;
                }
                pending.not_before = Some(Instant::now() + delay);
                let (kind, report) = (error.kind().as_str(), error.report());
                self.log_event(&pending, kind, &report, "an attempt failed; it will be retried");
                self.write(pending, kind, report, RowChange::Retry { delay });
            }
            Disposition::Dead { attempts } => {
                pending.attempts = attempts;
                self.give_up(pending, error.kind().as_str(), &error.report());
            }
        }
    }

    fn disposition(&self, attempts: u32) -> Disposition {
        self.policy.charge(attempts, fastrand::f64())
    }

    /// It is not sent again by itself: it becomes a dead letter, or waits where it is for an operator.
    pub(super) fn give_up(&mut self, pending: Pending, kind: &'static str, reason: &str) {
        let (message, change) = match self.parts.config.on_dead {
            OnDead::Continue => ("the event becomes a dead letter", RowChange::Dead),
            OnDead::Block => {
                ("the event is given up; its aggregate is blocked until an operator decides", RowChange::Block)
            }
        };
        self.log_event(&pending, kind, reason, message);
        self.write(pending, kind, reason.to_owned(), change);
    }

    /// The row can't be published as it stands.
    pub(super) fn give_up_defect(&mut self, pending: Pending) {
        let reason = pending.defect.clone().unwrap_or_default();
        self.give_up(pending, KIND_DEFECT, &reason);
    }

    fn log_event(&mut self, pending: &Pending, kind: &str, error: &str, message: &str) {
        if !self.parts.reporter.may_log(Lines::Events, Instant::now()) {
            return;
        }
        let envelope = &pending.envelope;
        tracing::warn!(
            route = self.parts.config.name,
            event_id = %envelope.event_id,
            event_type = envelope.event_type,
            aggregate_type = envelope.aggregate_type,
            aggregate_id = envelope.aggregate_id,
            attempt = pending.attempts,
            kind,
            error,
            "{message}"
        );
    }

    /// Its key waits until this has committed.
    pub(super) fn write(&mut self, pending: Pending, kind: &'static str, error: String, change: RowChange) {
        let write_back = row_change(&pending, kind, error, change);
        self.changes.push(Change { write_back, then_send: None, refusals: 0, pending });
    }

    /// The event is out of the table and of memory.
    pub(super) fn done(&mut self, pending: &Pending) {
        self.forget.push(pending.id());
        self.order.finish(pending.key, pending.store_key);
        self.careful.is_done(pending.id());
    }

    pub(super) fn on_wrote_back(
        &mut self,
        changes: Vec<Change>,
        result: Result<Vec<WriteBackStatus>, StoreError>,
        now: Instant,
    ) {
        let statuses = match result.and_then(|statuses| one_each(statuses, changes.len())) {
            Ok(statuses) => statuses,
            Err(error) if error.kind() == StoreErrorKind::Failed => return self.refused(changes, &error, now),
            Err(error) => {
                self.changes.failed(changes);
                self.store_failed(StoreCall::WriteBack, &error, now);
                return;
            }
        };
        self.changes.written();
        self.parts.reporter.store_works(StoreCall::WriteBack);
        for (Change { write_back, then_send, mut pending, .. }, status) in changes.into_iter().zip(statuses) {
            let key = pending.key;
            self.window.leave(pending.bucket, pending.bytes);
            if let Some(purpose) = then_send {
                self.on_charged(&write_back, pending, purpose, status, now);
                continue;
            }
            match (status, write_back.change) {
                (WriteBackStatus::Fenced, _) => {
                    self.lost();
                    continue;
                }
                (WriteBackStatus::Gone, _) => self.done(&pending),
                (WriteBackStatus::Done, RowChange::Dead) => {
                    Counters::add(&self.parts.reporter.counters.dead_letters, 1);
                    self.parts.reporter.counters.recorded.died(write_back.kind);
                    Claim::settled(pending.claim.as_ref(), now);
                    self.done(&pending);
                }
                (WriteBackStatus::Done, change) => {
                    pending.retried = change != RowChange::Acquit || pending.attempts > 0;
                    if change == RowChange::Block {
                        Counters::add(&self.parts.reporter.counters.blocked, 1);
                        pending.block(now);
                    }
                    self.order.give_back(pending);
                }
            }
            self.order.evaluate(key, now);
        }
    }

    /// The database answers and refuses: no outage, but a row at fault.
    fn refused(&mut self, changes: Vec<Change>, error: &StoreError, now: Instant) {
        self.parts.reporter.store_works(StoreCall::WriteBack);
        let Some(changes) = self.without_charge(changes, error, now) else { return };
        let Some(Change { write_back, pending, .. }) = self.changes.refuse(changes, now, fastrand::f64()) else {
            return;
        };
        if self.parts.reporter.may_log(Lines::Refused, now) {
            let envelope = &pending.envelope;
            tracing::error!(
                route = self.parts.config.name,
                id = write_back.id,
                event_id = %envelope.event_id,
                event_type = envelope.event_type,
                aggregate_type = envelope.aggregate_type,
                aggregate_id = envelope.aggregate_id,
                attempt = write_back.attempts,
                kind = write_back.kind,
                error = %error,
                "the database refuses to store what became of this event; its aggregate waits, it is tried again"
            );
        }
    }

    /// A charge that is refused alone is given up, and its event waits: those that are not a charge alone.
    fn without_charge(&mut self, mut changes: Vec<Change>, error: &StoreError, now: Instant) -> Option<Vec<Change>> {
        if changes.len() != 1 || changes.first().is_none_or(|change| change.then_send.is_none()) {
            return Some(changes);
        }
        let Change { pending, then_send: Some(purpose), .. } = changes.pop()? else { return None };
        self.changes.written();
        let why = format!("a crash can't be charged, without which it is not sent: {error}");
        self.log_event(&pending, "refused", &why, "the event waits and is tried again");
        self.on_charge_refused(pending, &purpose, now);
        None
    }

    pub(super) fn on_refreshed(&mut self, asked: &Asked, state: RetryState, now: Instant) {
        if let Some(gone) = self.order.refresh(asked, state, now) {
            // Somebody deleted it. The write-back finds that out too and removes the retry row that was left behind.
            self.window.enter(gone.bucket, gone.bytes);
            self.write(gone, KIND_GONE, String::new(), RowChange::Retry { delay: Duration::ZERO });
        }
    }
}

/// The change for the table.
pub(super) fn row_change(pending: &Pending, kind: &'static str, error: String, change: RowChange) -> WriteBack {
    WriteBack {
        id: pending.envelope.id,
        event_id: pending.envelope.event_id,
        bucket: pending.bucket,
        attempts: pending.attempts,
        crashes: pending.crashes,
        kind,
        error,
        change,
    }
}

/// A store that answers for more or for fewer than it was asked about has answered for none.
pub(super) fn one_each<T>(answers: Vec<T>, asked: usize) -> Result<Vec<T>, StoreError> {
    if answers.len() == asked {
        return Ok(answers);
    }
    let detail = format!("the store gave {} answers about {asked} events", answers.len());
    Err(StoreError::new(StoreErrorKind::Failed, detail))
}
