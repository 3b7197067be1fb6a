//! The publisher: encode, sign, send side by side, judge each answer by itself.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use outbox_core::{Capabilities, Envelope, ErrorKind, Outcome, PublishError, PublishReport, Publisher, Receipt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::{PrivateAddresses, WebhookConfig};
use crate::connector::Connector;
use crate::encode::{Outgoing, Rules, encode};
use crate::error::{ConfigError, End, Sign, Verdict, classify};
use crate::examine::speaks_http;
use crate::exchange::{Exchange, Exchanged};
use crate::health::{Health, Trouble};
use crate::sign::Keys;
use crate::tls::TlsSource;

/// How long an event of a batch waits for its turn. With both time-outs it is what a publish takes at most, so it is
/// small enough for the relay's 30 s and large enough for a window of events at a receiver of usual speed.
pub const TURN_PATIENCE: Duration = Duration::from_secs(8);
/// Servers close idle connections after five seconds and more (Node.js: `keepAliveTimeout`). A request that meets such
/// a close is unconfirmed, so the connection is given up before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Publishes to one endpoint. See the [crate's documentation](crate) for what it promises.
pub struct WebhookPublisher {
    config: WebhookConfig,
    rules: Rules,
    keys: Option<Keys>,
    /// The topic of every event, when the URL holds no field.
    topic: Option<String>,
    /// `None` over a client that makes connections by itself.
    connector: Option<Connector>,
    /// `None` once closed.
    exchange: Mutex<Option<Exchange>>,
    turns: Semaphore,
    health: Mutex<Health>,
}

impl WebhookPublisher {
    /// Checks the config. It does no I/O: files are read and connections made by the first publish or check, so that a
    /// relay starts while the endpoint is down.
    ///
    /// # Errors
    /// Everything that is wrong with the config, each with its field.
    pub fn connect(config: WebhookConfig) -> Result<Self, Vec<ConfigError>> {
        match (config.check_requests(), config.check_connecting()) {
            (Ok((rules, keys)), Ok((reach, files))) => {
                let endpoint = &rules.endpoint;
                let tls = endpoint.is_https().then(|| TlsSource::new(files));
                let connector = Connector::new(endpoint.host(), endpoint.port(), tls, reach, config.connect_timeout);
                let client = Client::builder(TokioExecutor::new())
                    .pool_timer(TokioTimer::new())
                    .pool_idle_timeout(IDLE_TIMEOUT)
                    .pool_max_idle_per_host(config.max_in_flight)
                    .build(connector.clone());
                Ok(Self::new(config, rules, keys, Some(connector), client))
            }
            (requests, connecting) => {
                let mut errors = requests.err().unwrap_or_default();
                errors.extend(connecting.err().unwrap_or_default());
                Err(errors)
            }
        }
    }

    /// Publishes over a client that the caller built, with TLS, credentials or a proxy of their own.
    ///
    /// Of the options, `ca_file`, `cert_file`, `key_file` and `plain_http` are not used, and `connect_timeout` bounds
    /// the wait for a connection from outside. The client must not follow redirects or decompress by layers of its own.
    /// [`Publisher::check`] makes no connection then: it tells what the answers so far say.
    ///
    /// # Errors
    /// Everything that is wrong with the options, each with its field; `private_addresses = "refuse"`, which only the
    /// client's own connector could keep.
    pub fn from_client<C>(client: Client<C, Full<Bytes>>, options: WebhookConfig) -> Result<Self, Vec<ConfigError>>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let mut errors = Vec::new();
        if options.private_addresses == PrivateAddresses::Refuse {
            let problem = "can't be refused over a client that makes its own connections; let its connector do it";
            errors.push(ConfigError { field: "private_addresses", problem: problem.to_owned() });
        }
        match options.check_requests() {
            Ok((rules, keys)) if errors.is_empty() => Ok(Self::new(options, rules, keys, None, client)),
            Ok(_) => Err(errors),
            Err(more) => {
                errors.splice(0..0, more);
                Err(errors)
            }
        }
    }

    fn new<C>(
        config: WebhookConfig,
        rules: Rules,
        keys: Option<Keys>,
        connector: Option<Connector>,
        client: Client<C, Full<Bytes>>,
    ) -> Self
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let topic = rules.endpoint.is_static().then(|| rules.endpoint.shown());
        let turns = Semaphore::new(config.max_in_flight);
        let mut secrets = rules.endpoint.secrets();
        secrets.extend(config.secret.split_whitespace().map(str::to_owned));
        let values = config.authorization.iter().chain(config.headers.values());
        secrets.extend(values.flat_map(|value| value.split_whitespace()).map(str::to_owned));
        let (connect_timeout, request_timeout) = (config.connect_timeout, config.request_timeout);
        let exchange = Exchange::new(client, connect_timeout, request_timeout, secrets);
        Self {
            config,
            rules,
            keys,
            topic,
            connector,
            exchange: Mutex::new(Some(exchange)),
            turns,
            health: Mutex::default(),
        }
    }

    /// Looks closer than [`Publisher::check`], for a command that an operator runs: whether what listens at the endpoint
    /// speaks HTTP at all, and not, say, PostgreSQL at a port that was mistaken. It sends `OPTIONS *`, which a server
    /// answers by itself, and no event. Over a client that the caller built it is the same as the check.
    ///
    /// # Errors
    /// Those of the check; `Misconfigured` when the answer is not HTTP's.
    pub async fn examine(&self) -> Result<(), PublishError> {
        self.check().await?;
        let (Some(connector), endpoint) = (&self.connector, &self.rules.endpoint) else { return Ok(()) };
        match connector.connect().await {
            Ok(socket) => {
                speaks_http(socket, &format!("{}:{}", endpoint.host(), endpoint.port()), &endpoint.origin()).await
            }
            // The check has just connected, so this is one that comes and goes.
            Err(error) => Err(Exchanged::unreached(error).into_error(ErrorKind::Unavailable, &endpoint.origin(), None)),
        }
    }

    /// The longest that a publish takes: waiting for a turn, for a connection, for the answer.
    fn patience(&self) -> Duration {
        let timeouts = self.config.connect_timeout.saturating_add(self.config.request_timeout);
        timeouts.saturating_add(TURN_PATIENCE)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        // Its changes are whole at each step, so a panic elsewhere has spoilt nothing.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<Exchange, PublishError> {
        let exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner).clone();
        exchange.ok_or_else(|| PublishError::new(ErrorKind::Unavailable, "the publisher is closed"))
    }

    async fn send(&self, event: &Envelope, batch: &Batch) -> Outcome {
        self.open()?;
        let outgoing = encode(event, &self.rules)?;
        let turn = timeout_at(batch.begin_by, self.turns.acquire()).await;
        // A turn that is free at once is given however late it is.
        let (Ok(turn), true) = (turn, Instant::now() < batch.begin_by) else {
            let detail = format!(
                "{} requests at once left no room within {TURN_PATIENCE:?}; nothing was sent",
                self.config.max_in_flight
            );
            return Err(PublishError::new(ErrorKind::Throttled, detail));
        };
        // The semaphore is never closed; without a turn there is no bound on what is under way.
        let _turn = turn.map_err(|_| PublishError::new(ErrorKind::Unavailable, "the publisher is closed"))?;
        let exchange = self.open()?;
        if let Some(unreached) = batch.unreached() {
            return Err(unreached);
        }
        let obstacle = self.health().against_sending(Instant::now());
        if let Some(obstacle) = obstacle {
            return Err(obstacle);
        }
        let Outgoing { uri, id, headers, body } = outgoing;
        let exchanged = exchange.post(uri, &id, headers, body, self.keys.as_ref()).await;
        self.judge(event, exchanged, batch)
    }

    fn judge(&self, event: &Envelope, exchanged: Exchanged, batch: &Batch) -> Outcome {
        let trouble = {
            let (mut health, now) = (self.health(), Instant::now());
            if let Some(wait) = exchanged.wait() {
                health.asked_to_wait(wait, now);
            }
            match exchanged.end.sign() {
                Some(Sign::Trouble) => health.trouble(event.event_id, now),
                Some(Sign::Accepted) => {
                    health.accepted();
                    Trouble::OfOne
                }
                None => Trouble::OfOne,
            }
        };
        let is_unreached = matches!(exchanged.end, End::Unreached | End::Forbidden);
        match classify(exchanged.end, trouble) {
            Verdict::Confirmed => Ok(Receipt::confirmed()),
            Verdict::Refused { kind, only_topic } => {
                let sizes = (kind == ErrorKind::Rejected).then(|| self.sizes(event)).flatten();
                let mut error = exchanged.into_error(kind, &self.rules.endpoint.origin(), sizes.as_deref());
                if only_topic {
                    error = error.with_topic(self.topic(event));
                }
                if is_unreached {
                    batch.set_unreached(&error);
                }
                Err(error)
            }
        }
    }

    /// The figures of a request that was too large for the endpoint.
    fn sizes(&self, event: &Envelope) -> Option<String> {
        let request = encode(event, &self.rules).ok()?;
        let headers: usize = request.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        Some(format!("the body has {} bytes, the headers {headers}", request.body.len()))
    }
}

/// What the events of one call share.
struct Batch {
    begin_by: Instant,
    unreached: Mutex<Option<PublishError>>,
}

impl Batch {
    fn new() -> Self {
        Self { begin_by: Instant::now() + TURN_PATIENCE, unreached: Mutex::default() }
    }

    /// Why no connection could be made. The events after it need not wait for the same each.
    fn unreached(&self) -> Option<PublishError> {
        self.unreached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_unreached(&self, error: &PublishError) {
        self.unreached.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.clone());
    }
}

#[async_trait]
impl Publisher for WebhookPublisher {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes(self.config.max_message_bytes)
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        match &self.topic {
            Some(topic) => Cow::Borrowed(topic),
            None => Cow::Owned(self.rules.endpoint.topic(event)),
        }
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        let batch = Batch::new();
        let mut sends: Vec<_> = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            let send = self.send(event, &batch);
            sends.push(async move { (index, send.await) });
        }
        let mut outcomes = stream::iter(sends).buffer_unordered(self.config.max_in_flight);
        while let Some((index, outcome)) = outcomes.next().await {
            report.set(index, outcome);
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.open()?;
        if let Some(connector) = &self.connector
            && let Err(error) = connector.connect().await
        {
            let exchanged = Exchanged::unreached(error);
            if let Verdict::Refused { kind, .. } = classify(exchanged.end, Trouble::OfOne) {
                return Err(exchanged.into_error(kind, &self.rules.endpoint.origin(), None));
            }
        }
        let obstacle = self.health().against_checking(Instant::now());
        obstacle.map_or(Ok(()), Err)
    }

    async fn close(&self) {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Whoever waits for a turn is ahead in the queue and finds the publisher closed; whoever sends gives its turn
        // back within the time-outs.
        let all = u32::try_from(self.config.max_in_flight).unwrap_or(u32::MAX);
        if timeout(self.patience(), self.turns.acquire_many(all)).await.is_err() {
            tracing::warn!("a webhook publisher is closed while requests are under way");
        }
    }
}

impl fmt::Debug for WebhookPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookPublisher").field("config", &self.config).finish_non_exhaustive()
    }
}
