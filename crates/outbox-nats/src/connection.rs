//! One session at a time, opened on demand.
//!
//! The client reconnects by itself a few times at once, which mends a cut connection in milliseconds. When that fails
//! it ends, and the next call opens a new one: so credentials and certificates are read again, the cause of a failure
//! is known, and nothing that was handed to a dead connection is sent hours later.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions};
use outbox_core::PublishError;
use tokio::sync::Mutex;
use tokio::time::{interval, timeout};

use crate::config::{Access, NatsConfig};
use crate::error::{Fault, classify};
use crate::session::{LOOK_AGAIN, Session, Watch};
use crate::tls;

/// What the server shows for this connection.
const CONNECTION_NAME: &str = "outbox";
/// Attempts of the client to reconnect by itself, beyond one for each server, for those that a cluster has told it.
const EXTRA_RECONNECTS: usize = 4;
/// A dead peer is noticed after two of them; each costs two small packets.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The way to the servers: the live session, or how to get one.
pub(crate) struct Link {
    /// Absent when the user brought a client: then there is no way to open another.
    access: Option<Access>,
    /// The client that the user brought.
    handed_over: Option<Client>,
    state: Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    session: Option<Arc<Session>>,
    /// When the last attempt failed, and how: for those who waited for it meanwhile.
    failed: Option<(Instant, PublishError)>,
}

impl Link {
    pub(crate) fn to(access: Access) -> Self {
        Self { access: Some(access), handed_over: None, state: Mutex::default() }
    }

    pub(crate) fn over(client: Client) -> Self {
        Self { access: None, handed_over: Some(client), state: Mutex::default() }
    }

    /// The live session, connecting if need be. One attempt at a time; the others share its outcome.
    pub(crate) async fn session(&self, config: &NatsConfig) -> Result<Arc<Session>, PublishError> {
        let asked = Instant::now();
        let Ok(mut state) = timeout(config.connect_timeout, self.state.lock()).await else {
            return Err(unreachable("another attempt to connect to nats is still going on"));
        };
        if let Some((_, error)) = state.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(error.clone());
        }
        let outcome = self.session_of(&mut state, config).await;
        state.failed = outcome.as_ref().err().map(|error| (Instant::now(), error.clone()));
        outcome
    }

    async fn session_of(&self, state: &mut LinkState, config: &NatsConfig) -> Result<Arc<Session>, PublishError> {
        if let Some(session) = state.session.as_ref().filter(|session| session.alive()) {
            let session = Arc::clone(session);
            if session.until_connected(config.connect_timeout).await {
                return Ok(session);
            }
            if session.alive() {
                // The user's own client goes on by itself; ours is replaced by the next call.
                if self.access.is_some() {
                    session.give_up();
                }
                let (waited, because) = (config.connect_timeout, session.because());
                return Err(unreachable(&format!("no connection to nats for {waited:?} (connect_timeout){because}")));
            }
        }
        state.session = None;
        let opened = match (&self.access, &self.handed_over) {
            (Some(access), _) => open(access, config).await,
            (None, Some(client)) => over(client.clone(), config).await,
            (None, None) => Err(unreachable("the connection is closed")),
        };
        let session = Arc::new(opened?);
        state.session = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Drops the live session, if any. A client that the user brought stays open.
    pub(crate) async fn close(&self, config: &NatsConfig) {
        // Still connecting: the session is dropped with its caller, and the publisher is closed.
        if let Ok(mut state) = timeout(config.connect_timeout, self.state.lock()).await
            && let Some(session) = state.session.take()
        {
            session.give_up();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

async fn open(access: &Access, config: &NatsConfig) -> Result<Session, PublishError> {
    let place = access.servers.shown();
    let failed = || format!("can't connect to nats at {place}");
    match timeout(config.connect_timeout, connect(access, config)).await {
        Ok(Ok(session)) => {
            tracing::info!(broker = %place, "connected to nats");
            Ok(session)
        }
        Ok(Err(Problem::File(error))) => Err(unreachable(&failed()).with_source(error)),
        Ok(Err(Problem::Connect(error))) => Err(unreachable(&failed()).with_source(error)),
        Ok(Err(Problem::Subscribe(error))) => Err(unreachable(&failed()).with_source(error)),
        Err(_) => {
            let waited = config.connect_timeout;
            Err(unreachable(&format!("{}: no answer within connect_timeout ({waited:?})", failed())))
        }
    }
}

enum Problem {
    File(std::io::Error),
    Connect(async_nats::ConnectError),
    Subscribe(async_nats::SubscribeError),
}

async fn connect(access: &Access, config: &NatsConfig) -> Result<Session, Problem> {
    let servers = u32::try_from(access.servers.addresses.len()).unwrap_or(u32::MAX);
    let watch = Arc::new(Watch::default());
    let events = Arc::clone(&watch);
    let options = ConnectOptions::new()
        .name(CONNECTION_NAME)
        .connection_timeout(config.connect_timeout / servers.max(1))
        .max_reconnects(access.servers.addresses.len() + EXTRA_RECONNECTS)
        .ping_interval(PING_INTERVAL)
        .require_tls(access.servers.tls)
        .tls_client_config(tls::client_config(config).await.map_err(Problem::File)?)
        .event_callback(move |event| {
            events.event(&event);
            async {}
        });
    let options = access.login.apply(options).await.map_err(Problem::File)?;
    let client = options.connect(access.servers.addresses.clone()).await.map_err(Problem::Connect)?;
    Session::over(client, watch).await.map_err(Problem::Subscribe)
}

/// A session over the user's client, once that is connected.
async fn over(client: Client, config: &NatsConfig) -> Result<Session, PublishError> {
    let opened = async {
        let mut look = interval(LOOK_AGAIN);
        while client.connection_state() != State::Connected {
            look.tick().await;
        }
        Session::over(client, Arc::default()).await
    };
    let waited = config.connect_timeout;
    match timeout(waited, opened).await {
        Ok(Ok(session)) => Ok(session),
        Ok(Err(error)) => Err(unreachable("the client that was handed over is closed").with_source(error)),
        Err(_) => Err(unreachable(&format!(
            "the client that was handed over has no connection for {waited:?} (connect_timeout)"
        ))),
    }
}

pub(crate) fn unreachable(detail: &str) -> PublishError {
    PublishError::new(classify(Fault::Unreachable).kind, detail)
}
