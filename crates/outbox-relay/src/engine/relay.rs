//! Several routes over one store: which event goes where, one task for each, one end for all.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use outbox_core::{Publisher, Routes, Store, Wakeup};
use tokio::sync::{Semaphore, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::tasks::{Turns, panic_text};
use super::unrouted::Watcher;
use super::{Route, RunError};
use crate::health::Unrouted;
use crate::{ConfigError, RouteConfig, RouteHealth};

/// Several routes over one store, ready to run. An event goes to the first route whose filter matches it, and to no
/// other; what no route takes stays in the outbox and is told of.
///
/// Each route has a reader, a window, a breaker and an ownership of its own, so that a destination that is away, slow
/// or misconfigured costs the other routes nothing.
///
/// ```
/// use std::sync::Arc;
///
/// use outbox_relay::{Filter, Relay, RouteConfig};
/// # use outbox_testkit::memory::{MemoryPublisher, MemoryStore};
/// # use tokio_util::sync::CancellationToken;
/// # #[derive(Debug, Clone, Copy)]
/// # struct Event(&'static str);
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// # let (store, orders, rest) = (MemoryStore::new(), Arc::new(MemoryPublisher::new()), Arc::new(MemoryPublisher::new()));
/// # let event = |kind: &str| outbox_core::NewEvent::new(kind, "1", "changed", outbox_core::Payload::raw_json("{}"));
/// # store.insert(&event("order"));
/// # store.insert(&event("cart"));
/// # let (to_orders, to_rest) = (Arc::clone(&orders), Arc::clone(&rest));
/// # let shutdown = CancellationToken::new();
/// // `store` is an Arc<PgStore>; `to_orders` and `to_rest` are publishers.
/// # let watched = store.clone();
/// # let store = Arc::new(store);
/// let only_orders = Filter::default().aggregate_types(["order"])?;
/// let relay = Relay::builder(store)
///     .route(RouteConfig::new("orders").with_filter(only_orders), to_orders)
///     .route(RouteConfig::new("rest"), to_rest)
///     .build()
///     .map_err(|errors| errors[0].clone())?;
/// # let stop = shutdown.clone();
/// # tokio::spawn(async move {
/// #     watched.wait_until(|view| view.pending() == 0).await;
/// #     stop.cancel();
/// # });
/// relay.run(shutdown).await?;
/// # let kinds = |publisher: &MemoryPublisher| publisher.view(|view| view.delivered()[0].aggregate_type.clone());
/// # assert_eq!((kinds(&orders), kinds(&rest)), ("order".to_owned(), "cart".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    routes: Vec<Route>,
    health: RelayHealth,
    /// `None` where no event is left over.
    watcher: Option<Watcher>,
}

/// What is wrong with one of the routes, or with all of them together.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteError {
    /// The route in the order in which they were added, counted from 0; `None` when it is their list.
    pub route: Option<usize>,
    /// What is wrong.
    pub error: ConfigError,
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.route {
            Some(route) => write!(f, "route[{route}].{}", self.error),
            None => write!(f, "route: {}", self.error.problem),
        }
    }
}

impl std::error::Error for RouteError {}

/// The routes of a relay, one after another.
#[derive(Debug)]
pub struct RelayBuilder {
    store: Arc<dyn Store>,
    routes: Vec<Added>,
}

#[derive(Debug)]
struct Added {
    config: RouteConfig,
    publisher: Arc<dyn Publisher>,
    wakeup: Option<Box<dyn Wakeup>>,
}

impl RelayBuilder {
    /// Adds a route behind those that are there.
    #[must_use]
    pub fn route(mut self, config: RouteConfig, publisher: Arc<dyn Publisher>) -> Self {
        self.routes.push(Added { config, publisher, wakeup: None });
        self
    }

    /// The same with another wake-up than polling.
    #[must_use]
    pub fn route_with_wakeup(
        mut self,
        config: RouteConfig,
        publisher: Arc<dyn Publisher>,
        wakeup: Box<dyn Wakeup>,
    ) -> Self {
        self.routes.push(Added { config, publisher, wakeup: Some(wakeup) });
        self
    }

    /// Puts the relay together. Nothing is connected yet.
    ///
    /// # Errors
    /// Everything that is wrong with the routes, each by itself and all together.
    pub fn build(self) -> Result<Relay, Vec<RouteError>> {
        let configs: Vec<&RouteConfig> = self.routes.iter().map(|added| &added.config).collect();
        let routes = check(&configs)?;
        let turns: Turns = Arc::new(Semaphore::new(1));
        let (mut ready, mut names) = (Vec::new(), routes.iter());
        for Added { config, publisher, wakeup } in self.routes {
            let Some(selection) = names.next().and_then(|(name, _)| routes.selection(name)) else { break };
            let route = Route::selected(config, selection, Arc::clone(&self.store), publisher).with_turns(&turns);
            ready.push(match wakeup {
                Some(wakeup) => route.with_wakeup(wakeup),
                None => route,
            });
        }
        let owners = || ready.iter().map(|route| route.reporter.subscribe()).collect();
        let watcher = (!routes.take_all()).then(|| Watcher::new(self.store, routes.clone(), owners()));
        let unrouted = watcher.as_ref().map(Watcher::subscribe);
        let health = RelayHealth { routes: ready.iter().map(Route::health).collect(), unrouted };
        Ok(Relay { routes: ready, health, watcher })
    }
}

/// The routes of these configs in their order, and everything that is wrong with them.
pub(crate) fn check(configs: &[&RouteConfig]) -> Result<Routes, Vec<RouteError>> {
    let mut errors = Vec::new();
    for (place, config) in configs.iter().enumerate() {
        let wrong = |error| RouteError { route: Some(place), error };
        errors.extend(config.validate().err().into_iter().flatten().map(wrong));
    }
    let routes = Routes::new(configs.iter().map(|config| (&config.name, config.filter.clone())));
    for error in routes.as_ref().err().into_iter().flatten() {
        let field = if matches!(error, outbox_core::InvalidRoutes::Name { .. }) { "name" } else { "match" };
        errors.push(RouteError { route: error.route(), error: ConfigError { field, problem: error.to_string() } });
    }
    match routes {
        Ok(routes) if errors.is_empty() => Ok(routes),
        _ => Err(errors),
    }
}

impl Relay {
    /// Begins with a store and no route.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> RelayBuilder {
        RelayBuilder { store, routes: Vec::new() }
    }

    /// A handle on the status of all routes.
    #[must_use]
    pub fn health(&self) -> RelayHealth {
        self.health.clone()
    }

    /// Runs all routes, each in a task of its own, until `shutdown` is cancelled and each has come to its end, as
    /// [`Route::run`] says. When one of them dies the others are asked to stop, and it is reported when they have.
    ///
    /// # Errors
    /// [`RunError`] of the first route that died.
    ///
    /// # Cancel safety
    /// As [`Route::run`]: dropping the future stops all routes at once.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        // Stops the routes when one has died, and the watcher when all have ended; the caller's token is not ours to
        // cancel.
        let stop = shutdown.child_token();
        let (mut running, mut names) = (JoinSet::new(), HashMap::<Id, String>::new());
        for route in self.routes {
            let name = route.config.name.clone();
            names.insert(running.spawn(route.run(stop.clone())).id(), name);
        }
        let mut watching = JoinSet::new();
        if let Some(watcher) = self.watcher {
            watching.spawn(watcher.run(stop.clone()));
        }
        let mut died = None;
        loop {
            let problem = tokio::select! {
                ended = running.join_next_with_id() => match ended {
                    None => break,
                    Some(Ok((_, Ok(())))) => None,
                    Some(Ok((_, Err(error)))) => Some(error),
                    Some(Err(error)) => Some(ended_by(names.get(&error.id()).cloned(), error)),
                },
                Some(ended) = watching.join_next() => {
                    ended.err().map(|error| ended_by(Some("(unrouted)".to_owned()), error))
                }
            };
            if let Some(error) = problem {
                tracing::error!(error = %error, "stopping: a core task has died");
                died.get_or_insert(error);
                stop.cancel();
            }
        }
        stop.cancel();
        while watching.join_next().await.is_some() {}
        died.map_or(Ok(()), Err)
    }
}

fn ended_by(route: Option<String>, error: JoinError) -> RunError {
    let reason = match error.try_into_panic() {
        Ok(panic) => format!("it panicked: {}", panic_text(&*panic)),
        Err(error) => format!("it was cancelled from outside: {error}"),
    };
    RunError { route: route.unwrap_or_default(), reason }
}

/// A handle on the status of all routes; cheap to clone and to ask, never touches the database.
#[derive(Debug, Clone)]
pub struct RelayHealth {
    routes: Vec<RouteHealth>,
    unrouted: Option<watch::Receiver<Option<Unrouted>>>,
}

impl RelayHealth {
    /// The routes, in their order.
    #[must_use]
    pub fn routes(&self) -> &[RouteHealth] {
        &self.routes
    }

    /// The first event that was found and that no route takes. It is looked for as long as this relay owns one of its
    /// routes, and may be a few seconds old.
    #[must_use]
    pub fn unrouted(&self) -> Option<Unrouted> {
        self.unrouted.as_ref()?.borrow().clone()
    }
}
