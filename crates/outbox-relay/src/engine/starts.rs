//! What the session starts when there is something to do and room for it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Activity, Lane, ReadRequest, ReadScope, WakeCause};
use tokio::time::Instant;

use super::order::{EVENTS_PER_KEY, Room};
use super::pending::Pending;
use super::reporter::StoreCall;
use super::session::{End, NextRead, REFRESH, Session};
use super::spill::Reread;
use super::tasks::{self, Done, Purpose};
use crate::health::{Counters, Gauges};

/// Publish calls under way at once: enough to keep a broker busy while answers travel.
const MAX_PUBLISHES: usize = 16;

/// Confirmed events in one DELETE: larger statements gain nothing and hold locks longer.
const MAX_SETTLE: usize = 5_000;

/// Waiting events compared at once.
const MAX_REFRESH: usize = 1_000;

/// So few waiting events cost no more than the poll of an idle route.
const FEW_REFRESHED: usize = 100;

/// The longest wait for the answer to a probe.
const MAX_PROBE: Duration = Duration::from_secs(10);

impl Session<'_> {
    pub(super) fn start_renewal(&mut self, now: Instant) {
        if self.renewing || now < self.next_renewal || self.end == Some(End::Lost) {
            return;
        }
        self.renewing = true;
        self.next_renewal = now + self.shares.renewal_pause(self.parts.config.lease, fastrand::f64());
        self.work.spawn(tasks::renew(Arc::clone(self.parts.store), Arc::clone(&self.ownership)));
    }

    pub(super) fn start_settle(&mut self) {
        if self.settling || self.confirmed.is_empty() {
            return;
        }
        self.settling = true;
        let rest = self.confirmed.split_off(self.confirmed.len().min(MAX_SETTLE));
        let confirmed = std::mem::replace(&mut self.confirmed, rest);
        self.work.spawn(tasks::settle(Arc::clone(self.parts.store), Arc::clone(&self.ownership), confirmed));
    }

    pub(super) fn start_write_back(&mut self, now: Instant) {
        let Some(changes) = self.changes.begin(now) else { return };
        self.work.spawn(tasks::write_back(Arc::clone(self.parts.store), Arc::clone(&self.ownership), changes));
    }

    pub(super) fn start_probe(&mut self, now: Instant) {
        // Who has nothing to send leaves the destination alone.
        if !self.ownership.tokens.is_empty() && self.parts.destination.breaker.begin_probe(now) {
            let patience = self.parts.config.publish_timeout.min(MAX_PROBE);
            self.work.spawn(tasks::probe(Arc::clone(self.parts.publisher), patience));
        }
    }

    /// A lease that may have ended stops publishing; the renewal that is under way brings it back or ends it.
    pub(super) fn may_publish(&self, now: Instant) -> bool {
        self.end.is_none() && self.parts.destination.breaker.is_closed() && now < self.lease_end
    }

    pub(super) fn start_publishes(&mut self, now: Instant) {
        while self.may_publish(now)
            && self.publishing < MAX_PUBLISHES
            && !self.suspects.is_out()
            && !self.careful.is_busy()
            && self.window.room().0 > 0
        {
            let alone_waits = self.order.has_suspect() || self.order.has_careful();
            if self.suspects.is_their_turn(alone_waits, self.order.has_ready(), now) {
                if self.publishing > 0 {
                    return;
                }
                if self.order.has_careful() && !self.order.has_suspect() {
                    self.careful.drain(None);
                } else if let Some(suspect) = self.order.take_suspect() {
                    self.suspects.sent();
                    self.publish(vec![suspect], Purpose::Suspect);
                }
                continue;
            }
            if let Some(topic) = self.topics.begin_probe(now) {
                match self.order.take_parked(&topic) {
                    Some(head) if self.order.needs_care(&head) => {
                        self.careful.drain(Some((head, Purpose::TopicProbe(topic))));
                    }
                    Some(head) => self.publish(vec![head], Purpose::TopicProbe(topic)),
                    // Nothing in memory waits for it. What was dropped will be read again and find out.
                    None => {
                        self.topics.resume(&topic);
                        self.order.unpark(&topic, now);
                    }
                }
                continue;
            }
            let batch = self.next_batch(now);
            if batch.is_empty() {
                return;
            }
            self.suspects.others_sent(batch.len());
            self.publish(batch, Purpose::Ordinary);
        }
    }

    fn next_batch(&mut self, now: Instant) -> Vec<Pending> {
        let (events, bytes) = self.window.room();
        let config = self.parts.config;
        let room = Room {
            events: events.min(config.batch_size),
            bytes: bytes.min(config.max_batch_bytes),
            first_may_exceed: self.window.events() == 0,
            several_per_key: self.parts.publisher.capabilities().keeps_order_in_batch,
        };
        let (topics, publisher) = (&self.topics, self.parts.publisher);
        self.order.take(room, now, |head| tasks::paused_topic(topics, publisher.as_ref(), head))
    }

    pub(super) fn publish(&mut self, batch: Vec<Pending>, purpose: Purpose) {
        let (sound, unsound): (Vec<_>, Vec<_>) = batch.into_iter().partition(|pending| pending.defect.is_none());
        for pending in &sound {
            self.window.enter(pending.bucket, pending.bytes);
        }
        for pending in unsound {
            self.window.enter(pending.bucket, pending.bytes);
            self.give_up_defect(pending);
        }
        if sound.is_empty() {
            self.purpose_ended(&purpose, Instant::now());
            return;
        }
        self.publishing += 1;
        let (publisher, patience) = (Arc::clone(self.parts.publisher), self.parts.config.publish_timeout);
        let publishing = tasks::publish(publisher, sound, purpose, patience, self.lease_end);
        self.work.spawn(timed(Arc::clone(&self.parts.reporter.counters), publishing));
    }

    pub(super) fn woken(&mut self, cause: WakeCause, now: Instant) {
        self.parts.reporter.counters.recorded.woken(cause);
        self.next_read = NextRead::At(now);
    }

    pub(super) fn start_refresh(&mut self, now: Instant) {
        if self.refreshing || now < self.next_refresh {
            return;
        }
        self.next_refresh = now + REFRESH;
        Gauges::set(&self.parts.reporter.gauges.blocked, self.order.blocked());
        if self.refresh_skip >= self.order.timers() {
            self.refresh_skip = 0;
        }
        let asked = self.order.waiting(self.refresh_skip, MAX_REFRESH);
        self.refresh_skip += MAX_REFRESH;
        if asked.is_empty() {
            // Nothing is left of which a failed call could have told.
            self.parts.reporter.store_works(StoreCall::Refresh);
        } else {
            // Asked about a few, the table may be asked as often as it is for new events.
            if asked.len() <= FEW_REFRESHED {
                self.next_refresh = now + self.parts.config.poll_interval.min(REFRESH);
            }
            self.refreshing = true;
            self.work.spawn(tasks::refresh(Arc::clone(self.parts.store), Arc::clone(&self.ownership), asked));
        }
    }

    /// One reader: a read of spilled keys, a forward read or a page of the sweep, one after another.
    pub(super) fn start_read(&mut self, now: Instant) {
        let Some(mut lane) = self.lane.take() else { return };
        if self.turn(&mut *lane).is_empty() {
            self.lane = Some(lane);
            return;
        }
        let config = self.parts.config;
        let forward_due = matches!(self.next_read, NextRead::At(at) if at <= now);
        let active = self.order.active();
        // Two batches ahead keep the publisher busy; more would only fill memory.
        let hungry = active.events < 2 * config.batch_size && active.bytes < config.max_batch_bytes;
        self.tell_full();
        let forward = forward_due && hungry && !self.order.is_full();
        let reread = self.order.wants_reread() && hungry && !(self.reread_last && forward);
        let sweep = self.sweep_from.or_else(|| (now >= self.next_sweep).then_some(0));
        // Each page in turn with a read: neither a backlog nor a long sweep holds the other up.
        if let Some(after) = sweep.filter(|_| !(self.swept_last && (reread || forward))) {
            self.swept_last = true;
            if after == 0 {
                self.sweep_begun = now;
            }
            self.work.spawn(tasks::sweep(lane, after));
            return;
        }
        self.swept_last = false;
        if reread && let Some(reread) = self.order.begin_reread(now) {
            self.reread_last = true;
            let (keys, after, through) = (reread.keys.clone(), reread.after, reread.through);
            // More than the keys can hold would be read only to be dropped again.
            let most = config.batch_size.min(keys.len().saturating_mul(EVENTS_PER_KEY));
            let request = self.read_request(ReadScope::Keys { keys, after, through }, most);
            self.spawn_read(lane, request, Some(reread));
        } else if forward {
            self.reread_last = false;
            let request = self.read_request(ReadScope::Forward, config.batch_size);
            self.parts.wakeup.note(Activity::Reading);
            self.spawn_read(lane, request, None);
        } else {
            self.lane = Some(lane);
        }
    }

    fn spawn_read(&mut self, lane: Box<dyn Lane>, request: ReadRequest, reread: Option<Reread>) {
        let reading = tasks::read(lane, request, reread);
        self.work.spawn(timed(Arc::clone(&self.parts.reporter.counters), reading));
    }

    /// A route that reads nothing new says so, once until it has room again.
    fn tell_full(&mut self) {
        let full = self.order.is_full();
        if full && !self.told_full {
            let (route, aggregates) = (&self.parts.config.name, self.order.spilled_keys());
            tracing::warn!(route, aggregates, "too many aggregates wait: nothing new is read until some have gone out");
        }
        self.told_full = full;
    }

    fn read_request(&mut self, scope: ReadScope, max_events: usize) -> ReadRequest {
        let dropped = self.order.take_dropped();
        dropped.iter().for_each(|id| self.careful.is_done(*id));
        Counters::add(&self.parts.reporter.counters.spilled, dropped.len());
        self.forget.append(&mut self.order.take_left());
        ReadRequest {
            scope,
            max_events,
            max_bytes: self.parts.config.max_batch_bytes,
            forget: std::mem::take(&mut self.forget),
            dropped,
        }
    }
}

/// Notes how long a read or a publish call took, whatever came of it. What was not handed to the publisher was none.
async fn timed(counters: Arc<Counters>, work: impl Future<Output = Done>) -> Done {
    let begun = Instant::now();
    let done = work.await;
    match &done {
        Done::Read { .. } => counters.recorded.reads.observe(begun.elapsed()),
        Done::Published { .. } => counters.recorded.publishes.observe(begun.elapsed()),
        _ => {}
    }
    done
}
