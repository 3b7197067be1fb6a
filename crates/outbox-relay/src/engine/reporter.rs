//! What a route tells: status, counters, heartbeat, and log lines that could become many.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use super::log_limit::{LINES, LogLimit};
use super::outage_log::OutageLog;
use crate::health::{Counters, DestinationState, Gauges, Pulse, RouteStatus};

/// Kinds of calls of the store. That one works says nothing about another: a right, a lock or a broken index may
/// stop one of them alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreCall {
    /// Acquiring, confirming and opening a lane.
    Own,
    Read,
    Reread,
    Sweep,
    Settle,
    WriteBack,
    Refresh,
    ForgetDeaths,
    Renew,
    /// Taking more of the route and giving some of it back.
    Share,
}

/// Kinds of log lines of which only the first ones of a period are written in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lines {
    /// An attempt failed, or an event becomes a dead letter.
    Events,
    /// A topic is paused or works again.
    Topics,
    /// Found only by the full sweep.
    Sweep,
    /// A panic of the publisher.
    Panics,
    /// A write-back that the database refuses.
    Refused,
}

impl Lines {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Events, "failed attempts and dead letters"),
        (Self::Topics, "paused and resumed topics"),
        (Self::Sweep, "events found only by the full sweep"),
        (Self::Panics, "panics of the publisher"),
        (Self::Refused, "write-backs that the database refuses"),
    ];
}

#[derive(Debug)]
pub(super) struct Reporter {
    route: String,
    status: watch::Sender<RouteStatus>,
    pub(super) counters: Arc<Counters>,
    pub(super) gauges: Arc<Gauges>,
    pub(super) pulse: Arc<Pulse>,
    store_log: OutageLog,
    /// The kinds of calls that do not work now, with the last error of each.
    failing: BTreeMap<StoreCall, String>,
    limits: [LogLimit; Lines::ALL.len()],
}

impl Reporter {
    pub(super) fn new(route: &str) -> Self {
        // Not ready until the database has answered once.
        let unreached = "not reached yet".to_owned();
        let connecting = RouteStatus { store_error: Some(unreached.clone()), ..RouteStatus::default() };
        Self {
            route: route.to_owned(),
            status: watch::Sender::new(connecting),
            counters: Arc::new(Counters::default()),
            gauges: Arc::new(Gauges::default()),
            pulse: Arc::new(Pulse::default()),
            store_log: OutageLog::new("the database", route),
            failing: BTreeMap::from([(StoreCall::Own, unreached)]),
            limits: std::array::from_fn(|_| LogLimit::new(LINES)),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<RouteStatus> {
        self.status.subscribe()
    }

    fn update(&self, change: impl FnOnce(&mut RouteStatus)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    pub(super) fn owner(&self, buckets: usize) {
        self.update(|status| (status.owner, status.buckets) = (buckets > 0, buckets));
    }

    /// Relays with other routes are at work, and how ours differ; `None` when they are not.
    pub(super) fn standby(&self, difference: Option<String>) {
        self.update(|status| status.standby = difference);
    }

    pub(super) fn ended(&self) {
        self.update(|status| status.ended = true);
    }

    pub(super) fn destination(&self, state: DestinationState) {
        self.update(|status| status.destination = state);
    }

    pub(super) fn store_failed(&mut self, call: StoreCall, error: &StoreError) {
        let text = error.to_string();
        self.store_log.failed(Instant::now(), error.kind().as_str(), &text);
        self.failing.insert(call, text);
        self.tell_store();
    }

    pub(super) fn store_works(&mut self, call: StoreCall) {
        if self.failing.remove(&call).is_some() {
            self.tell_store();
        }
    }

    /// The database answers and no session is under way whose calls could fail.
    pub(super) fn store_answers(&mut self) {
        self.failing.clear();
        self.tell_store();
    }

    fn tell_store(&mut self) {
        let error = self.failing.values().next().cloned();
        if error.is_none() {
            self.store_log.works(Instant::now());
        }
        self.update(|status| status.store_error = error);
    }

    /// Whether one more line of this kind may be written in full.
    pub(super) fn may_log(&mut self, lines: Lines, now: Instant) -> bool {
        let at = Lines::ALL.iter().position(|(kind, _)| *kind == lines);
        at.and_then(|at| self.limits.get_mut(at)).is_none_or(|limit| limit.permit(now))
    }

    /// A turn of a loop: it is alive, and what was left out of the log is counted there.
    pub(super) fn turn(&mut self, now: Instant) {
        self.pulse.beat(now);
        for (limit, (_, what)) in self.limits.iter_mut().zip(Lines::ALL) {
            if let Some(lines) = limit.take_left_out(now) {
                tracing::warn!(route = self.route, lines, "lines about {what} were left out of the log");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::StoreErrorKind;

    use super::*;

    #[test]
    fn a_call_that_works_does_not_hide_another_that_fails() {
        let mut reporter = Reporter::new("orders");
        let status = reporter.subscribe();
        let error = || status.borrow().store_error.clone();
        reporter.store_answers();
        assert_eq!(error(), None);
        reporter.store_failed(StoreCall::Read, &StoreError::new(StoreErrorKind::Unprepared, "no table"));
        for works in [StoreCall::Renew, StoreCall::Settle, StoreCall::WriteBack] {
            reporter.store_works(works);
            assert_eq!(error().as_deref(), Some("no table"));
        }
        reporter.store_works(StoreCall::Read);
        assert_eq!(error(), None);
    }

    #[test]
    fn each_kind_of_line_has_a_limit_of_its_own() {
        let now = Instant::now();
        let mut reporter = Reporter::new("orders");
        for (lines, _) in Lines::ALL {
            assert_eq!((0..100).filter(|_| reporter.may_log(lines, now)).count(), 20, "{lines:?}");
        }
    }
}
