//! `run`: PostgreSQL, a publisher for each route and the engine between them, until a signal.

use std::sync::Arc;
use std::time::Duration;

use outbox_pg::{Doorbell, PgStore, Sampler};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admin::{self, Probes};
use super::failure::{Failure, with_causes};
use super::settings::{Problem, Settings, Wakeup};
use super::{brokers, signals};
use crate::{Relay, RouteError};

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
    let pg = settings.database.pg.as_ref().ok_or_else(|| missing("database.url"))?;
    let store = PgStore::new(pg, settings.name.as_str()).map_err(|error| Failure::failed(&error))?;
    let store = Arc::new(store);
    let doorbell = match settings.wakeup {
        Wakeup::Doorbell { fallback } => Some(Doorbell::new(pg, fallback).map_err(|error| Failure::failed(&error))?),
        Wakeup::Poll => None,
    };
    let mut relay = Relay::builder(Arc::<PgStore>::clone(&store));
    for (route, publisher) in settings.routes.iter().zip(brokers::connect(&settings.routes)?) {
        relay = match &doorbell {
            Some(doorbell) => relay.route_with_wakeup(route.config.clone(), publisher, doorbell.wakeup()),
            None => relay.route(route.config.clone(), publisher),
        };
    }
    let wrong = |error: RouteError| {
        let key =
            error.route.map_or_else(|| "route".to_owned(), |route| format!("route[{route}].{}", error.error.field));
        Problem::new(key, error.error.problem)
    };
    let relay = relay.build().map_err(|errors| Failure::Config(errors.into_iter().map(wrong).collect()))?;
    let sampler = Sampler::new(pg).map_err(|error| Failure::failed(&error))?;
    let probes = Probes {
        relay: relay.health(),
        shutdown: shutdown.clone(),
        doorbell: doorbell.as_ref().map(Doorbell::health),
        figures: sampler.latest(),
    };
    let (name, version) = (&settings.name, env!("CARGO_PKG_VERSION"));
    let listen = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let listen = listen.map_or_else(|| "off".to_owned(), |address| address.to_string());
    let names: Vec<&str> = settings.routes.iter().map(|route| route.config.name.as_str()).collect();
    tracing::info!(routes = names.join(", "), relay = name, version, admin = listen, "the relay starts");

    // Tasks of their own: a panic in one of them is an error to report, not the end of `main`.
    // The listening session ends when this set does.
    let mut listening = JoinSet::new();
    if let Some(doorbell) = doorbell {
        listening.spawn(doorbell.run());
    }
    // So does the sampler's; nobody asks for its figures without a listener.
    let mut sampling = JoinSet::new();
    if listener.is_some() {
        sampling.spawn(sampler.run());
    }
    let mut running = tokio::spawn(relay.run(shutdown.clone()));
    let answering = async {
        match listener {
            Some(listener) => tokio::spawn(admin::serve(listener, probes)).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = &mut running => ended,
        Some(Err(died)) = listening.join_next() => {
            let error = with_causes(&died);
            tracing::error!(error, "the doorbell has died: idle routes poll until the relay is restarted");
            running.await
        }
        Some(Err(died)) = sampling.join_next() => {
            let error = with_causes(&died);
            tracing::error!(error, "the sampler has died: gauges of the database are left out until a restart");
            running.await
        }
        probes = answering => {
            let why = match probes {
                Ok(Ok(())) => "it ended".to_owned(),
                Ok(Err(error)) => with_causes(&error),
                Err(panicked) => with_causes(&panicked),
            };
            tracing::error!(error = why, "the probes no longer answer: stopping");
            shutdown.cancel();
            if let Ok(Err(error)) = running.await {
                tracing::error!(error = %error, "a route ended while stopping");
            }
            return Err(Failure::Failed(format!("the probes no longer answer: {why}")));
        }
    };
    if tokio::time::timeout(GOODBYE, store.close()).await.is_err() {
        tracing::warn!("the database's connections did not close within {GOODBYE:?}");
    }
    match ended {
        Ok(Ok(())) => {
            tracing::info!("the relay has stopped");
            Ok(())
        }
        Ok(Err(error)) => Err(Failure::failed(&error)),
        Err(panicked) => Err(Failure::Failed(format!("a core task died: {panicked}"))),
    }
}
