//! The engine as a library, over PostgreSQL, in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outbox_core::Publisher;
use outbox_pg::{PgConfig, PgStore};
use outbox_relay::{Route, RouteConfig, RouteHealth, RunError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::deadline::{seconds, until};

/// A route that runs until it is stopped.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) health: RouteHealth,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), RunError>>,
}

/// The defaults, with a full sweep so rare that it can't hide an event that was missed.
pub(crate) fn config() -> RouteConfig {
    let mut config = RouteConfig::new("orders");
    config.full_sweep_interval = Duration::from_secs(3600);
    config
}

impl Embedded {
    /// Starts and waits until the route is owned and the destination is known to be up.
    pub(crate) async fn start(url: &str, config: RouteConfig, publisher: &Arc<impl Publisher>) -> Self {
        let store = Arc::new(PgStore::new(&PgConfig::new(url), "embedded").unwrap());
        let route = Route::new(config, store, Arc::clone(publisher) as Arc<dyn Publisher>).unwrap();
        let health = route.health();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(route.run(shutdown.clone()));
        let embedded = Self { health, shutdown, running };
        let health = &embedded.health;
        until(seconds(20), "the route runs", || async {
            health.status().owner && health.status().not_ready().is_none()
        })
        .await;
        embedded
    }

    /// What the look-back could not find and the full sweep did: a defect of the proof.
    pub(crate) fn late_by_full_sweep(&self) -> u64 {
        self.health.counters().late_full_sweep.load(Relaxed)
    }

    /// What committed after its successor had been read, and was found by the look-back.
    pub(crate) fn late_by_look_back(&self) -> u64 {
        self.health.counters().late_look_back.load(Relaxed)
    }

    /// Stops in order.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap();
    }
}
