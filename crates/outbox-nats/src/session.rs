//! A live connection: the client, the inbox that answers come to, and what the server said meanwhile.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ClientError, Event, PublishErrorKind, ServerError, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use crate::encode::Message;
use crate::error::{Denial, Fault, denial};
use crate::waiting::{Awaits, Wait, Waiting};

/// How often the state of a connection that is being mended is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is known about a connection beside its state. Fed by the client's events; of a client that the user brought
/// there are none.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    waiting: Arc<Waiting>,
    /// The client has given up, or we have.
    ended: AtomicBool,
    /// The server does not deliver answers on this connection.
    answers_denied: AtomicBool,
    /// The server's last words, to explain a loss.
    last_words: Mutex<Option<String>>,
}

impl Watch {
    /// Takes one event of the client.
    pub(crate) fn event(&self, event: &Event) {
        match event {
            // What was in flight on the old connection gets no answer on the next one.
            Event::Disconnected => self.waiting.lose_all(),
            Event::Closed | Event::ClientError(ClientError::MaxReconnects) => self.end(),
            Event::ServerError(ServerError::Other(words)) => match denial(words) {
                Some(Denial::Publish(subject)) => self.waiting.deny(subject, words),
                Some(Denial::Subscription(_)) => {
                    // Our only subscription. It stays refused on this connection, whatever is granted later.
                    self.say(words);
                    self.answers_denied.store(true, Ordering::Relaxed);
                    self.waiting.deny_answers(words);
                    self.ended.store(true, Ordering::Relaxed);
                }
                None => self.say(words),
            },
            Event::ServerError(ServerError::AuthorizationViolation) => self.say("authorization violation"),
            _ => {}
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.waiting.lose_all();
    }

    fn say(&self, words: &str) {
        *self.last_words.lock().unwrap_or_else(PoisonError::into_inner) = Some(words.to_owned());
    }

    fn last_words(&self) -> Option<String> {
        self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A connection with its inbox. Dropping it ends what belongs to it.
pub(crate) struct Session {
    client: Client,
    inbox: String,
    watch: Arc<Watch>,
    reader: JoinHandle<()>,
}

impl Session {
    /// Opens the inbox. The server's answer to that is not waited for: there is none unless it refuses.
    pub(crate) async fn over(client: Client, watch: Arc<Watch>) -> Result<Self, async_nats::SubscribeError> {
        let inbox = client.new_inbox();
        let answers = client.subscribe(format!("{inbox}.*")).await?;
        let reader = tokio::spawn(read(answers, Arc::clone(&watch)));
        Ok(Self { client, inbox, watch, reader })
    }

    /// Whether it can still be used, now or once the client has reconnected.
    pub(crate) fn alive(&self) -> bool {
        !self.watch.ended.load(Ordering::Relaxed)
    }

    fn connected(&self) -> bool {
        self.alive() && self.client.connection_state() == State::Connected
    }

    /// Waits while the client reconnects; `false` when it has not within the limit, or never will.
    pub(crate) async fn until_connected(&self, limit: Duration) -> bool {
        let connected = async {
            let mut look = interval(LOOK_AGAIN);
            while self.alive() && !self.connected() {
                look.tick().await;
            }
        };
        timeout(limit, connected).await.is_ok() && self.connected()
    }

    /// Ends it for all: whatever waits is lost, and the next call opens another one.
    pub(crate) fn give_up(&self) {
        self.watch.end();
    }

    /// What the server takes at most, headers included.
    pub(crate) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// The server's last words, as the end of a sentence.
    pub(crate) fn because(&self) -> String {
        self.watch.last_words().map_or_else(String::new, |words| format!("; the server said: {words}"))
    }

    /// Begins to wait for an answer to what is sent next on a subject.
    pub(crate) fn wait(&self, subject: &str, awaits: Awaits) -> Wait {
        self.watch.waiting.begin(subject, awaits)
    }

    /// Hands an event to the connection, which takes its headers.
    ///
    /// # Errors
    /// Why nothing was sent.
    ///
    /// # Cancel safety
    /// Dropped, it has sent the whole message or nothing.
    pub(crate) async fn send(&self, message: &mut Message, wait: &Wait) -> Result<(), Fault<'static>> {
        self.usable()?;
        let (subject, reply) = (message.subject.clone(), self.reply_subject(wait));
        let (headers, body) = (std::mem::take(&mut message.headers), message.body.clone());
        let sent = self.client.publish_with_reply_and_headers(subject, reply, headers, body).await;
        sent.map_err(|error| self.not_sent(&error))
    }

    /// Asks something that is no event.
    ///
    /// # Errors
    /// Why nothing was sent.
    pub(crate) async fn ask(&self, subject: &str, payload: Bytes, wait: &Wait) -> Result<(), Fault<'static>> {
        self.usable()?;
        let sent = self.client.publish_with_reply(subject.to_owned(), self.reply_subject(wait), payload).await;
        sent.map_err(|error| self.not_sent(&error))
    }

    /// Without a connection the client would keep what it is given and send it whenever it has one again.
    fn usable(&self) -> Result<(), Fault<'static>> {
        if self.watch.answers_denied.load(Ordering::Relaxed) {
            return Err(Fault::AnswersDenied);
        }
        if self.connected() { Ok(()) } else { Err(Fault::Unreachable) }
    }

    /// Where the answer to a wait goes.
    pub(crate) fn reply_subject(&self, wait: &Wait) -> String {
        format!("{}.{}", self.inbox, wait.token())
    }

    fn not_sent(&self, error: &async_nats::PublishError) -> Fault<'static> {
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Fault::TooLarge,
            // The client's task is gone, say with the runtime that it ran on. A subject is always valid here.
            PublishErrorKind::Send | PublishErrorKind::InvalidSubject => {
                self.give_up();
                Fault::Unreachable
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // With the subscription goes the last handle to a client of our own, which then ends its connection.
        self.reader.abort();
        self.watch.end();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("connected", &self.connected()).finish_non_exhaustive()
    }
}

/// Hands answers to those who wait, until the client ends.
async fn read(mut answers: Subscriber, watch: Arc<Watch>) {
    while let Some(message) = answers.next().await {
        let token = message.subject.as_str().rsplit('.').next().and_then(|token| token.parse().ok());
        if let Some(token) = token {
            watch.waiting.answer(token, message.status.map(|status| status.as_u16()), message.payload);
        }
    }
    watch.end();
}
