//! The probes `/livez` and `/readyz`, and `/metrics`. They answer from memory, without asking database or broker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use outbox_core::rfc3339_micros;
use outbox_pg::{DoorbellHealth, LatestFigures};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::visitors::Bounded;
use crate::metrics::{self, Outside};
use crate::{RelayHealth, RouteHealth, Unrouted};

/// A route whose loop has not turned for this long is taken for dead. It turns every few seconds; while it takes over
/// a route it waits for calls of the database of at most 20 s each.
const STUCK: Duration = Duration::from_secs(30);

/// What the probes look at.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) relay: RelayHealth,
    pub(crate) shutdown: CancellationToken,
    /// `None` when the wake-up is polling.
    pub(crate) doorbell: Option<DoorbellHealth>,
    /// What is asked of the database beside the probes.
    pub(crate) figures: LatestFigures,
}

#[derive(Debug, Serialize)]
struct Live {
    live: bool,
    routes: Vec<RouteLive>,
}

#[derive(Debug, Serialize)]
struct RouteLive {
    route: String,
    live: bool,
}

#[derive(Debug, Serialize)]
struct Ready {
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    routes: Vec<RouteReady>,
    /// The first event that no route takes; it waits, and the relay is ready all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    unrouted: Option<UnroutedEvent>,
}

#[derive(Debug, Serialize)]
struct UnroutedEvent {
    id: i64,
    event_id: String,
    aggregate_type: String,
    event_type: String,
    created_at: String,
}

impl From<Unrouted> for UnroutedEvent {
    fn from(event: Unrouted) -> Self {
        let Unrouted { id, event_id, aggregate_type, event_type, created_at } = event;
        let (event_id, created_at) = (event_id.to_string(), rfc3339_micros(created_at));
        Self { id, event_id, aggregate_type, event_type, created_at }
    }
}

#[derive(Debug, Serialize)]
struct RouteReady {
    route: String,
    ready: bool,
    /// Whether this relay owns a share of the route; one that waits for a share is ready too.
    owner: bool,
    /// Its share, of 64 buckets.
    buckets: usize,
    /// Relays with other routes are at work; this one waits for them and is ready too.
    #[serde(skip_serializing_if = "Option::is_none")]
    standby: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Takes the address, so that a taken port stops the start.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::Failed(format!(
            "admin.listen: {address} can't be listened on: {error}; choose another port, or \"off\" for no probes"
        ))
    })
}

/// Answers until the process ends.
pub(crate) async fn serve(listener: TcpListener, probes: Probes) -> std::io::Result<()> {
    let app = axum::Router::new().route("/livez", get(livez)).route("/readyz", get(readyz));
    let app = app.route("/metrics", get(scrape)).with_state(Arc::new(probes));
    axum::serve(Bounded::new(listener), app).await
}

async fn livez(State(probes): State<Arc<Probes>>) -> (StatusCode, Json<Live>) {
    let live = |route: &RouteHealth| {
        let live = !route.status().ended && !route.is_stuck(STUCK);
        RouteLive { route: route.name().to_owned(), live }
    };
    let routes: Vec<RouteLive> = probes.relay.routes().iter().map(live).collect();
    // A route that ends because it was asked to is no reason to kill the process on its way out.
    let live = probes.shutdown.is_cancelled() || routes.iter().all(|route| route.live);
    (code(live), Json(Live { live, routes }))
}

async fn readyz(State(probes): State<Arc<Probes>>) -> (StatusCode, Json<Ready>) {
    let ready = |route: &RouteHealth| {
        let status = route.status();
        let reason = status.not_ready();
        let (route, owner, buckets) = (route.name().to_owned(), status.owner, status.buckets);
        RouteReady { route, ready: reason.is_none(), owner, buckets, standby: status.standby, reason }
    };
    let routes: Vec<RouteReady> = probes.relay.routes().iter().map(ready).collect();
    let unrouted = probes.relay.unrouted().map(UnroutedEvent::from);
    let stopping = probes.shutdown.is_cancelled();
    let ready = !stopping && routes.iter().all(|route| route.ready);
    (code(ready), Json(Ready { ready, reason: stopping.then_some("shutting down"), routes, unrouted }))
}

async fn scrape(State(probes): State<Arc<Probes>>) -> impl IntoResponse {
    let outside = Outside {
        listener_up: probes.doorbell.as_ref().map(DoorbellHealth::is_listening),
        database: probes.figures.get().into(),
    };
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&probes.relay, &outside))
}

const fn code(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[cfg(test)]
mod tests {
    use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore};

    use super::*;
    use crate::{Relay, RouteConfig};

    #[tokio::test(start_paused = true)]
    async fn a_stuck_route_is_not_live() {
        let (store, hangs) = (MemoryStore::new(), Hold::new());
        store.script(Call::Acquire, Fault::HoldBefore(hangs.clone()));
        let publisher = Arc::new(MemoryPublisher::new());
        let relay = Relay::builder(Arc::new(store)).route(RouteConfig::new("orders"), publisher).build();
        let relay = relay.expect("a valid config");
        let (health, shutdown) = (relay.health().routes()[0].clone(), CancellationToken::new());
        let sampler = outbox_pg::Sampler::new(&outbox_pg::PgConfig::new("postgres://127.0.0.1/a")).expect("valid");
        let (doorbell, figures) = (None, sampler.latest());
        let probes = Arc::new(Probes { relay: relay.health(), shutdown: shutdown.clone(), doorbell, figures });
        let ask = async || livez(State(Arc::clone(&probes))).await;
        let running = tokio::spawn(relay.run(shutdown.clone()));
        hangs.reached().await;
        assert_eq!(ask().await.0, StatusCode::OK);
        tokio::time::advance(STUCK + Duration::from_secs(1)).await;
        let (code, Json(live)) = ask().await;
        assert!(code == StatusCode::SERVICE_UNAVAILABLE && !live.live && !live.routes[0].live);
        hangs.release();
        let mut status = health.watch();
        status.wait_for(|status| status.owner).await.expect("it runs");
        assert_eq!(ask().await.0, StatusCode::OK);
        shutdown.cancel();
        running.await.expect("no panic").expect("a good end");
        assert_eq!(ask().await.0, StatusCode::OK, "asked to stop");
    }
}
