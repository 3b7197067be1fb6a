//! From the answers to a group of messages to one outcome for each. Pure.
//!
//! # Which message was returned
//! The client library keeps returned messages in a queue and hands the oldest one to whichever confirm comes next.
//! With several messages in flight that may be another message's confirm, and the culprit's own then reads as a plain
//! success: measured with lapin 4.12, 200 in flight and one in twenty unroutable, for 6 % (classic queue) and 15 %
//! (quorum queue) of the unroutable ones. So the position says nothing: a returned message is known by its own
//! message id and routing key.
//! The broker sends a return before the confirm of the same message. For a channel that one group uses alone this
//! gives:
//! - Once the whole group has its confirms, each return has been carried by one of them. What is not among the
//!   returns was routed.
//! - While answers are missing, a confirm that carries nothing found the library's queue empty: had its message been
//!   returned, an earlier confirm of the group has carried that return. So it is trusted when all others have been
//!   asked once more after it came. A confirm that carries another message's return proves nothing.

use std::collections::HashSet;

use lapin::message::BasicReturnMessage;
use outbox_core::{ErrorKind, Outcome, PublishError, Receipt};

use crate::config::RabbitMqConfig;
use crate::encode::Message;
use crate::error::{Fault, Stage, Suspect, classify};

/// Why the wait for answers ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// There was nothing left to wait for.
    Answered,
    TimedOut,
    Blocked,
}

/// What came back for one message.
#[derive(Debug)]
pub(crate) enum Answer {
    None,
    /// Acknowledged; the confirm may carry some returned message, not necessarily this one.
    Ack(Option<Returned>),
    /// Refused; likewise.
    Nack(Option<Returned>),
    Error(lapin::Error),
}

/// What is needed of a returned message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Returned {
    message_id: String,
    routing_key: String,
    reason: String,
}

impl From<BasicReturnMessage> for Returned {
    fn from(message: BasicReturnMessage) -> Self {
        Self {
            message_id: message.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
            routing_key: message.routing_key.to_string(),
            reason: format!("{} ({})", message.reply_text, message.reply_code),
        }
    }
}

/// The answers to a group so far.
#[derive(Debug)]
pub(crate) struct Answers {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    sent: bool,
    /// The answer came before all others were asked once more.
    trusted: bool,
    answer: Answer,
}

impl Answers {
    pub(crate) fn new(messages: usize) -> Self {
        Self { slots: (0..messages).map(|_| Slot { sent: false, trusted: false, answer: Answer::None }).collect() }
    }

    /// The message at `index` is handed to the channel.
    pub(crate) fn sent(&mut self, index: usize) {
        self.slots[index].sent = true;
    }

    pub(crate) fn note(&mut self, index: usize, answer: impl Into<Answer>) {
        self.slots[index].answer = answer.into();
    }

    /// All that were without an answer have been asked once more since the answers noted so far came.
    pub(crate) fn trust_what_came(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.trusted = !matches!(slot.answer, Answer::None));
    }

    /// Whether each message was sent and has its confirm, good or bad: then no late answer is to come.
    pub(crate) fn complete(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot.answer, Answer::Ack(_) | Answer::Nack(_)))
    }

    /// One outcome for each message.
    pub(crate) fn outcomes(&self, messages: &[Message], end: End, config: &RabbitMqConfig) -> Vec<Outcome> {
        let returns: Vec<&Returned> = self
            .slots
            .iter()
            .filter_map(|slot| match &slot.answer {
                Answer::Ack(returned) | Answer::Nack(returned) => returned.as_ref(),
                _ => None,
            })
            .collect();
        let returned: HashSet<_> = returns.iter().map(|r| (r.message_id.as_str(), r.routing_key.as_str())).collect();
        let known: HashSet<_> = messages.iter().map(key).collect();
        let judge = Judge {
            // A return of a message that is not of this group makes every confirm that carries a return doubtful.
            all_told: self.complete() && returned.is_subset(&known),
            cause: self.cause(),
            reason: returns.first().map_or("", |r| r.reason.as_str()),
            end,
            config,
        };
        let outcome = |(slot, message): (&Slot, &Message)| {
            if returned.contains(&key(message)) { Err(judge.unroutable(message)) } else { judge.outcome(slot, message) }
        };
        self.slots.iter().zip(messages).map(outcome).collect()
    }

    /// The error that explains all others: what the broker said, else the first.
    fn cause(&self) -> Option<&lapin::Error> {
        let errors = || {
            self.slots.iter().filter_map(|slot| match &slot.answer {
                Answer::Error(error) => Some(error),
                _ => None,
            })
        };
        errors().find(|error| error.is_amqp_error()).or_else(|| errors().next())
    }
}

fn key(message: &Message) -> (&str, &str) {
    (message.message_id.as_str(), message.routing_key.as_str())
}

/// What holds for the whole group.
struct Judge<'a> {
    all_told: bool,
    cause: Option<&'a lapin::Error>,
    reason: &'a str,
    end: End,
    config: &'a RabbitMqConfig,
}

impl Judge<'_> {
    /// The outcome of a message that is not among the returns.
    fn outcome(&self, slot: &Slot, message: &Message) -> Outcome {
        let stage = if slot.sent { Stage::Sent } else { Stage::Opening };
        match &slot.answer {
            Answer::Ack(_) if self.all_told => Ok(Receipt::confirmed()),
            Answer::Ack(None) if slot.trusted => Ok(Receipt::confirmed()),
            Answer::Ack(_) => {
                let detail = "confirmed, but answers are missing that would tell whether it was returned";
                Err(PublishError::new(ErrorKind::Unconfirmed, detail))
            }
            Answer::Nack(_) => {
                Err(fault(message, Fault::Nacked, stage, "rabbitmq refused it: the queue is full or failed"))
            }
            Answer::Error(_) | Answer::None => Err(self.unanswered(message, stage)),
        }
    }

    fn unanswered(&self, message: &Message, stage: Stage) -> PublishError {
        if let Some(error) = self.cause {
            let cause = Fault::of(error);
            // Not sent, but meant for the channel that the broker closed: its words hold for this one as well.
            let stage = if matches!(cause, Fault::Closed(..)) { Stage::Sent } else { stage };
            return fault(message, cause, stage, "the channel broke before the confirm came")
                .with_source(error.clone());
        }
        if stage != Stage::Sent {
            return fault(message, Fault::Lost, stage, "the channel was closed before it was sent");
        }
        if self.end == End::Blocked {
            let detail = "sent, and no confirm came before rabbitmq blocked the connection (memory or disk alarm)";
            return fault(message, Fault::Blocked, stage, detail);
        }
        let waited = self.config.confirm_timeout;
        fault(message, Fault::TimedOut, stage, &format!("no confirm within confirm_timeout ({waited:?})"))
    }

    fn unroutable(&self, message: &Message) -> PublishError {
        let (exchange, topic, reason) = (&self.config.exchange, &message.routing_key, self.reason);
        let detail = format!("unroutable: exchange `{exchange}` has no queue for `{topic}`, returned with {reason}");
        fault(message, Fault::Returned, Stage::Sent, &detail)
    }
}

fn fault(message: &Message, fault: Fault<'_>, stage: Stage, detail: &str) -> PublishError {
    let suspect = Suspect { routing_key: message.routing_key.as_str(), body_bytes: message.body.len() };
    let verdict = classify(fault, stage, Some(suspect));
    let error = if verdict.kind == ErrorKind::Rejected {
        let bytes = message.body.len();
        PublishError::new(verdict.kind, format!("the payload has {bytes} bytes, more than the broker takes"))
    } else {
        PublishError::new(verdict.kind, detail)
    };
    if verdict.only_topic { error.with_topic(message.routing_key.as_str()) } else { error }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
