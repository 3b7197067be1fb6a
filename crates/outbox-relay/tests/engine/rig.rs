//! A route under test and what its tests share.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{NewEvent, Payload, Publisher};
use outbox_relay::{Route, RouteConfig, RouteHealth, RouteStatus, RunError};
use outbox_testkit::memory::{Inserted, MemoryPublisher, MemoryStore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const ROUTE: &str = "orders";
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLI: Duration = Duration::from_millis(1);

/// The defaults, but a sweep so rare that it hides nothing.
pub(crate) fn config() -> RouteConfig {
    let mut config = RouteConfig::new(ROUTE);
    config.full_sweep_interval = Duration::from_secs(24 * 3600);
    config
}

pub(crate) fn event(aggregate: impl ToString) -> NewEvent {
    NewEvent::new("order", aggregate.to_string(), "order.placed", Payload::raw_json("{}"))
}

/// Writes one event for each of these aggregates, each in a transaction of its own.
pub(crate) fn insert<T: ToString>(store: &MemoryStore, aggregates: impl IntoIterator<Item = T>) -> Vec<Inserted> {
    aggregates.into_iter().map(|aggregate| store.insert(&event(aggregate))).collect()
}

/// A route that runs in a task of its own.
pub(crate) struct Running {
    pub(crate) health: RouteHealth,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

pub(crate) fn run(config: RouteConfig, store: &MemoryStore, publisher: &Arc<impl Publisher>) -> Running {
    let publisher = Arc::clone(publisher);
    let route = Route::new(config, Arc::new(store.clone()), publisher).expect("a valid config");
    let (health, shutdown) = (route.health(), CancellationToken::new());
    let task = tokio::spawn(route.run(shutdown.clone()));
    Running { health, shutdown, task }
}

impl Running {
    /// Asks it to stop and waits for its end.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.expect("run does not panic").expect("run ends well");
    }

    /// Asks it to stop.
    pub(crate) fn ask_to_stop(&self) {
        self.shutdown.cancel();
    }

    /// Ends it at once, as kill -9 would.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await; // cancelled, which is what was asked for
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn status(&self, wanted: impl FnMut(&RouteStatus) -> bool) {
        let mut watch = self.health.watch();
        let seen = tokio::time::timeout(outbox_testkit::memory::PATIENCE, watch.wait_for(wanted)).await;
        assert!(seen.is_ok(), "the status never became as wanted: {:?}", self.health.status());
    }
}

/// Lets virtual time pass while the route works.
pub(crate) async fn elapse(time: Duration) {
    let forever = std::future::pending::<()>();
    assert!(tokio::time::timeout(time, forever).await.is_err());
}

pub(crate) async fn settled(store: &MemoryStore) {
    store.wait_until(|view| view.pending() == 0).await;
}

/// Each event arrived once, in order, and is gone from the table.
pub(crate) fn assert_once_in_order(store: &MemoryStore, publisher: &MemoryPublisher, events: usize) {
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        assert_eq!((view.delivered().len(), view.copies()), (events, 0));
    });
    assert_nothing_charged(store);
    assert_eq!(store.view(|view| view.pending()), 0);
}

/// No attempt was spent and nothing given up.
pub(crate) fn assert_nothing_charged(store: &MemoryStore) {
    store.view(|view| {
        assert_eq!(view.retries(), []);
        assert_eq!(view.dead_letters(), []);
    });
}
