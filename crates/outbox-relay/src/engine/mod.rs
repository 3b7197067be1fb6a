//! wait → claim → publish → settle, one pipeline per route.
//!
//! [`Route::run`] joins those that share the route and starts a [`session`] for each time that it does. The policy is in pure
//! state machines: [`order`] with [`spill`], [`retry`], [`breaker`], [`window`], [`topics`] and [`suspects`].

mod answers;
mod breaker;
mod careful;
mod destination;
mod knock;
mod log_limit;
mod order;
mod outage_log;
mod pending;
mod reads;
mod relay;
mod reporter;
mod retry;
mod session;
mod shares;
mod spill;
mod starts;
mod suspects;
mod tasks;
mod topics;
mod trials;
mod unrouted;
mod window;
mod write_backs;
mod write_queue;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Acquisition, Activity, InvalidRoutes, Ownership, Publisher, Routes, Selection, Store, StoreErrorKind, Wakeup,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::destination::Destination;
pub use self::relay::{Relay, RelayBuilder, RelayHealth, RouteError};
use self::reporter::{Reporter, StoreCall};
use self::session::{End, Parts, STORE_PAUSE, Session};
use self::tasks::Turns;
use crate::{ConfigError, PollWakeup, RouteConfig, RouteHealth};

/// How long the end of a run waits for the store's and the publisher's goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

/// The longest pause between two tries to join those that share the route.
const MAX_ACQUIRE_PAUSE: Duration = Duration::from_secs(1);

/// How often it is said that a relay stands by because its routes are not those in force.
const STANDBY_LINES: Duration = Duration::from_secs(60);

/// A route ready to run: one reader of the outbox and one publisher. Alone it takes every event that its filter
/// matches, and nobody looks for others: several routes make a [`Relay`].
#[derive(Debug)]
pub struct Route {
    config: RouteConfig,
    selection: Selection,
    store: Arc<dyn Store>,
    publisher: Arc<dyn Publisher>,
    wakeup: Box<dyn Wakeup>,
    reporter: Reporter,
    turns: Turns,
}

/// A core task of the route died; the process should end.
#[derive(Debug, thiserror::Error)]
#[error("route `{route}` ended: {reason}")]
pub struct RunError {
    route: String,
    reason: String,
}

impl Route {
    /// Puts a route together. Nothing is connected yet.
    ///
    /// # Errors
    /// Everything that is wrong with the config.
    pub fn new(
        config: RouteConfig,
        store: Arc<dyn Store>,
        publisher: Arc<dyn Publisher>,
    ) -> Result<Self, Vec<ConfigError>> {
        config.validate()?;
        let wrong = |error: &InvalidRoutes| ConfigError { field: "match", problem: error.to_string() };
        let routes = Routes::new([(&config.name, config.filter.clone())])
            .map_err(|errors| errors.iter().map(wrong).collect::<Vec<_>>())?;
        let selection = routes.selection(&config.name).unwrap_or_else(|| Selection::everything(&config.name));
        Ok(Self::selected(config, selection, store, publisher))
    }

    /// A route among others, with a config that has been checked.
    fn selected(
        config: RouteConfig,
        selection: Selection,
        store: Arc<dyn Store>,
        publisher: Arc<dyn Publisher>,
    ) -> Self {
        let wakeup = Box::new(PollWakeup::new(config.poll_interval));
        let reporter = Reporter::new(&config.name);
        Self { config, selection, store, publisher, wakeup, reporter, turns: Arc::new(Semaphore::new(1)) }
    }

    /// Shares the turns of careful events with the other routes of the process.
    fn with_turns(mut self, turns: &Turns) -> Self {
        self.turns = Arc::clone(turns);
        self
    }

    /// Replaces the wake-up by polling.
    #[must_use]
    pub fn with_wakeup(mut self, wakeup: Box<dyn Wakeup>) -> Self {
        self.wakeup = wakeup;
        self
    }

    /// A handle on the route's status and counters.
    #[must_use]
    pub fn health(&self) -> RouteHealth {
        let Reporter { counters, gauges, pulse, .. } = &self.reporter;
        let (counters, gauges, pulse) = (Arc::clone(counters), Arc::clone(gauges), Arc::clone(pulse));
        RouteHealth::new(self.config.name.clone(), self.reporter.subscribe(), counters, gauges, pulse)
    }

    /// Runs until `shutdown` is cancelled: then it stops claiming, waits up to `shutdown_grace` for the broker's
    /// answers, settles, gives the route back and closes the publisher.
    ///
    /// Needs a tokio runtime with time. Outages of database and broker do not end it.
    ///
    /// # Errors
    /// [`RunError`] when a core task died.
    ///
    /// # Cancel safety
    /// Dropping the future stops the route at once; what was unconfirmed or unsettled may be sent again by the next
    /// run, which waits for the end of the lease.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), RunError> {
        let config = self.config.clone();
        let mut destination = Destination::new(&config, &self.reporter.counters, Instant::now());
        let mut joined: Option<(Ownership, Instant)> = None;
        let result = loop {
            self.reporter.turn(Instant::now());
            if shutdown.is_cancelled() {
                if let Some((ownership, _)) = joined {
                    self.release(&ownership).await;
                }
                break Ok(());
            }
            let (ownership, acquired) = match joined.take() {
                Some(kept) => kept,
                None => match self.acquire(&shutdown).await {
                    Some(acquired) => acquired,
                    None => break Ok(()),
                },
            };
            let lane = match self.store.open_lane(&ownership).await {
                Ok(lane) => lane,
                Err(error) => {
                    self.reporter.store_failed(StoreCall::Own, &error);
                    joined = Some((ownership, acquired));
                    pause(STORE_PAUSE, &shutdown).await;
                    continue;
                }
            };
            self.reporter.store_works(StoreCall::Own);
            let parts = Parts {
                config: &config,
                store: &self.store,
                publisher: &self.publisher,
                wakeup: &mut self.wakeup,
                destination: &mut destination,
                turns: &self.turns,
                reporter: &mut self.reporter,
            };
            let end = Box::pin(Session::new(parts, ownership.clone(), lane, acquired).run(&shutdown)).await;
            self.reporter.owner(0);
            self.reporter.gauges.clear();
            self.wakeup.note(Activity::Resting);
            match end {
                Ok(End::Shutdown) => {
                    self.release(&ownership).await;
                    break Ok(());
                }
                Ok(End::Lost) => {}
                Ok(End::OtherRoutes) => self.release(&ownership).await,
                Ok(End::Restarted) => {
                    tracing::warn!(route = config.name, "the database was restarted or replaced: reading from zero");
                    self.leave(&ownership, &shutdown).await;
                }
                Err(error) => break Err(error),
            }
        };
        self.reporter.ended();
        if tokio::time::timeout(GOODBYE, self.publisher.close()).await.is_err() {
            tracing::warn!(route = config.name, "the publisher did not close within {GOODBYE:?}");
        }
        result
    }

    /// Tries to join those that share the route until it does; `None` when asked to stop.
    async fn acquire(&mut self, shutdown: &CancellationToken) -> Option<(Ownership, Instant)> {
        let mut told_standby = None::<Instant>;
        loop {
            let asked = Instant::now();
            self.reporter.turn(asked);
            let mut acquiring = self.store.acquire(&self.selection, self.config.lease);
            let acquired = tokio::select! {
                acquired = &mut acquiring => acquired,
                () = shutdown.cancelled() => {
                    // Dropped half-way it might own the route after all, and nobody else could until the lease ends.
                    let late = tokio::time::timeout(GOODBYE, acquiring).await;
                    if let Ok(Ok(Acquisition::Owned(ownership))) = late {
                        self.release(&ownership).await;
                    }
                    return None;
                }
            };
            match acquired {
                Ok(Acquisition::Owned(ownership)) => {
                    self.reporter.store_answers();
                    self.reporter.standby(None);
                    return Some((ownership, asked));
                }
                Ok(Acquisition::OtherRoutes { in_force }) => {
                    self.reporter.store_answers();
                    let difference = match in_force {
                        Some(in_force) => self.selection.routes().difference(&in_force),
                        None => "routes that this version can't read are in force".to_owned(),
                    };
                    if told_standby.is_none_or(|told| asked.saturating_duration_since(told) >= STANDBY_LINES) {
                        let route = &self.config.name;
                        tracing::warn!(route, difference, "standing by: relays with other routes are at work");
                        told_standby = Some(asked);
                    }
                    self.reporter.standby(Some(difference));
                }
                // Of a relay that has just joined, nobody says so; asked again it joins anew.
                Ok(Acquisition::Lost) => self.reporter.store_answers(),
                Err(error) => self.reporter.store_failed(StoreCall::Own, &error),
            }
            let spread = (self.config.lease / 10).min(MAX_ACQUIRE_PAUSE).mul_f64(0.5 + 0.5 * fastrand::f64());
            pause(spread, shutdown).await;
            if shutdown.is_cancelled() {
                return None;
            }
        }
    }

    /// After a restart of the database, which may have forgotten the last changes of owners: gives back what the table
    /// says is ours, as soon as the database answers. What is joined then has newer tokens.
    async fn leave(&mut self, ownership: &Ownership, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            self.reporter.turn(Instant::now());
            match self.store.release(ownership).await {
                Ok(()) => return,
                Err(error) => {
                    self.reporter.store_failed(StoreCall::Own, &error);
                    if error.kind() != StoreErrorKind::Unavailable {
                        return;
                    }
                    pause(STORE_PAUSE, shutdown).await;
                }
            }
        }
        self.release(ownership).await;
    }

    async fn release(&mut self, ownership: &Ownership) {
        let problem = match tokio::time::timeout(GOODBYE, self.store.release(ownership)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {GOODBYE:?}"),
        };
        let route = &self.config.name;
        tracing::warn!(route, error = problem, "the route could not be given back; its lease ends by itself");
    }
}

async fn pause(duration: Duration, shutdown: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
        () = shutdown.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_can_be_spawned() {
        fn needs_send<T: Send>(_: impl FnOnce(Route) -> T) {}
        needs_send(|route| route.run(CancellationToken::new()));
    }
}
