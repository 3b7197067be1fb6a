//! What a route tells: status, counters, and the log lines about its store.

use std::sync::Arc;

use outbox_core::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use super::outage_log::OutageLog;
use crate::health::{Counters, DestinationState, Gauges, RouteStatus};

#[derive(Debug)]
pub(super) struct Reporter {
    status: watch::Sender<RouteStatus>,
    pub(super) counters: Arc<Counters>,
    pub(super) gauges: Arc<Gauges>,
    store_log: OutageLog,
}

impl Reporter {
    pub(super) fn new(route: &str) -> Self {
        // Not ready until the database has answered once.
        let connecting = RouteStatus { store_error: Some("not reached yet".to_owned()), ..RouteStatus::default() };
        Self {
            status: watch::Sender::new(connecting),
            counters: Arc::new(Counters::default()),
            gauges: Arc::new(Gauges::default()),
            store_log: OutageLog::new("the database", route),
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

    pub(super) fn owner(&self, owner: bool) {
        self.update(|status| status.owner = owner);
    }

    pub(super) fn ended(&self) {
        self.update(|status| status.ended = true);
    }

    pub(super) fn destination(&self, state: DestinationState) {
        self.update(|status| status.destination = state);
    }

    pub(super) fn store_failed(&mut self, error: &StoreError) {
        let text = error.to_string();
        self.store_log.failed(Instant::now(), error.kind().as_str(), &text);
        self.update(|status| status.store_error = Some(text));
    }

    pub(super) fn store_works(&mut self) {
        self.store_log.works(Instant::now());
        self.update(|status| status.store_error = None);
    }
}
