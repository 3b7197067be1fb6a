//! The publisher: encode, cut, send side by side within a bound, report.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{ProvideCredentials, SharedCredentialsProvider};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use outbox_core::{Capabilities, Envelope, ErrorKind, Outcome, PublishError, PublishReport, Publisher};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::client;
use crate::config::SqsConfig;
use crate::cut::cut;
use crate::encode::{Message, encode};
use crate::error::ConfigError;
use crate::request::Queue;

/// Publishes to one SQS queue. See the [crate's documentation](crate) for what it promises.
pub struct SqsPublisher {
    config: SqsConfig,
    queue: Queue,
    /// A permit for each request under way.
    slots: Semaphore,
    closed: AtomicBool,
}

impl SqsPublisher {
    /// Checks the config and makes a client with the access key in it. It does no I/O but reading `ca_file`:
    /// connections are opened by the first publish or check, so that a relay starts while SQS is away.
    ///
    /// # Errors
    /// Everything that is wrong with the config, each with its field; an absent access key too.
    pub fn connect(config: SqsConfig) -> Result<Self, Vec<ConfigError>> {
        let credentials = client::credentials(&config);
        Self::over(config, credentials)
    }

    /// Like [`connect`](Self::connect), with credentials that come from a provider: a role, a profile, the machine's
    /// own. An access key in the config must then be absent.
    ///
    /// # Errors
    /// Everything that is wrong with the config, each with its field.
    pub fn connect_with(
        config: SqsConfig,
        credentials: impl ProvideCredentials + 'static,
    ) -> Result<Self, Vec<ConfigError>> {
        if config.access_key_id.is_some() || config.secret_access_key.is_some() {
            let problem = "must be absent when a provider gives the credentials".to_owned();
            return Err(vec![ConfigError { field: "access_key_id", problem }]);
        }
        Self::over(config, Some(SharedCredentialsProvider::new(credentials)))
    }

    /// Publishes with a client that the caller made, with TLS, credentials, a proxy or an endpoint of their own.
    ///
    /// Of the options, region, endpoint, access key and `ca_file` are not used. The client's retries and its connect
    /// time-out are replaced for each request.
    ///
    /// # Errors
    /// Everything that is wrong with the options, each with its field.
    pub fn from_client(client: Client, options: SqsConfig) -> Result<Self, Vec<ConfigError>> {
        let errors = options.check_publishing();
        if errors.is_empty() { Ok(Self::new(client, options)) } else { Err(errors) }
    }

    fn over(config: SqsConfig, credentials: Option<SharedCredentialsProvider>) -> Result<Self, Vec<ConfigError>> {
        let mut errors = config.check_publishing();
        match (config.check_connecting(), credentials) {
            (Ok(destination), Some(credentials)) if errors.is_empty() => {
                let client = client::connect(&config, destination, credentials).map_err(|error| vec![error])?;
                Ok(Self::new(client, config))
            }
            (Ok(_), None) => {
                let problem = "must be set together with secret_access_key, or a provider must give the credentials";
                errors.push(ConfigError { field: "access_key_id", problem: problem.to_owned() });
                Err(errors)
            }
            (connecting, _) => {
                errors.extend(connecting.err().unwrap_or_default());
                Err(errors)
            }
        }
    }

    fn new(client: Client, config: SqsConfig) -> Self {
        let queue = Queue::new(client, &config);
        Self { queue, slots: Semaphore::new(config.max_in_flight), closed: AtomicBool::new(false), config }
    }

    /// The longest that a publish takes: waiting for a slot, then for the answer.
    fn patience(&self) -> Duration {
        self.config.request_timeout.saturating_mul(2)
    }

    /// Sends one batch when a slot is free.
    async fn send(&self, messages: &[Message], start_by: Instant) -> Vec<Outcome> {
        let all = |error: PublishError| vec![Err(error); messages.len()];
        let slot = match timeout_at(start_by, self.slots.acquire()).await {
            Ok(Ok(slot)) if !self.is_closed() => slot,
            Ok(_) => return all(closed()),
            Err(_) => {
                let waited = self.config.request_timeout;
                let detail = format!("no slot of max_in_flight was free within {waited:?}; nothing was sent");
                return all(PublishError::new(ErrorKind::Throttled, detail));
            }
        };
        let outcomes = self.queue.send(messages, &self.config).await;
        drop(slot);
        outcomes
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

#[async_trait]
impl Publisher for SqsPublisher {
    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::CAUTIOUS.with_max_event_bytes(self.config.max_message_bytes);
        if self.config.is_fifo() { capabilities.deduplicating_silently() } else { capabilities }
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed(&self.config.queue_url)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        let (mut indices, mut messages) = (Vec::new(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            match encode(event, &self.config) {
                Ok(message) => {
                    indices.push(index);
                    messages.push(message);
                }
                Err(error) => report.set(index, Err(error)),
            }
        }
        let sizes: Vec<usize> = messages.iter().map(|message| message.bytes).collect();
        let start_by = Instant::now() + self.config.request_timeout;
        let send = |range: Range<usize>| {
            let messages = &messages[range.clone()];
            async move { (range, self.send(messages, start_by).await) }
        };
        // All at once: the slots are the bound, and they are given out in this order.
        let mut batches: FuturesUnordered<_> =
            cut(&sizes, self.config.max_message_bytes).into_iter().map(send).collect();
        while let Some((range, outcomes)) = batches.next().await {
            for (index, outcome) in indices[range].iter().zip(outcomes) {
                report.set(*index, outcome);
            }
        }
        drop(batches);
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.is_closed() {
            return Err(closed());
        }
        self.queue.check(&self.config).await
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Whoever waits for a slot gets it, sees that the publisher is closed, and gives it back; then all are free.
        let all = u32::try_from(self.config.max_in_flight).unwrap_or(u32::MAX);
        // Each request is bounded, so this is a backstop for a runtime that is overloaded.
        if timeout(self.patience(), self.slots.acquire_many(all)).await.is_err() {
            tracing::warn!("closing the publisher to sqs while answers are outstanding");
        }
    }
}

impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsPublisher").field("config", &self.config).finish_non_exhaustive()
    }
}

fn closed() -> PublishError {
    PublishError::new(ErrorKind::Unavailable, "the publisher is closed")
}
