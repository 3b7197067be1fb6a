//! One membership of a route, from its lane's first read to the last settle: the loop that starts work and takes in
//! its results. Only this loop holds state; everything that waits runs beside it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Lane, Ownership, Publisher, Store, Wakeup, WriteBack};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::careful::Careful;
use super::destination::Destination;
use super::knock::Knock;
use super::order::Order;
use super::reporter::Reporter;
use super::retry::RetryPolicy;
use super::shares::Shares;
use super::suspects::Suspects;
use super::tasks::{self, Done, Turns, Unsettled};
use super::topics::Topics;
use super::window::Window;
use super::write_queue::WriteQueue;
use crate::RouteConfig;

/// After a read that found something the next one follows this much later, so that a steady trickle is read in small
/// batches instead of row by row.
const LINGER: Duration = Duration::from_millis(5);

/// How often waiting events are compared with the table, so that an operator's changes are seen.
pub(super) const REFRESH: Duration = Duration::from_secs(1);

/// Between two tries of a store's call that failed.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(250);

/// The loop turns at least this often, so that one that is stuck can be told from one that is idle.
pub(super) const BEAT: Duration = Duration::from_secs(2);

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Asked to stop.
    Shutdown,
    /// Other relays own what this one did.
    Lost,
    /// Relays with other routes are at work.
    OtherRoutes,
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
    pub(super) turns: &'a Turns,
    pub(super) reporter: &'a mut Reporter,
}

#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) parts: Parts<'a>,
    pub(super) ownership: Arc<Ownership>,
    pub(super) shares: Shares,
    pub(super) policy: RetryPolicy,
    pub(super) order: Order,
    pub(super) careful: Careful,
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
    pub(super) confirmed: Vec<Unsettled>,
    pub(super) settling: bool,
    pub(super) changes: WriteQueue,
    /// No store call but a renewal is made before: the last one failed.
    pub(super) store_pause: Instant,
    pub(super) store_knock: Knock,
    pub(super) renewal_knock: Knock,
    pub(super) next_refresh: Instant,
    pub(super) refresh_skip: usize,
    pub(super) refreshing: bool,
    /// Takes back the crash charged to the event that is at the publisher alone.
    pub(super) on_trial: Option<WriteBack>,
    pub(super) forgetting: bool,
    pub(super) next_prune: Instant,
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
        parts.destination.session_begins(now);
        let ownership = Arc::new(ownership);
        let (mut careful, mut order) = (Careful::new(config.window), Order::new(config));
        careful.takes(&ownership);
        order.care_for(careful.buckets(), now);
        Self {
            shares: Shares::new(&ownership),
            ownership,
            policy: RetryPolicy::new(config),
            order,
            careful,
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
            changes: WriteQueue::new(),
            store_pause: now,
            store_knock: Knock::default(),
            renewal_knock: Knock::default(),
            next_refresh: now + REFRESH,
            refresh_skip: 0,
            refreshing: false,
            on_trial: None,
            forgetting: false,
            next_prune: now + REFRESH,
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
        self.tell_share();
        self.tell_care();
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
                self.take_back_charge().await;
                return Ok(end);
            }
            self.report(now);
            let beat = now + BEAT;
            let due = self.next_due(now).into_iter().chain(grace_ends).fold(beat, Instant::min);
            let reads = self.end.is_none() && !self.readable().is_empty();
            let wakeup_wanted = reads && self.next_read == NextRead::OnWakeup;
            tokio::select! {
                Some(done) = self.work.join_next() => match done {
                    Ok(done) => self.take_in(done, Instant::now()),
                    Err(error) => return Err(self.died(error)),
                },
                cause = self.parts.wakeup.wait(), if wakeup_wanted => self.woken(cause, Instant::now()),
                () = tokio::time::sleep_until(due) => {}
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
            && self.changes.is_drained()
            && !self.shares.is_asking()
    }

    fn start_work(&mut self, now: Instant) {
        self.start_renewal(now);
        if now >= self.store_pause {
            self.start_settle();
            self.start_write_back(now);
        }
        if self.end.is_some() {
            return;
        }
        if now >= self.store_pause {
            self.start_share();
        }
        self.order.wake(now);
        self.start_probe(now);
        self.start_publishes(now);
        self.start_trial();
        if now >= self.store_pause {
            self.start_forgetting(now);
            self.start_refresh(now);
            self.start_read(now);
        }
    }

    /// When something must be started that no result will announce. A time that has passed is left out: what was due
    /// and did not start waits for a result.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let mut due = vec![self.store_pause, self.next_renewal];
        due.extend(self.changes.next_due());
        if self.end.is_none() {
            due.extend([self.next_sweep, self.next_refresh]);
            due.extend(self.careful.is_counting().then_some(self.next_prune));
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
