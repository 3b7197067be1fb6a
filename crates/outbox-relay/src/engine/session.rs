//! One ownership of a route, from its lane's first read to the last settle: the loop that starts work and takes in
//! its results. Only this loop holds state; everything that waits runs beside it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Confirmed, Lane, Ownership, Publisher, ReadRequest, ReadScope, Store, Wakeup};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::order::{EVENTS_PER_KEY, Order, Room};
use super::pending::Pending;
use super::reporter::Reporter;
use super::retry::RetryPolicy;
use super::suspects::Suspects;
use super::tasks::{self, Change, Done, Purpose};
use super::topics::Topics;
use super::window::Window;
use super::{Destination, RunError};
use crate::RouteConfig;
use crate::health::Counters;

/// Publish calls under way at once: enough to keep a broker busy while answers travel.
const MAX_PUBLISHES: usize = 16;

/// Confirmed events in one DELETE: larger statements gain nothing and hold locks longer.
const MAX_SETTLE: usize = 5_000;

/// Write-backs in one statement; each may carry 4 KiB of error text.
const MAX_WRITE_BACKS: usize = 500;

/// After a read that found something the next one follows this much later, so that a steady trickle is read in small
/// batches instead of row by row.
const LINGER: Duration = Duration::from_millis(5);

/// How often waiting events are compared with the table, so that an operator's changes are seen.
const REFRESH: Duration = Duration::from_secs(1);

/// Waiting events compared at once.
const MAX_REFRESH: usize = 1_000;

/// The longest wait for the answer to a probe.
const MAX_PROBE: Duration = Duration::from_secs(10);

/// Between two tries of a store's call that failed.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(250);

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Asked to stop.
    Shutdown,
    /// Another relay owns the route now.
    Lost,
    /// Ids may have been reset: read again from zero.
    Restarted,
}

/// When the next forward read is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextRead {
    At(Instant),
    OnWakeup,
}

/// What a session works with and leaves to the next one.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) config: &'a RouteConfig,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) publisher: &'a Arc<dyn Publisher>,
    pub(super) wakeup: &'a mut Box<dyn Wakeup>,
    pub(super) destination: &'a mut Destination,
    pub(super) reporter: &'a mut Reporter,
}

#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) parts: Parts<'a>,
    pub(super) ownership: Arc<Ownership>,
    pub(super) policy: RetryPolicy,
    pub(super) order: Order,
    pub(super) window: Window,
    pub(super) topics: Topics,
    pub(super) suspects: Suspects,
    pub(super) work: JoinSet<Done>,
    /// `None` while a read or a sweep is under way.
    pub(super) lane: Option<Box<dyn Lane>>,
    pub(super) next_read: NextRead,
    pub(super) reread_last: bool,
    pub(super) swept_last: bool,
    pub(super) told_full: bool,
    /// Ids that left the table since the last read.
    pub(super) forget: Vec<i64>,
    pub(super) next_sweep: Instant,
    pub(super) sweep_from: Option<i64>,
    pub(super) sweep_begun: Instant,
    pub(super) publishing: usize,
    pub(super) confirmed: Vec<(Confirmed, usize)>,
    pub(super) settling: bool,
    pub(super) changes: Vec<Change>,
    pub(super) writing_back: bool,
    /// No store call but a renewal is made before: the last one failed.
    pub(super) store_pause: Instant,
    pub(super) next_refresh: Instant,
    pub(super) refresh_skip: usize,
    pub(super) refreshing: bool,
    pub(super) next_renewal: Instant,
    pub(super) renewing: bool,
    /// Publishing must not begin after this moment: another relay may own the route.
    pub(super) lease_end: Instant,
    pub(super) end: Option<End>,
}

impl<'a> Session<'a> {
    /// `acquired` is a moment before the ownership began.
    pub(super) fn new(parts: Parts<'a>, ownership: Ownership, lane: Box<dyn Lane>, acquired: Instant) -> Self {
        let config = parts.config;
        let now = Instant::now();
        parts.destination.breaker.probe_lost(now);
        Self {
            ownership: Arc::new(ownership),
            policy: RetryPolicy::new(config),
            order: Order::new(config),
            window: Window::new(config.window, config.window_bytes),
            topics: Topics::new(config.probe_max),
            suspects: Suspects::new(config.window),
            work: JoinSet::new(),
            lane: Some(lane),
            next_read: NextRead::At(now),
            reread_last: false,
            swept_last: false,
            told_full: false,
            forget: Vec::new(),
            next_sweep: now + config.full_sweep_interval,
            sweep_from: None,
            sweep_begun: now,
            publishing: 0,
            confirmed: Vec::new(),
            settling: false,
            changes: Vec::new(),
            writing_back: false,
            store_pause: now,
            next_refresh: now + REFRESH,
            refresh_skip: 0,
            refreshing: false,
            next_renewal: now,
            renewing: false,
            lease_end: lease_end(acquired, config.lease),
            end: None,
            parts,
        }
    }

    /// Runs until the route is lost, must be read anew, or `shutdown` is cancelled and everything has drained.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<End, RunError> {
        let mut grace_ends: Option<Instant> = None;
        loop {
            if shutdown.is_cancelled() && grace_ends.is_none() {
                self.end = Some(End::Shutdown);
                grace_ends = Some(Instant::now() + self.parts.config.shutdown_grace);
            }
            let now = Instant::now();
            self.start_work(now);
            if let Some(end) = self.end
                && (self.is_drained() || grace_ends.is_some_and(|ends| ends <= now))
            {
                return Ok(end);
            }
            self.report();
            let due = self.next_due(now).into_iter().chain(grace_ends).min();
            let wakeup_wanted = self.end.is_none() && self.next_read == NextRead::OnWakeup;
            tokio::select! {
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => self.take_in(done, Instant::now()),
                    Err(error) => return Err(self.died(error)),
                },
                () = self.parts.wakeup.wait(), if wakeup_wanted => self.next_read = NextRead::At(Instant::now()),
                () = sleep_until(due) => {}
                () = shutdown.cancelled(), if grace_ends.is_none() => {}
            }
            // Results that are there already are taken in together: one statement then settles them all.
            while let Some(done) = self.work.try_join_next() {
                match done {
                    Ok(done) => self.take_in(done, Instant::now()),
                    Err(error) => return Err(self.died(error)),
                }
            }
        }
    }

    fn died(&self, error: tokio::task::JoinError) -> RunError {
        let reason = match error.try_into_panic() {
            Ok(panic) => format!("a store task panicked: {}", tasks::panic_text(&*panic)),
            Err(error) => format!("a task was cancelled from outside: {error}"),
        };
        RunError { route: self.parts.config.name.clone(), reason }
    }

    fn is_drained(&self) -> bool {
        self.publishing == 0
            && self.confirmed.is_empty()
            && !self.settling
            && self.changes.is_empty()
            && !self.writing_back
    }

    fn start_work(&mut self, now: Instant) {
        self.start_renewal(now);
        if now >= self.store_pause {
            self.start_settle();
            self.start_write_back();
        }
        if self.end.is_some() {
            return;
        }
        self.order.wake(now);
        self.start_probe(now);
        self.start_publishes(now);
        if now >= self.store_pause {
            self.start_refresh(now);
            self.start_read(now);
        }
    }

    /// When something must be started that no result will announce. A time that has passed is left out: what was due
    /// and did not start waits for a result.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let mut due = vec![self.store_pause, self.next_renewal];
        if self.end.is_none() {
            due.extend([self.next_sweep, self.next_refresh]);
            due.extend(self.parts.destination.breaker.probe_due());
            due.extend(self.topics.next_due());
            due.extend(self.order.next_due());
            due.extend(self.suspects.next_due());
            if let NextRead::At(at) = self.next_read {
                due.push(at);
            }
        }
        due.into_iter().filter(|at| *at > now).min()
    }

    fn start_renewal(&mut self, now: Instant) {
        if self.renewing || now < self.next_renewal || self.end == Some(End::Lost) {
            return;
        }
        self.renewing = true;
        self.next_renewal = now + self.parts.config.lease / 3;
        self.work.spawn(tasks::renew(Arc::clone(self.parts.store), Arc::clone(&self.ownership)));
    }

    fn start_settle(&mut self) {
        if self.settling || self.confirmed.is_empty() {
            return;
        }
        self.settling = true;
        let rest = self.confirmed.split_off(self.confirmed.len().min(MAX_SETTLE));
        let confirmed = std::mem::replace(&mut self.confirmed, rest);
        self.work.spawn(tasks::settle(Arc::clone(self.parts.store), confirmed));
    }

    fn start_write_back(&mut self) {
        if self.writing_back || self.changes.is_empty() {
            return;
        }
        self.writing_back = true;
        let rest = self.changes.split_off(self.changes.len().min(MAX_WRITE_BACKS));
        let changes = std::mem::replace(&mut self.changes, rest);
        self.work.spawn(tasks::write_back(Arc::clone(self.parts.store), Arc::clone(&self.ownership), changes));
    }

    fn start_probe(&mut self, now: Instant) {
        if self.parts.destination.breaker.begin_probe(now) {
            let patience = self.parts.config.publish_timeout.min(MAX_PROBE);
            self.work.spawn(tasks::probe(Arc::clone(self.parts.publisher), patience));
        }
    }

    fn start_publishes(&mut self, now: Instant) {
        // A lease that may have ended stops publishing; the renewal that is under way brings it back or ends it.
        while self.parts.destination.breaker.is_closed()
            && now < self.lease_end
            && self.publishing < MAX_PUBLISHES
            && !self.suspects.is_out()
            && self.window.room().0 > 0
        {
            let suspect_waits = self.order.has_suspect();
            if self.suspects.is_their_turn(suspect_waits, self.order.has_ready(), now) {
                if self.publishing > 0 {
                    return;
                }
                if let Some(suspect) = self.order.take_suspect() {
                    self.suspects.sent();
                    self.publish(vec![suspect], Purpose::Suspect);
                }
                continue;
            }
            if let Some(topic) = self.topics.begin_probe(now) {
                match self.order.take_parked(&topic) {
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
        let paused = |head: &Pending| {
            // Rendering a topic costs an allocation: not while no topic is paused.
            // A row that can't be published needs no topic.
            if topics.is_empty() || head.defect.is_some() {
                return None;
            }
            topics.paused(&publisher.topic(&head.envelope))
        };
        self.order.take(room, now, paused)
    }

    fn publish(&mut self, batch: Vec<Pending>, purpose: Purpose) {
        let (sound, unsound): (Vec<_>, Vec<_>) = batch.into_iter().partition(|pending| pending.defect.is_none());
        for pending in &sound {
            self.window.enter(pending.bytes);
        }
        for pending in unsound {
            self.window.enter(pending.bytes);
            self.give_up_defect(pending);
        }
        if sound.is_empty() {
            self.purpose_ended(&purpose, Instant::now());
            return;
        }
        self.publishing += 1;
        let (publisher, patience) = (Arc::clone(self.parts.publisher), self.parts.config.publish_timeout);
        self.work.spawn(tasks::publish(publisher, sound, purpose, patience));
    }

    fn start_refresh(&mut self, now: Instant) {
        if self.refreshing || now < self.next_refresh {
            return;
        }
        self.next_refresh = now + REFRESH;
        if self.refresh_skip >= self.order.timers() {
            self.refresh_skip = 0;
        }
        let asked = self.order.waiting(self.refresh_skip, MAX_REFRESH);
        self.refresh_skip += MAX_REFRESH;
        if !asked.is_empty() {
            self.refreshing = true;
            self.work.spawn(tasks::refresh(Arc::clone(self.parts.store), asked));
        }
    }

    /// One reader: a read of spilled keys, a forward read or a page of the sweep, one after another.
    fn start_read(&mut self, now: Instant) {
        let Some(lane) = self.lane.take() else { return };
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
            self.work.spawn(tasks::read(lane, request, Some(reread)));
        } else if forward {
            self.reread_last = false;
            let request = self.read_request(ReadScope::Forward, config.batch_size);
            self.work.spawn(tasks::read(lane, request, None));
        } else {
            self.lane = Some(lane);
        }
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
        Counters::add(&self.parts.reporter.counters.spilled, dropped.len());
        ReadRequest {
            scope,
            max_events,
            max_bytes: self.parts.config.max_batch_bytes,
            forget: std::mem::take(&mut self.forget),
            dropped,
        }
    }
}

/// Until when a lease surely lasts that was asked for at `sent`: a tenth of it is kept for clocks that run unevenly
/// and for what is on its way to the broker.
pub(super) fn lease_end(sent: Instant, lease: Duration) -> Instant {
    sent + lease - lease / 10
}

/// When the next read follows one that found something.
pub(super) fn after_linger(now: Instant) -> NextRead {
    NextRead::At(now + LINGER)
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
