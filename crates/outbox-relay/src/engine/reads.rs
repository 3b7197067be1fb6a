//! What the session makes of what a read or a page of a sweep has found.

use outbox_core::{Activity, ReadBatch, StoreError, StoreErrorKind, SweepPage};
use tokio::time::Instant;

use super::reporter::{Lines, StoreCall};
use super::session::{End, NextRead, Session, after_linger};
use super::spill::Reread;
use crate::health::Counters;

impl Session<'_> {
    pub(super) fn on_read(&mut self, reread: Option<Reread>, result: Result<ReadBatch, StoreError>, now: Instant) {
        Counters::add(&self.parts.reporter.counters.reads, 1);
        let call = if reread.is_some() { StoreCall::Reread } else { StoreCall::Read };
        match result {
            Ok(mut batch) => {
                Counters::add(&self.parts.reporter.counters.late_look_back, batch.late);
                self.store_works(call);
                let found = batch.events.len();
                let (late, complete) = (batch.late, batch.complete);
                tracing::debug!(route = self.parts.config.name, events = found, late, complete, "read");
                self.turn_away(&mut batch.events);
                self.order.begin_claim(&self.parts.reporter.counters, now);
                if let Some(reread) = reread {
                    self.order.end_reread(&reread, batch.covered_through, batch.events, now);
                    return;
                }
                let order = &self.order;
                let read = batch.events.iter().map(|event| (event, order.turn_of(event)));
                // A read that began before the last change of buckets has not looked at all of them.
                self.careful.inherits(read, batch.complete && self.shares.is_as_read(&self.ownership));
                self.order.admit(batch.events, now);
                if self.order.spilled_keys() == 0 {
                    // Nothing is left that a failed read could have been about.
                    self.store_works(StoreCall::Reread);
                }
                self.next_read = match (batch.complete, found) {
                    (false, _) => NextRead::At(now),
                    (true, 0) => NextRead::OnWakeup,
                    (true, _) => after_linger(now),
                };
                if self.next_read != NextRead::OnWakeup {
                    self.parts.wakeup.note(Activity::Found);
                }
            }
            Err(error) => {
                if let Some(reread) = reread {
                    self.order.end_reread(&reread, reread.after, Vec::new(), now);
                }
                if error.kind() == StoreErrorKind::Restarted {
                    self.end.get_or_insert(End::Restarted);
                } else {
                    self.store_failed(call, &error, now);
                }
            }
        }
    }

    pub(super) fn on_swept(&mut self, after: i64, result: Result<SweepPage, StoreError>, now: Instant) {
        match result {
            Ok(page) => {
                self.store_works(StoreCall::Sweep);
                for (id, key) in page.unknown {
                    if self.order.found_by_sweep(id, key) {
                        Counters::add(&self.parts.reporter.counters.late_full_sweep, 1);
                        if self.parts.reporter.may_log(Lines::Sweep, now) {
                            let route = &self.parts.config.name;
                            tracing::error!(
                                route,
                                id,
                                "only the full sweep found this event: please report this defect"
                            );
                        }
                    }
                }
                self.sweep_from = page.next;
                if page.next.is_none() {
                    // A sweep that takes long must not become the relay's main work.
                    let took = now - self.sweep_begun;
                    self.next_sweep = now + self.parts.config.full_sweep_interval.max(50 * took);
                }
            }
            Err(error) if error.kind() == StoreErrorKind::Restarted => {
                self.end.get_or_insert(End::Restarted);
            }
            Err(error) => {
                self.sweep_from = (after > 0).then_some(after);
                self.store_failed(StoreCall::Sweep, &error, now);
            }
        }
    }
}
