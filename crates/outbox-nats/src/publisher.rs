//! The publisher: encode, keep the window, send, wait, report.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_trait::async_trait;
use futures_util::stream::{FuturesUnordered, StreamExt};
use outbox_core::{Capabilities, Envelope, Outcome, PublishError, PublishReport, Publisher, Receipt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::answer::Answer;
use crate::config::NatsConfig;
use crate::connection::{Link, unreachable};
use crate::encode::{Encoder, Message, rejected};
use crate::error::{ConfigError, Fault, classify};
use crate::probe::{self, Silence, no_stream};
use crate::session::Session;
use crate::waiting::{Awaits, Reply};

/// How long JetStream may take to say why subjects are silent: it answers within milliseconds, or has trouble itself. A
/// publish with unanswered events takes so much longer.
pub const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// So many subjects of one publish are asked about. The events of others are sent again, in the end each one alone.
const MAX_QUESTIONS: usize = 32;

/// Publishes to subjects of NATS that streams take. See the [crate's documentation](crate) for what it promises.
pub struct NatsPublisher {
    config: NatsConfig,
    encoder: Encoder,
    link: Link,
    /// One permit for each event that may wait for an answer.
    window: Semaphore,
    closed: AtomicBool,
    /// Why the next check is bad: an event got no answer, and none was acknowledged since.
    unanswered: Mutex<Option<PublishError>>,
}

/// How an event's sending ended.
enum Ended {
    Known(Outcome),
    /// It was sent, the connection is well, and no answer came in time.
    Silent(Message),
}

impl NatsPublisher {
    /// Checks the config. It does no I/O: the connection is opened by the first publish or check, so that a relay
    /// starts while the server is down.
    ///
    /// # Errors
    /// Everything that is wrong with the config, each with its field.
    pub fn connect(config: NatsConfig) -> Result<Self, Vec<ConfigError>> {
        match (config.check_publishing(), config.check_connecting()) {
            (Ok(topic), Ok(access)) => Ok(Self::new(Encoder::new(topic, &config), config, Link::to(access))),
            (publishing, connecting) => {
                let mut errors = publishing.err().unwrap_or_default();
                errors.extend(connecting.err().unwrap_or_default());
                Err(errors)
            }
        }
    }

    /// Publishes over a client that the caller made, with TLS, credentials and reconnecting of their own.
    ///
    /// Of the options, `url`, the logins and the TLS files are not used. While the client is not connected every event
    /// is `Unavailable`. A missing permission can't be seen through such a client: it looks like a lost answer
    /// (`Unconfirmed`). [`Publisher::close`] leaves the client open.
    ///
    /// # Errors
    /// Everything that is wrong with the options, each with its field.
    pub fn from_client(client: Client, options: NatsConfig) -> Result<Self, Vec<ConfigError>> {
        let topic = options.check_publishing()?;
        Ok(Self::new(Encoder::new(topic, &options), options, Link::over(client)))
    }

    fn new(encoder: Encoder, config: NatsConfig, link: Link) -> Self {
        let window = Semaphore::new(config.max_in_flight);
        Self { config, encoder, link, window, closed: AtomicBool::new(false), unanswered: Mutex::default() }
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<PublishError>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The longest that an event takes once there is a connection: its turn, then its answer.
    fn patience(&self) -> Duration {
        self.config.confirm_timeout.saturating_mul(2)
    }

    /// Sends one event when the window has room, and waits for its answer.
    async fn publish_one(&self, session: &Session, mut message: Message, turn_by: Instant) -> Ended {
        let max_payload = session.max_payload();
        if message.bytes() > max_payload {
            return Ended::Known(Err(too_large(&message, max_payload)));
        }
        let _permit = match timeout_at(turn_by, self.window.acquire()).await {
            Ok(Ok(permit)) if !self.is_closed() => permit,
            Ok(_) => return Ended::Known(Err(closed())),
            Err(_) => return self.ended(Fault::WindowFull, &message, session),
        };
        let answer_by = Instant::now() + self.config.confirm_timeout;
        let mut wait = session.wait(&message.subject, Awaits::Confirm);
        match timeout_at(answer_by, session.send(&mut message, &wait)).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => return self.ended(fault, &message, session),
            Err(_) => return self.ended(Fault::Stuck, &message, session),
        }
        let reply = match timeout_at(answer_by, wait.reply()).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return self.ended(Fault::Lost, &message, session),
            Err(_) => return Ended::Silent(message),
        };
        let outcome = match reply {
            Reply::Event(Answer::Stored { duplicate: true }) => Ok(Receipt::duplicate()),
            Reply::Event(Answer::Stored { duplicate: false }) => Ok(Receipt::confirmed()),
            Reply::Event(Answer::NoStream) => Err(self.explain(Fault::NoStream, &message, session)),
            Reply::Event(Answer::Refused(refusal)) => Err(self.explain(Fault::Refused(&refusal), &message, session)),
            Reply::PublishDenied(words) => {
                let detail = format!("no permission to publish on `{}`: {words}", message.subject);
                Err(verdict(Fault::PublishDenied, &message, detail))
            }
            Reply::AnswersDenied(_) => Err(self.explain(Fault::AnswersDenied, &message, session)),
            // Only questions are answered so.
            Reply::Question { .. } => Err(self.explain(Fault::TimedOut, &message, session)),
        };
        if outcome.is_ok() {
            self.unanswered().take();
        }
        Ended::Known(outcome)
    }

    /// Finds out why events were not answered. A subject that only an ordinary subscriber listens on is silent for
    /// ever, and looks like a lost answer: without a stream it waits for one, and no event is to blame.
    async fn explain_silence(&self, session: &Session, silent: Vec<(usize, Message)>, report: &mut PublishReport) {
        let by = Instant::now() + QUESTION_TIMEOUT;
        let mut subjects: Vec<_> = silent.iter().map(|(_, message)| message.subject.clone()).collect();
        subjects.sort_unstable();
        subjects.dedup();
        subjects.truncate(MAX_QUESTIONS);
        let ask = |subject: String| async move {
            let silence = probe::explain_silence(session, &subject, by, &self.config).await;
            (subject, silence)
        };
        let answers: HashMap<_, _> = subjects.into_iter().map(ask).collect::<FuturesUnordered<_>>().collect().await;
        for (index, message) in silent {
            let mut error = self.explain(Fault::TimedOut, &message, session);
            match answers.get(&message.subject) {
                Some(Silence::NoStream(problem)) => {
                    let detail = format!("{}: {problem}", error.report());
                    error = verdict(Fault::NoStream, &message, detail);
                }
                Some(Silence::Unexplained(more)) => {
                    error = verdict(Fault::TimedOut, &message, format!("{}{more}", error.report()));
                    *self.unanswered() = Some(error.clone());
                }
                None => *self.unanswered() = Some(error.clone()),
            }
            report.set(index, Err(error));
        }
    }

    fn ended(&self, fault: Fault<'_>, message: &Message, session: &Session) -> Ended {
        Ended::Known(Err(self.explain(fault, message, session)))
    }

    fn explain(&self, fault: Fault<'_>, message: &Message, session: &Session) -> PublishError {
        let (subject, limit) = (&message.subject, self.config.confirm_timeout);
        let detail = match fault {
            Fault::TooLarge => return too_large(message, session.max_payload()),
            Fault::Unreachable => format!("the connection to nats is down{}", session.because()),
            Fault::WindowFull => format!("max_in_flight was reached for {limit:?} (confirm_timeout); nothing was sent"),
            Fault::Stuck => format!("the connection took nothing for {limit:?} (confirm_timeout); nothing was sent"),
            Fault::TimedOut => format!("no acknowledgement within confirm_timeout ({limit:?}){}", session.because()),
            Fault::Lost => format!("the connection broke before the acknowledgement came{}", session.because()),
            Fault::NoStream => no_stream(subject),
            Fault::Refused(refusal) => {
                let (code, text) = (refusal.err_code, &refusal.description);
                let (bytes, headers) = (message.bytes(), message.header_bytes);
                let figures = match code {
                    10054 | 10097 => format!(" (it has {bytes} bytes, {headers} of them headers)"),
                    10060 => {
                        format!(" (expected_stream is `{}`)", self.config.expected_stream.as_deref().unwrap_or(""))
                    }
                    _ => String::new(),
                };
                format!("jetstream refused it on `{subject}`: {text} ({code}){figures}")
            }
            Fault::PublishDenied => format!("no permission to publish on `{subject}`{}", session.because()),
            Fault::AnswersDenied => format!("no permission to receive acknowledgements{}", session.because()),
        };
        verdict(fault, message, detail)
    }
}

#[async_trait]
impl Publisher for NatsPublisher {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS.deduplicating().with_max_event_bytes(self.config.max_message_bytes)
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        let template = self.encoder.topic();
        if template.is_static() {
            return Cow::Borrowed(template.as_str());
        }
        template.render(event).map_or_else(|_| Cow::Borrowed(template.as_str()), Cow::Owned)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        let mut messages = Vec::with_capacity(events.len());
        for (index, event) in events.iter().enumerate() {
            match self.encoder.encode(event) {
                Ok(message) => messages.push((index, message)),
                Err(error) => report.set(index, Err(error)),
            }
        }
        if messages.is_empty() {
            return report;
        }
        let opened = if self.is_closed() { Err(closed()) } else { self.link.session(&self.config).await };
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                messages.iter().for_each(|(index, _)| report.set(*index, Err(error.clone())));
                return report;
            }
        };
        let turn_by = Instant::now() + self.config.confirm_timeout;
        // Polled in this order for the first time, so they also go out in it.
        let send = |(index, message): (usize, Message)| {
            let session = &session;
            async move { (index, self.publish_one(session, message, turn_by).await) }
        };
        let mut outcomes: FuturesUnordered<_> = messages.into_iter().map(send).collect();
        let mut silent = Vec::new();
        while let Some((index, ended)) = outcomes.next().await {
            match ended {
                Ended::Known(outcome) => report.set(index, outcome),
                Ended::Silent(message) => silent.push((index, message)),
            }
        }
        drop(outcomes);
        if !silent.is_empty() {
            self.explain_silence(&session, silent, &mut report).await;
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        if self.is_closed() {
            return Err(closed());
        }
        let session = self.link.session(&self.config).await?;
        let topic = self.encoder.topic();
        let subject = topic.is_static().then(|| topic.as_str());
        let probed = probe::probe(&session, subject, &self.config).await;
        // The relay charges an event that was sent alone and not answered when the check that follows is good. Here the
        // server answers while a stream does not, for want of a leader or by `no_ack`: that is no event's fault.
        let unanswered = self.unanswered().take();
        probed.and_then(|()| unanswered.map_or(Ok(()), Err))
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // All permits: nothing is in flight any more. An event that gets its turn meanwhile sees that we are closed.
        let all = u32::try_from(self.config.max_in_flight).unwrap_or(u32::MAX);
        if !self.window.is_closed() && timeout(self.patience(), self.window.acquire_many(all)).await.is_err() {
            tracing::warn!("closing the connection to nats while acknowledgements are outstanding");
        }
        self.window.close();
        self.link.close(&self.config).await;
    }
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher").field("config", &self.config).finish_non_exhaustive()
    }
}

fn closed() -> PublishError {
    unreachable("the publisher is closed")
}

fn verdict(fault: Fault<'_>, message: &Message, detail: String) -> PublishError {
    let verdict = classify(fault);
    let error = PublishError::new(verdict.kind, detail);
    if verdict.only_topic { error.with_topic(message.subject.as_str()) } else { error }
}

fn too_large(message: &Message, max_payload: usize) -> PublishError {
    let (bytes, headers) = (message.bytes(), message.header_bytes);
    rejected(format!(
        "headers ({headers} bytes) and body take {bytes} bytes, the server's max_payload allows {max_payload}"
    ))
}
