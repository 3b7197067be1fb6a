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

    pub(super) fn give_up(&mut self, pending: Pending, kind: &'static str, reason: &str) {
        self.log_event(&pending, kind, reason, "the event becomes a dead letter");
        self.write(pending, kind, reason.to_owned(), RowChange::Dead);
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
    fn write(&mut self, pending: Pending, kind: &'static str, error: String, change: RowChange) {
        let write_back = WriteBack {
            id: pending.envelope.id,
            event_id: pending.envelope.event_id,
            bucket: pending.bucket,
            attempts: pending.attempts,
            kind,
            error,
            change,
        };
        self.changes.push(Change { write_back, refusals: 0, pending });
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
        for (Change { write_back, pending, .. }, status) in changes.into_iter().zip(statuses) {
            let (key, store_key) = (pending.key, pending.store_key);
            self.window.leave(pending.bucket, pending.bytes);
            let dead = write_back.change == RowChange::Dead;
            match status {
                WriteBackStatus::Fenced => {
                    self.lost();
                    continue;
                }
                WriteBackStatus::Done if !dead => self.order.give_back(pending),
                WriteBackStatus::Done | WriteBackStatus::Gone => {
                    if dead && status == WriteBackStatus::Done {
                        Counters::add(&self.parts.reporter.counters.dead_letters, 1);
                        self.parts.reporter.counters.recorded.died(write_back.kind);
                        Claim::settled(pending.claim.as_ref(), now);
                    }
                    self.forget.push(pending.id());
                    self.order.finish(key, store_key);
                }
            }
            self.order.evaluate(key, now);
        }
    }

    /// The database answers and refuses: no outage, but a row at fault.
    fn refused(&mut self, changes: Vec<Change>, error: &StoreError, now: Instant) {
        self.parts.reporter.store_works(StoreCall::WriteBack);
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

    pub(super) fn on_refreshed(&mut self, asked: &Asked, state: RetryState, now: Instant) {
        if let Some(gone) = self.order.refresh(asked, state, now) {
            // Somebody deleted it. The write-back finds that out too and removes the retry row that was left behind.
            self.window.enter(gone.bucket, gone.bytes);
            self.write(gone, KIND_GONE, String::new(), RowChange::Retry { delay: Duration::ZERO });
        }
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
