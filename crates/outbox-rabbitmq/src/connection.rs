//! One connection at a time, opened on demand, and its channels in confirm mode.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Instant;

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ExchangeKind};
use outbox_core::{ErrorKind, PublishError};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::config::RabbitMqConfig;
use crate::error::{Fault, Stage, classify};
use crate::socket::{self, Failure, SocketGuard};

/// AMQP's reply code for a normal end.
const REPLY_SUCCESS: u16 = 200;

const AFTER_TLS: &str = ": it ended the connection right after the TLS handshake, as a broker does that refuses the client's \
                         certificate (cert_file) or wants one";

/// A live connection.
pub(crate) struct Session {
    connection: Connection,
    /// Absent for a connection that the user opened.
    socket: StdMutex<Option<SocketGuard>>,
    /// Channels without a publish in flight; at most as many as the config's `channels`.
    idle: StdMutex<VecDeque<Channel>>,
    /// It did not answer in time. The library may still call it connected, for as long as its heartbeat lasts or, when
    /// the runtime that opened it has ended, for ever.
    given_up: AtomicBool,
}

impl Session {
    fn new(connection: Connection, socket: Option<SocketGuard>) -> Self {
        Self { connection, socket: StdMutex::new(socket), idle: StdMutex::default(), given_up: AtomicBool::new(false) }
    }

    pub(crate) fn blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    fn alive(&self) -> bool {
        self.connection.status().connected() && !self.given_up.load(Ordering::Relaxed)
    }

    pub(crate) fn frame_max(&self) -> usize {
        usize::try_from(self.connection.configuration().frame_max()).unwrap_or(usize::MAX)
    }

    /// Takes an idle channel or opens one. Whoever takes it uses it alone.
    pub(crate) async fn channel(&self, config: &RabbitMqConfig) -> Result<Channel, PublishError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match idle {
                Some(channel) if channel.status().connected() => return Ok(channel),
                Some(_) => {}
                None => break,
            }
        }
        let open = async {
            let channel = self.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        self.bounded(open, config, Stage::Opening, "a channel could not be opened").await
    }

    /// Gives a channel back. Only one whose every publish was answered may come back.
    pub(crate) fn give_back(&self, channel: Channel) {
        if channel.status().connected() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push_back(channel);
        }
    }

    /// Asks for the exchange on a channel of its own, which a missing exchange closes.
    pub(crate) async fn check_exchange(&self, config: &RabbitMqConfig) -> Result<(), PublishError> {
        let open = async { self.connection.create_channel().await };
        let channel = self.bounded(open, config, Stage::Opening, "a channel could not be opened").await?;
        if !config.exchange.is_empty() {
            let name = ShortString::try_new(config.exchange.as_str())
                .map_err(|error| PublishError::new(ErrorKind::Misconfigured, error.to_string()))?;
            let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let asked = channel.exchange_declare(name, ExchangeKind::Topic, options, FieldTable::default());
            self.bounded(asked, config, Stage::Checking, "the exchange could not be checked").await?;
        }
        let closed = async { channel.close(REPLY_SUCCESS, "OK".into()).await };
        self.bounded(closed, config, Stage::Checking, "a channel could not be closed").await
    }

    /// Bounds a request. One that a connection does not answer in time condemns the connection, unless it is blocked.
    async fn bounded<T>(
        &self,
        request: impl Future<Output = lapin::Result<T>>,
        config: &RabbitMqConfig,
        stage: Stage,
        what: &str,
    ) -> Result<T, PublishError> {
        match timeout(config.connect_timeout, request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let kind = classify(Fault::of(&error), stage, None).kind;
                Err(PublishError::new(kind, what).with_source(error))
            }
            Err(_) if self.blocked() => Err(blocked()),
            Err(_) => {
                self.give_up();
                let kind = classify(Fault::TimedOut, stage, None).kind;
                let waited = config.connect_timeout;
                Err(PublishError::new(kind, format!("{what} within connect_timeout ({waited:?})")))
            }
        }
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    async fn close(&self, config: &RabbitMqConfig) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // A failure or a time-out here means that the broker ends the connection by itself; all was flushed before.
        let _ = timeout(config.connect_timeout, self.connection.close(REPLY_SUCCESS, "OK".into())).await;
        self.give_up();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("connected", &self.alive()).finish_non_exhaustive()
    }
}

/// The way to the broker: the live session, or how to get one.
pub(crate) struct Link {
    /// Absent when the user brought a connection: then there is no way to open another.
    uri: Option<AMQPUri>,
    state: Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    session: Option<Arc<Session>>,
    /// When the last attempt failed, and how: for those who waited for it meanwhile.
    failed: Option<(Instant, PublishError)>,
}

impl Link {
    pub(crate) fn to(uri: AMQPUri) -> Self {
        Self { uri: Some(uri), state: Mutex::default() }
    }

    pub(crate) fn over(connection: Connection) -> Self {
        let session = Session::new(connection, None);
        Self { uri: None, state: Mutex::new(LinkState { session: Some(Arc::new(session)), failed: None }) }
    }

    /// The live session, connecting if need be. One attempt at a time; the others share its outcome.
    pub(crate) async fn session(&self, config: &RabbitMqConfig) -> Result<Arc<Session>, PublishError> {
        let asked = Instant::now();
        let Ok(mut state) = timeout(config.connect_timeout, self.state.lock()).await else {
            return Err(unavailable("another attempt to connect to rabbitmq is still going on"));
        };
        if let Some(session) = state.session.as_ref().filter(|session| session.alive()) {
            return Ok(Arc::clone(session));
        }
        let Some(uri) = &self.uri else {
            return Err(unavailable("the connection that was handed over is closed and can't be opened again here"));
        };
        if let Some((_, error)) = state.failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(error.clone());
        }
        state.session = None;
        match self.open(uri, config).await {
            Ok(session) => {
                let session = Arc::new(session);
                *state = LinkState { session: Some(Arc::clone(&session)), failed: None };
                Ok(session)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open(&self, uri: &AMQPUri, config: &RabbitMqConfig) -> Result<Session, PublishError> {
        let place = format!("{}:{}", uri.authority.host, uri.authority.port);
        match timeout(config.connect_timeout, socket::connect(uri.clone(), config)).await {
            Ok(Ok((connection, socket))) => {
                tracing::info!(broker = %place, "connected to rabbitmq");
                Ok(Session::new(connection, Some(socket)))
            }
            Ok(Err(Failure { error, after_tls })) => {
                let kind = classify(Fault::of(&error), Stage::Opening, None).kind;
                let hint = if after_tls { AFTER_TLS } else { "" };
                Err(PublishError::new(kind, format!("can't connect to rabbitmq at {place}{hint}")).with_source(error))
            }
            Err(_) => {
                let kind = classify(Fault::TimedOut, Stage::Opening, None).kind;
                let waited = config.connect_timeout;
                let detail = format!("rabbitmq at {place} did not answer within connect_timeout ({waited:?})");
                Err(PublishError::new(kind, detail))
            }
        }
    }

    /// Closes the live session, if any.
    pub(crate) async fn close(&self, config: &RabbitMqConfig) {
        let session = match timeout(config.connect_timeout, self.state.lock()).await {
            Ok(mut state) => state.session.take(),
            Err(_) => None, // still connecting: dropped with its caller, and the publisher is closed
        };
        if let Some(session) = session {
            session.close(config).await;
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

pub(crate) fn unavailable(detail: &str) -> PublishError {
    PublishError::new(ErrorKind::Unavailable, detail)
}

pub(crate) fn blocked() -> PublishError {
    let kind = classify(Fault::Blocked, Stage::Opening, None).kind;
    PublishError::new(kind, "rabbitmq blocks connections that publish (memory or disk alarm)")
}
