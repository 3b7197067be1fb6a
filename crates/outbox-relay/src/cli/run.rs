//! `run`: PostgreSQL, one publisher and the engine between them, until a signal.

use std::sync::Arc;
use std::time::Duration;

use outbox_pg::PgStore;
use tokio_util::sync::CancellationToken;

use super::admin::{self, Probes};
use super::failure::{Failure, with_causes};
use super::settings::{Problem, Settings};
use super::{broker, signals};
use crate::Route;

/// How long the database's connections may take to close; they hold nothing that could get lost.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs until a signal. Neither database nor broker need be there at the start.
pub(crate) async fn run(settings: Settings) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    signals::watch(shutdown.clone())
        .map_err(|error| Failure::Failed(format!("signals can't be handled: {}", with_causes(&error))))?;
    let listener = match settings.admin {
        Some(address) => Some(admin::bind(address).await?),
        None => None,
    };
    let missing = |key: &str| Failure::Config(vec![Problem::new(key, "is missing")]);
    let publisher = broker::publisher(settings.broker.as_ref().ok_or_else(|| missing("route"))?)?;
    let pg = settings.database.pg.as_ref().ok_or_else(|| missing("database.url"))?;
    let store = PgStore::new(pg, settings.name.as_str()).map_err(|error| Failure::failed(&error))?;
    let store = Arc::new(store);
    let route = Route::new(settings.route.clone(), Arc::<PgStore>::clone(&store), publisher).map_err(|errors| {
        Failure::Config(errors.into_iter().map(|error| Problem::new(error.field, error.problem)).collect())
    })?;
    let probes = Probes { routes: vec![route.health()], shutdown: shutdown.clone() };
    let (name, version) = (&settings.name, env!("CARGO_PKG_VERSION"));
    let listen = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let listen = listen.map_or_else(|| "off".to_owned(), |address| address.to_string());
    tracing::info!(route = settings.route.name, relay = name, version, admin = listen, "the relay starts");

    // Tasks of their own: a panic in one of them is an error to report, not the end of `main`.
    let mut running = tokio::spawn(route.run(shutdown.clone()));
    let answering = async {
        match listener {
            Some(listener) => tokio::spawn(admin::serve(listener, probes)).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = &mut running => ended,
        probes = answering => {
            let why = match probes {
                Ok(Ok(())) => "it ended".to_owned(),
                Ok(Err(error)) => with_causes(&error),
                Err(panicked) => with_causes(&panicked),
            };
            tracing::error!(error = why, "the probes no longer answer: stopping");
            shutdown.cancel();
            if let Ok(Err(error)) = running.await {
                tracing::error!(error = %error, "the route ended while stopping");
            }
            return Err(Failure::Failed(format!("the probes no longer answer: {why}")));
        }
    };
    if tokio::time::timeout(GOODBYE, store.close()).await.is_err() {
        tracing::warn!("the database's connections did not close within {GOODBYE:?}");
    }
    match ended {
        Ok(Ok(())) => {
            tracing::info!(route = settings.route.name, "the relay has stopped");
            Ok(())
        }
        Ok(Err(error)) => Err(Failure::failed(&error)),
        Err(panicked) => Err(Failure::Failed(format!("a core task died: {panicked}"))),
    }
}
