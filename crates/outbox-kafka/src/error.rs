//! Who is to blame: from what the client library or a broker said to the kind that the relay acts on.

use krafka::KrafkaError;
use krafka::error::ErrorCode;
use outbox_core::ErrorKind;

/// A value that can't be used: which field, what is wrong, what would do. Never shows a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field of [`KafkaConfig`](crate::KafkaConfig), which is also the key in a config file.
    pub field: &'static str,
    /// What is wrong with the value and what would be right.
    pub problem: String,
}

/// How far an event, or a request without an event, had come when something went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The cluster was connected to, or asked for a topic or for a sign of life: nothing of an event was sent.
    Asking,
    /// The event waited for room in the client's buffer: it was not queued, so it is never sent.
    Queueing,
    /// The event was queued, in a batch with others. From here on the client sends and repeats by itself.
    Queued,
    /// The same, in a batch of its own: what is said of the batch is said of the event.
    QueuedAlone,
}

/// What the relay should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: ErrorKind,
    /// Only this event's topic is at fault, not the whole destination.
    pub(crate) only_topic: bool,
    /// The broker refused the batch that the event was in, for one of its events: only alone does it show which.
    pub(crate) send_alone: bool,
}

impl Verdict {
    const fn of(kind: ErrorKind) -> Self {
        Self { kind, only_topic: false, send_alone: false }
    }

    const TOPIC: Self = Self { kind: ErrorKind::Misconfigured, only_topic: true, send_alone: false };
}

/// The one place where the client's errors become kinds.
///
/// An event that was queued may have been sent, unless the client says that it was not; and the client repeats a
/// request by itself, so a last word like "login refused" may follow a request that arrived. Hence *unconfirmed* is
/// the rule for queued events, and every exception is a broker's own answer.
pub(crate) fn classify(error: &KrafkaError, stage: Stage) -> Verdict {
    match error {
        KrafkaError::Broker { code, .. } => of_code(*code, stage),
        KrafkaError::UnknownTopic { .. } => Verdict::TOPIC,
        KrafkaError::DeliveryTimeout { possibly_written, message } => match (last_code(message), possibly_written) {
            // A leader looks at its replicas before it appends. It was asked again and again and said no.
            (Some("NotEnoughReplicas" | "ThrottlingQuotaExceeded"), _) => Verdict::of(ErrorKind::Throttled),
            (_, true) => Verdict::of(ErrorKind::Unconfirmed),
            (Some("UnknownTopicOrPartition" | "UnknownTopicId"), false) => Verdict::TOPIC,
            (_, false) => Verdict::of(ErrorKind::Unavailable),
        },
        KrafkaError::Timeout { operation } if stage == Stage::Queueing && operation.contains("buffer memory") => {
            Verdict::of(ErrorKind::Throttled)
        }
        // The client refused the record itself: no repetition makes it fit.
        KrafkaError::Config { .. } | KrafkaError::Protocol { .. } if stage == Stage::Queueing => {
            Verdict::of(ErrorKind::Rejected)
        }
        // A file that can't be read, a client whose settings contradict ours, a broker that is too old.
        KrafkaError::Config { .. } if stage == Stage::Asking => Verdict::of(ErrorKind::Misconfigured),
        KrafkaError::Protocol { kind: krafka::ProtocolErrorKind::UnknownApiVersion, .. } if stage == Stage::Asking => {
            Verdict::of(ErrorKind::Misconfigured)
        }
        _ => Verdict::of(unanswered(stage)),
    }
}

fn of_code(code: ErrorCode, stage: Stage) -> Verdict {
    use ErrorCode as Code;
    match code {
        // Of a topic that does not exist, does not let us write, or can't take what we send to it.
        Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed
        | Code::InvalidTimestamp
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat
        | Code::InvalidRequiredAcks
        | Code::UnsupportedCompressionType => Verdict::TOPIC,
        Code::ClusterAuthorizationFailed | Code::UnsupportedVersion | Code::SecurityDisabled => {
            Verdict::of(ErrorKind::Misconfigured)
        }
        Code::NotEnoughReplicas | Code::ThrottlingQuotaExceeded => Verdict::of(ErrorKind::Throttled),
        Code::MessageTooLarge | Code::RecordListTooLarge | Code::InvalidRecord => blame(ErrorKind::Rejected, stage),
        // Of the producer's own numbering, or of nothing in particular: none says whether the event was kept.
        Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::ProducerFenced
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSaslMechanism
        | Code::IllegalSaslState
        | Code::UnknownServerError => Verdict::of(unanswered(stage)),
        code if code.is_retriable() => Verdict::of(unanswered(stage)),
        _ => blame(ErrorKind::Failed, stage),
    }
}

/// A refusal of a batch, which is the event's own only when it was alone in it.
fn blame(kind: ErrorKind, stage: Stage) -> Verdict {
    match stage {
        Stage::QueuedAlone => Verdict::of(kind),
        Stage::Queued => Verdict { send_alone: true, ..Verdict::of(ErrorKind::Unconfirmed) },
        Stage::Asking | Stage::Queueing => Verdict::of(ErrorKind::Unavailable),
    }
}

const fn unanswered(stage: Stage) -> ErrorKind {
    match stage {
        Stage::Asking | Stage::Queueing => ErrorKind::Unavailable,
        Stage::Queued | Stage::QueuedAlone => ErrorKind::Unconfirmed,
    }
}

/// The code in `… last error: broker error: NotEnoughReplicas - …`: the client keeps it as a text alone.
fn last_code(message: &str) -> Option<&str> {
    let (_, last) = message.rsplit_once("last error: ")?;
    last.strip_prefix("broker error: ")?.split_once(" - ").map(|(code, _)| code)
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
