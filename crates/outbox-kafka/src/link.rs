//! The way to the cluster: one session at a time, opened on demand and again when it is spent.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use krafka::admin::{AdminClient, DescribeClusterOptions, DescribeTopicsOptions};
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::producer::{Acks, Producer, ProducerBuilder};
use krafka::{CloseOptions, Kafka, KrafkaError};
use outbox_core::{ErrorKind, PublishError};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::timeout;

use crate::config::{Compression, KafkaConfig, SaslMechanism};
use crate::error::{Stage, classify};

/// What brokers show in their logs and tie quotas to.
const CLIENT_ID: &str = "outbox";
/// How long a batch waits for more events when its partition has nothing in flight: Kafka's own default since 4.0
/// (KIP-1030). A call's events then share a request instead of the first one travelling alone.
const LINGER: Duration = Duration::from_millis(5);
/// Events of one partition that travel together, in bytes. Larger batches gain little and lose more when one event
/// spoils them.
const MAX_BATCH_BYTES: usize = 256 * 1024;
/// What may wait in the client or be in flight, in bytes; two of the largest messages if that is more. Beyond it events
/// are throttled.
const MIN_BUFFER_BYTES: usize = 32 * 1024 * 1024;
/// Of a request, beyond the messages in it.
const REQUEST_OVERHEAD_BYTES: usize = 64 * 1024;
/// Topics known to exist, remembered so that a batch costs no question. Beyond it all are asked for again.
const MAX_KNOWN_TOPICS: usize = 10_000;

/// A producer with its identity at the cluster, and what is known by way of it.
pub(crate) struct Session {
    kafka: Kafka,
    admin: AdminClient,
    producer: Producer,
    /// Puts each event into a batch of its own. Made when a broker first refuses a batch for one of its events.
    alone: OnceCell<Producer>,
    known: StdMutex<HashSet<String>>,
    /// Something went unanswered: a sign of life is needed before the next events are queued. Otherwise they would
    /// wait in the client for a broker that is away, and nobody could tell whether they were sent.
    doubtful: AtomicBool,
    /// The producer, or the login, can't go on.
    spent: AtomicBool,
}

impl Session {
    async fn begin(kafka: Kafka, config: &KafkaConfig) -> krafka::Result<Self> {
        let producer = common(&kafka, config)
            .linger(LINGER)
            .delivery_timeout(config.confirm_timeout + LINGER)
            .batch_size(MAX_BATCH_BYTES.min(config.max_message_bytes))
            .build()
            .await?;
        Ok(Self {
            admin: kafka.admin(),
            kafka,
            producer,
            alone: OnceCell::new(),
            known: StdMutex::default(),
            doubtful: AtomicBool::new(false),
            spent: AtomicBool::new(false),
        })
    }

    pub(crate) fn producer(&self) -> &Producer {
        &self.producer
    }

    /// A producer whose batches hold one event each.
    pub(crate) async fn alone(&self, config: &KafkaConfig) -> Result<&Producer, PublishError> {
        let make = || async {
            let builder = common(&self.kafka, config).linger(Duration::ZERO).batch_size(1);
            let built = builder.delivery_timeout(config.confirm_timeout).build();
            bounded(built, config.connect_timeout, "no producer for single events").await
        };
        self.alone.get_or_try_init(make).await
    }

    /// Asks for topics that are not known yet, and returns what is wrong with which.
    pub(crate) async fn find<'t>(
        &self,
        topics: impl IntoIterator<Item = &'t str>,
        config: &KafkaConfig,
    ) -> HashMap<String, PublishError> {
        let unknown: HashSet<&str> = {
            let known = self.known();
            topics.into_iter().filter(|topic| !known.contains(*topic)).collect()
        };
        if unknown.is_empty() {
            return HashMap::new();
        }
        match self.ask(&unknown, config).await {
            Ok(found) => {
                let sorted = found.into_iter().filter_map(|(topic, found)| match found {
                    Ok(()) => {
                        self.remember(topic);
                        None
                    }
                    Err(error) => Some((topic, error)),
                });
                sorted.collect()
            }
            Err(error) => unknown.into_iter().map(|topic| (topic.to_owned(), error.clone())).collect(),
        }
    }

    /// Asks the cluster for topics, whatever is known: what is wrong with each, or with the question.
    async fn ask(
        &self,
        topics: &HashSet<&str>,
        config: &KafkaConfig,
    ) -> Result<Vec<(String, Result<(), PublishError>)>, PublishError> {
        let options = DescribeTopicsOptions::default().timeout(config.connect_timeout);
        let asked = self.admin.describe_topics(topics, options);
        let found = bounded(asked, config.connect_timeout, "the cluster did not say which topics it has").await;
        let found = found.inspect_err(|_| self.doubt())?;
        let judged = |(topic, found): (String, krafka::Result<_>)| {
            let found = found.map(drop).map_err(|error| self.not_usable(&topic, error));
            (topic, found)
        };
        Ok(found.into_iter().map(judged).collect())
    }

    fn not_usable(&self, topic: &str, error: KrafkaError) -> PublishError {
        self.note(&error);
        self.forget(topic);
        let verdict = classify(&error, Stage::Asking);
        if verdict.kind == ErrorKind::Unavailable {
            self.doubt();
        }
        let detail = format!("topic `{topic}` can't be used");
        let publish_error = PublishError::new(verdict.kind, detail).with_source(error);
        if verdict.only_topic { publish_error.with_topic(topic) } else { publish_error }
    }

    /// Asks the cluster for a sign of life, and for a topic if one is named.
    pub(crate) async fn probe(&self, topic: Option<&str>, config: &KafkaConfig) -> Result<(), PublishError> {
        let answer = match topic {
            Some(topic) => {
                let found = self.ask(&HashSet::from([topic]), config).await;
                found.and_then(|found| found.into_iter().try_for_each(|(_, found)| found))
            }
            None => {
                let options = DescribeClusterOptions::default().timeout(config.connect_timeout);
                let asked = async { self.admin.describe_cluster(options).await.inspect_err(|error| self.note(error)) };
                bounded(asked, config.connect_timeout, "the cluster gave no sign of life").await.map(drop)
            }
        };
        match &answer {
            Err(error) if error.kind() == ErrorKind::Unavailable => self.doubt(),
            _ => self.doubtful.store(false, Ordering::Relaxed),
        }
        answer
    }

    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    pub(crate) fn doubt(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
    }

    /// Draws conclusions from an error: a fenced producer or a refused login ends the session, so that the next one
    /// has a new identity and reads its files anew.
    pub(crate) fn note(&self, error: &KrafkaError) {
        if error.is_fatal() {
            self.spent.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn forget(&self, topic: &str) {
        self.known().remove(topic);
    }

    fn remember(&self, topic: String) {
        let mut known = self.known();
        if known.len() >= MAX_KNOWN_TOPICS {
            known.clear();
        }
        known.insert(topic);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn close(&self, limit: Duration) {
        let producers = [Some(&self.producer), self.alone.get()];
        let closing = producers.into_iter().flatten().map(|producer| async move {
            if let Err(error) = producer.close_with(CloseOptions::new().timeout(limit)).await {
                tracing::warn!(%error, "closed a producer of kafka while events were outstanding");
            }
        });
        futures_util::future::join_all(closing).await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("doubtful", &self.doubtful).field("spent", &self.spent).finish_non_exhaustive()
    }
}

fn common(kafka: &Kafka, config: &KafkaConfig) -> ProducerBuilder {
    let compression = match config.compression {
        Compression::None => krafka::Compression::None,
        Compression::Gzip => krafka::Compression::Gzip,
        Compression::Snappy => krafka::Compression::Snappy,
        Compression::Lz4 => krafka::Compression::Lz4,
    };
    kafka
        .producer()
        .acks(Acks::All)
        .idempotent(true)
        .compression(compression)
        .max_request_size(2 * config.max_message_bytes + REQUEST_OVERHEAD_BYTES)
        .buffer_memory(MIN_BUFFER_BYTES.max(2 * config.max_message_bytes + REQUEST_OVERHEAD_BYTES))
        .max_block(config.connect_timeout)
        .metrics_push(false)
}

/// Bounds a question to the cluster.
async fn bounded<T>(
    asked: impl Future<Output = krafka::Result<T>>,
    limit: Duration,
    what: &str,
) -> Result<T, PublishError> {
    match timeout(limit, asked).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let kind = classify(&error, Stage::Asking).kind;
            Err(PublishError::new(kind, what).with_source(error))
        }
        Err(_) => Err(unavailable(format!("{what} within {limit:?}"))),
    }
}

/// How to get a session, and the one there is.
pub(crate) struct Link {
    /// Present when the user brought a client: its connections are used, and only its producers are ours.
    client: Option<Kafka>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// When the last attempt failed, and how: for those who waited for it meanwhile.
    failed: Option<(Instant, PublishError)>,
    closed: bool,
}

impl Link {
    pub(crate) fn new(client: Option<Kafka>) -> Self {
        Self { client, state: Mutex::default() }
    }

    /// The live session, or a new one. Never two attempts at once; who waits for a failing one shares its failure.
    pub(crate) async fn session(&self, config: &KafkaConfig) -> Result<Arc<Session>, PublishError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if state.closed {
            return Err(closed());
        }
        match state.session.take() {
            Some(session) if !session.spent.load(Ordering::Relaxed) => {
                state.session = Some(Arc::clone(&session));
                return Ok(session);
            }
            Some(spent) => retire(spent, config.confirm_timeout),
            None => {}
        }
        if let Some((at, error)) = &state.failed
            && *at >= asked
        {
            return Err(error.clone());
        }
        let limit = config.connect_timeout * 2;
        match bounded(self.open(config), limit, "no connection to kafka")
            .await
            .map_err(|error| explained(error, config))
        {
            Ok(session) => {
                let session = Arc::new(session);
                state.session = Some(Arc::clone(&session));
                state.failed = None;
                tracing::info!(brokers = %config.brokers.join(","), "connected to kafka");
                Ok(session)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn open(&self, config: &KafkaConfig) -> krafka::Result<Session> {
        let kafka = match &self.client {
            Some(client) => client.clone(),
            None => {
                Kafka::builder(config.brokers.join(","))
                    .client_id(CLIENT_ID)
                    .security(security(config))
                    .connect_timeout(config.connect_timeout)
                    .request_timeout(config.confirm_timeout)
                    .connect()
                    .await?
            }
        };
        Session::begin(kafka, config).await
    }

    /// Ends the session for good.
    pub(crate) async fn close(&self, config: &KafkaConfig) {
        let session = {
            let mut state = self.state.lock().await;
            state.closed = true;
            state.session.take()
        };
        if let Some(session) = session {
            session.close(config.connect_timeout).await;
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("own_client", &self.client.is_some()).finish_non_exhaustive()
    }
}

/// Under TLS 1.3 a broker refuses a client certificate only after the handshake. Its alert then meets the client's first
/// request, and the client library may report no more than a closed connection.
fn explained(error: PublishError, config: &KafkaConfig) -> PublishError {
    if config.tls && error.report().ends_with("connection closed") {
        let detail = "no connection to kafka: closed right after the TLS handshake, as a broker does that does not \
                      accept the client certificate, or wants one";
        return unavailable(detail).with_source(error);
    }
    error
}

/// Lets a spent session answer what it still holds, beside whoever replaces it.
fn retire(session: Arc<Session>, limit: Duration) {
    tokio::spawn(async move { session.close(limit).await });
}

fn security(config: &KafkaConfig) -> AuthConfig {
    let (user, password) = (config.username.as_deref(), config.password.as_deref());
    let (user, password) = (user.unwrap_or_default(), password.unwrap_or_default());
    let tls = config.tls.then(|| tls(config));
    match (config.sasl, tls) {
        (SaslMechanism::None, None) => AuthConfig::plaintext(),
        (SaslMechanism::None, Some(tls)) => AuthConfig::ssl(tls),
        (mechanism, tls) => {
            let sasl = match mechanism {
                SaslMechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(user, password),
                SaslMechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(user, password),
                SaslMechanism::Plain | SaslMechanism::None => AuthConfig::sasl_plain(user, password),
            };
            match tls {
                Some(tls) => sasl.with_tls(tls),
                None => sasl,
            }
        }
    }
}

/// The system's authorities and those of the config. The client reads the files when it connects.
fn tls(config: &KafkaConfig) -> TlsConfig {
    // Paths that are not UTF-8 were refused with the config.
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut tls = TlsConfig::new().with_native_roots();
    if let Some(file) = &config.ca_file {
        tls = tls.with_ca_cert(text(file));
    }
    if let (Some(cert), Some(key)) = (&config.cert_file, &config.key_file) {
        tls = tls.with_client_cert(text(cert), text(key));
    }
    tls
}

pub(crate) fn unavailable(detail: impl Into<String>) -> PublishError {
    PublishError::new(ErrorKind::Unavailable, detail)
}

pub(crate) fn closed() -> PublishError {
    unavailable("the publisher is closed")
}
