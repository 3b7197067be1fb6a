//! The publisher: encode, spread over channels, wait, report.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::types::ShortString;
use outbox_core::{Capabilities, Envelope, ErrorKind, Outcome, PublishError, PublishReport, Publisher, TopicTemplate};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::RabbitMqConfig;
use crate::connection::{Link, blocked, unavailable};
use crate::encode::{Message, encode, rejected};
use crate::error::ConfigError;
use crate::queue::{Job, Queue};
use crate::transmit::transmit;

/// A part of a batch that is worth a channel of its own; smaller ones only add round trips.
const MIN_EVENTS_PER_CHANNEL: usize = 64;

/// Publishes to one RabbitMQ exchange. See the [crate's documentation](crate) for what it promises.
pub struct RabbitMqPublisher {
    shared: Arc<Shared>,
    topic: TopicTemplate,
}

struct Shared {
    config: RabbitMqConfig,
    exchange: ShortString,
    link: Link,
    queue: Queue,
}

impl RabbitMqPublisher {
    /// Checks the config. It does no I/O: the connection is opened by the first publish or check, so that a relay
    /// starts while the broker is down.
    ///
    /// # Errors
    /// Everything that is wrong with the config, each with its field.
    pub fn connect(config: RabbitMqConfig) -> Result<Self, Vec<ConfigError>> {
        match (config.check_publishing(), config.check_connecting()) {
            (Ok(topic), Ok(uri)) => Self::new(config, topic, Link::to(uri)),
            (publishing, connecting) => {
                let mut errors = publishing.err().unwrap_or_default();
                errors.extend(connecting.err().unwrap_or_default());
                Err(errors)
            }
        }
    }

    /// Publishes over a connection that the caller opened, with TLS, credentials or a proxy of their own.
    ///
    /// Of the options, `url`, `heartbeat` and the TLS files are not used. When the connection is lost every event is
    /// `Unavailable` from then on, unless the connection recovers by itself (`enable_auto_recover` of the client
    /// library). [`Publisher::close`] closes it.
    ///
    /// # Errors
    /// Everything that is wrong with the options, each with its field.
    pub fn from_connection(connection: lapin::Connection, options: RabbitMqConfig) -> Result<Self, Vec<ConfigError>> {
        let topic = options.check_publishing()?;
        Self::new(options, topic, Link::over(connection))
    }

    fn new(config: RabbitMqConfig, topic: TopicTemplate, link: Link) -> Result<Self, Vec<ConfigError>> {
        let exchange = ShortString::try_new(config.exchange.as_str())
            .map_err(|error| vec![ConfigError { field: "exchange", problem: error.to_string() }])?;
        Ok(Self { shared: Arc::new(Shared { config, exchange, link, queue: Queue::default() }), topic })
    }

    /// The longest that a publish takes: waiting for a channel, opening it, waiting for the confirms.
    fn patience(&self) -> Duration {
        let config = &self.shared.config;
        config.confirm_timeout.saturating_add(config.connect_timeout.saturating_mul(3))
    }

    /// Hands a part of a batch to the workers.
    fn submit(&self, indices: Vec<usize>, messages: Vec<Message>) -> Option<Part> {
        let (reply, answers) = oneshot::channel();
        let (ticket, start) = self.shared.queue.push(messages, reply, usize::from(self.shared.config.channels))?;
        if start {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move { Worker { shared: &shared, signed_off: false }.run().await });
        }
        Some(Part { indices, ticket, answers })
    }

    async fn collect(&self, mut part: Part, deadline: Instant, report: &mut PublishReport) {
        let outcomes = match timeout_at(deadline, &mut part.answers).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(_)) => {
                let detail = "the task that was sending it ended before its answer came";
                vec![Err(PublishError::new(ErrorKind::Unconfirmed, detail)); part.indices.len()]
            }
            Err(_) if self.shared.queue.withdraw(part.ticket) => {
                let detail = format!("no channel was free within {:?}; nothing was sent", self.patience());
                vec![Err(PublishError::new(ErrorKind::Throttled, detail)); part.indices.len()]
            }
            Err(_) => {
                let detail = format!("no answer within {:?}", self.patience());
                vec![Err(PublishError::new(ErrorKind::Unconfirmed, detail)); part.indices.len()]
            }
        };
        for (index, outcome) in part.indices.into_iter().zip(outcomes) {
            report.set(index, outcome);
        }
    }
}

/// A part of a batch on its way.
struct Part {
    indices: Vec<usize>,
    ticket: u64,
    answers: oneshot::Receiver<Vec<Outcome>>,
}

#[async_trait]
impl Publisher for RabbitMqPublisher {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS.with_max_event_bytes(self.shared.config.max_message_bytes)
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        if self.topic.is_static() {
            return Cow::Borrowed(self.topic.as_str());
        }
        self.topic.render(event).map_or_else(|_| Cow::Borrowed(self.topic.as_str()), Cow::Owned)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        let config = &self.shared.config;
        let (mut indices, mut messages) = (Vec::new(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            match encode(event, &self.topic, &config.format, config.max_message_bytes) {
                Ok(message) => {
                    indices.push(index);
                    messages.push(message);
                }
                Err(error) => report.set(index, Err(error)),
            }
        }
        let channels = usize::from(config.channels);
        let per_channel = messages.len().div_ceil(channels).max(MIN_EVENTS_PER_CHANNEL);
        let deadline = Instant::now() + self.patience();
        let mut parts = Vec::new();
        while !messages.is_empty() {
            let rest = messages.split_off(per_channel.min(messages.len()));
            let rest_indices = indices.split_off(messages.len());
            let part_indices = std::mem::replace(&mut indices, rest_indices);
            match self.submit(part_indices.clone(), std::mem::replace(&mut messages, rest)) {
                Some(part) => parts.push(part),
                None => part_indices.into_iter().for_each(|index| report.set(index, Err(closed()))),
            }
        }
        for part in parts {
            self.collect(part, deadline, &mut report).await;
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.shared.queue.is_closed() {
            return Err(closed());
        }
        let session = self.shared.link.session(&self.shared.config).await?;
        if session.blocked() {
            return Err(blocked());
        }
        session.check_exchange(&self.shared.config).await
    }

    async fn close(&self) {
        self.shared.queue.close();
        // Each worker's steps are bounded, so this is a backstop for a runtime that is overloaded.
        if timeout(self.patience(), self.shared.queue.drained()).await.is_err() {
            tracing::warn!("closing the connection to rabbitmq while confirms are outstanding");
        }
        self.shared.link.close(&self.shared.config).await;
    }
}

impl fmt::Debug for RabbitMqPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqPublisher").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

fn closed() -> PublishError {
    unavailable("the publisher is closed")
}

/// Sends groups on one channel after another until the queue is empty. A task of its own, so that a dropped call
/// leaves no half-sent message and no confirm without an owner.
struct Worker<'a> {
    shared: &'a Shared,
    signed_off: bool,
}

impl Worker<'_> {
    async fn run(mut self) {
        while let Some(group) = self.shared.queue.next_group() {
            self.serve(group).await;
        }
        self.signed_off = true;
    }

    async fn serve(&self, group: Vec<Job>) {
        let (mut messages, mut replies) = (Vec::new(), Vec::new());
        for job in group {
            replies.push((job.messages.len(), job.reply));
            messages.extend(job.messages);
        }
        let mut outcomes = self.shared.send(messages).await.into_iter();
        for (count, reply) in replies {
            // A call that was dropped meanwhile wants no answer.
            let _ = reply.send(outcomes.by_ref().take(count).collect());
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if !self.signed_off {
            self.shared.queue.worker_lost();
        }
    }
}

impl Shared {
    async fn send(&self, messages: Vec<Message>) -> Vec<Outcome> {
        let all = |error: PublishError| vec![Err(error); messages.len()];
        let session = match self.link.session(&self.config).await {
            Ok(session) => session,
            Err(error) => return all(error),
        };
        if session.blocked() {
            return all(blocked());
        }
        let frame_max = session.frame_max();
        let too_large = |message: &Message| {
            let bytes = message.header_frame_bytes;
            (bytes > frame_max).then(|| {
                rejected(format!("headers and names take {bytes} bytes, a frame of this broker holds {frame_max}"))
            })
        };
        let refused: Vec<Option<PublishError>> = messages.iter().map(too_large).collect();
        let channel = match session.channel(&self.config).await {
            Ok(channel) => channel,
            Err(error) => return all(error),
        };
        let fitting: Vec<Message> =
            messages.into_iter().zip(&refused).filter(|(_, refused)| refused.is_none()).map(|(m, _)| m).collect();
        let mut sent = transmit(&session, channel, &self.exchange, &fitting, &self.config).await.into_iter();
        let missing = || Err(PublishError::new(ErrorKind::Unconfirmed, "the answer to this event is missing"));
        refused.into_iter().map(|refused| refused.map_or_else(|| sent.next().unwrap_or_else(missing), Err)).collect()
    }
}
