//! The publisher: encode, hand over, report.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krafka::{Kafka, Record};
use outbox_core::{Capabilities, Envelope, ErrorKind, Outcome, PublishError, PublishReport, Publisher, TopicTemplate};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use crate::config::KafkaConfig;
use crate::encode::encode;
use crate::error::ConfigError;
use crate::link::{Link, closed};
use crate::topic;
use crate::transmit::transmit;

/// Publishes to topics of one Kafka cluster. See the [crate's documentation](crate) for what it promises.
pub struct KafkaPublisher {
    shared: Arc<Shared>,
    template: TopicTemplate,
    /// The calls under way. Each is a task of its own, so that a dropped call leaves nothing half done.
    calls: TaskTracker,
}

struct Shared {
    config: KafkaConfig,
    link: Link,
}

impl KafkaPublisher {
    /// Checks the config. It does no I/O: the connection is opened by the first publish or check, so that a relay
    /// starts while the cluster is down.
    ///
    /// # Errors
    /// Everything that is wrong with the config, each with its field.
    pub fn connect(config: KafkaConfig) -> Result<Self, Vec<ConfigError>> {
        match (config.check_publishing(), config.check_connecting()) {
            (Ok(template), Ok(())) => Ok(Self::new(config, template, None)),
            (publishing, connecting) => {
                let mut errors = publishing.err().unwrap_or_default();
                errors.extend(connecting.err().unwrap_or_default());
                Err(errors)
            }
        }
    }

    /// Publishes by way of a client that the caller connected, with TLS, credentials or a proxy of their own.
    ///
    /// Of the options, `brokers`, `tls` and its files, `sasl` and its user are not used. The client's own
    /// `request_timeout` must be at most `confirm_timeout`; otherwise every event is `Misconfigured`.
    /// [`Publisher::close`] ends the producers that were made here and leaves the client to its owner.
    ///
    /// # Errors
    /// Everything that is wrong with the options, each with its field.
    pub fn from_client(client: Kafka, options: KafkaConfig) -> Result<Self, Vec<ConfigError>> {
        let template = options.check_publishing()?;
        Ok(Self::new(options, template, Some(client)))
    }

    fn new(config: KafkaConfig, template: TopicTemplate, client: Option<Kafka>) -> Self {
        let link = Link::new(client);
        Self { shared: Arc::new(Shared { config, link }), template, calls: TaskTracker::new() }
    }

    /// The longest that a publish takes: connecting and finding topics, then waiting for the answers.
    fn patience(&self) -> Duration {
        let config = &self.shared.config;
        config.confirm_timeout.saturating_add(config.connect_timeout.saturating_mul(3))
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    /// No order within a batch: a partition holds many aggregates, and when a batch of it fails the client goes on with
    /// the next one, in which a later event of the same aggregate may stand.
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes(self.shared.config.max_payload_bytes())
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        if self.template.is_static() {
            return Cow::Borrowed(self.template.as_str());
        }
        let rendered = topic::render(&self.template, event);
        rendered.map_or_else(|_| Cow::Borrowed(self.template.as_str()), Cow::Owned)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        if self.calls.is_closed() {
            return PublishReport::all_failed(events.len(), &closed());
        }
        let (mut indices, mut records) = (Vec::new(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            match encode(event, &self.template, &self.shared.config) {
                Ok(record) => {
                    indices.push(index);
                    records.push(record);
                }
                Err(error) => report.set(index, Err(error)),
            }
        }
        if records.is_empty() {
            return report;
        }
        let deadline = Instant::now() + self.patience();
        let shared = Arc::clone(&self.shared);
        let sending = self.calls.spawn(async move { shared.send(records, deadline).await });
        // The task ends by the deadline itself; this is a backstop for a runtime that is overloaded.
        let outcomes = match timeout_at(deadline + self.shared.config.connect_timeout, sending).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(_)) | Err(_) => {
                let detail = "the task that was sending it gave no answer";
                vec![Err(PublishError::new(ErrorKind::Unconfirmed, detail)); indices.len()]
            }
        };
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            report.set(index, outcome);
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.calls.is_closed() {
            return Err(closed());
        }
        let session = self.shared.link.session(&self.shared.config).await?;
        let topic = self.template.is_static().then(|| self.template.as_str());
        session.probe(topic, &self.shared.config).await
    }

    async fn close(&self) {
        self.calls.close();
        if timeout(self.patience(), self.calls.wait()).await.is_err() {
            tracing::warn!("closing the connection to kafka while events are outstanding");
        }
        self.shared.link.close(&self.shared.config).await;
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Shared {
    async fn send(&self, records: Vec<Record>, deadline: Instant) -> Vec<Outcome> {
        match self.link.session(&self.config).await {
            Ok(session) => transmit(&session, records, deadline, &self.config).await,
            Err(error) => vec![Err(error); records.len()],
        }
    }
}
