//! Who is to blame: from what the client library or the broker said to the kind that the relay acts on.

use lapin::types::ReplyCode;
use outbox_core::ErrorKind;

/// A value that can't be used: which field, what is wrong, what would do. Never shows the URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field of [`RabbitMqConfig`](crate::RabbitMqConfig), which is also the key in a config file.
    pub field: &'static str,
    /// What is wrong with the value and what would be right.
    pub problem: String,
}

/// How far an event, or a request without an event, had come when something went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// While the connection or a channel was opened: nothing of the event was sent.
    Opening,
    /// The exchange was asked for, no event was sent.
    Checking,
    /// The event was handed to the socket, as a whole or in part.
    Sent,
}

/// What happened instead of a confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault<'a> {
    /// The broker gave the message back: no queue took it.
    Returned,
    /// The broker refused responsibility: a full queue with `reject-publish`, or one that failed.
    Nacked,
    /// The broker blocks connections that publish: memory or disk alarm.
    Blocked,
    /// No answer within the time-out that the config names.
    TimedOut,
    /// The broker closed the channel or the connection with a code and a text.
    Closed(ReplyCode, &'a str),
    /// The connection broke, or the library lost its state.
    Lost,
}

impl<'a> Fault<'a> {
    pub(crate) fn of(error: &'a lapin::Error) -> Self {
        match error.kind() {
            lapin::ErrorKind::ProtocolError(amqp) => Self::Closed(amqp.get_id(), amqp.get_message().as_str()),
            _ => Self::Lost,
        }
    }
}

/// The event that a broken channel might be blamed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suspect<'a> {
    pub(crate) routing_key: &'a str,
    pub(crate) body_bytes: usize,
}

/// What the relay should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: ErrorKind,
    /// Only this event's topic is at fault, not the whole destination.
    pub(crate) only_topic: bool,
}

const NOT_FOUND: ReplyCode = 404;
const ACCESS_REFUSED: ReplyCode = 403;
const PRECONDITION_FAILED: ReplyCode = 406;
const CONTENT_TOO_LARGE: ReplyCode = 311;

/// The one place where faults become kinds.
///
/// A channel that the broker closes takes all its unconfirmed events with it, and the broker does not say which
/// event it meant. So each event is judged for itself: the broker's text names the size limit or the topic, and
/// events that it can't mean are merely unconfirmed.
pub(crate) fn classify(fault: Fault<'_>, stage: Stage, suspect: Option<Suspect<'_>>) -> Verdict {
    let verdict = |kind| Verdict { kind, only_topic: false };
    let unanswered = match stage {
        Stage::Opening | Stage::Checking => ErrorKind::Unavailable,
        Stage::Sent => ErrorKind::Unconfirmed,
    };
    match fault {
        Fault::Returned => Verdict { kind: ErrorKind::Misconfigured, only_topic: true },
        Fault::Nacked => verdict(ErrorKind::Throttled),
        // What was sent before the broker said so may have been taken: a missing answer tells nothing.
        Fault::Blocked if stage != Stage::Sent => verdict(ErrorKind::Throttled),
        Fault::TimedOut | Fault::Lost | Fault::Blocked => verdict(unanswered),
        // A login or virtual host that is refused: the destination is away until someone mends it.
        Fault::Closed(..) if stage == Stage::Opening => verdict(ErrorKind::Unavailable),
        Fault::Closed(NOT_FOUND, _) => verdict(ErrorKind::Misconfigured),
        Fault::Closed(ACCESS_REFUSED, text) => match (refused_topic(text), suspect) {
            (Some(topic), Some(suspect)) if topic == suspect.routing_key => {
                Verdict { kind: ErrorKind::Misconfigured, only_topic: true }
            }
            (Some(_), Some(_)) => verdict(unanswered),
            _ => verdict(ErrorKind::Misconfigured),
        },
        Fault::Closed(PRECONDITION_FAILED | CONTENT_TOO_LARGE, text) => match (size_limit(text), suspect) {
            (Some(limit), Some(suspect)) if suspect.body_bytes > limit => verdict(ErrorKind::Rejected),
            _ => verdict(unanswered),
        },
        Fault::Closed(..) => verdict(unanswered),
    }
}

/// The limit in `message size 400 is larger than configured max size 300` (RabbitMQ 3.8 to 4).
fn size_limit(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("max size ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// The routing key in `access to topic 'a.b' in exchange 'x' in vhost '/' refused for user 'u'`.
fn refused_topic(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("access to topic '")?;
    rest.split_once("' in exchange '").map(|(topic, _)| topic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorKind::{Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};
    use Fault::{Blocked, Closed, Lost, Nacked, Returned, TimedOut};
    use Stage::{Checking, Opening, Sent};

    #[test]
    fn every_fault_has_its_kind() {
        let check = |fault, stage, kind, only_topic| {
            let suspect = Suspect { routing_key: "order.placed", body_bytes: 400 };
            let suspect = (stage == Sent).then_some(suspect);
            assert_eq!(classify(fault, stage, suspect), Verdict { kind, only_topic }, "{fault:?} {stage:?}");
        };
        check(Returned, Sent, Misconfigured, true);
        check(Nacked, Sent, Throttled, false);
        check(Blocked, Opening, Throttled, false);
        check(Blocked, Checking, Throttled, false);
        check(Blocked, Sent, Unconfirmed, false);
        check(TimedOut, Opening, Unavailable, false);
        check(TimedOut, Checking, Unavailable, false);
        check(TimedOut, Sent, Unconfirmed, false);
        check(Lost, Opening, Unavailable, false);
        check(Lost, Checking, Unavailable, false);
        check(Lost, Sent, Unconfirmed, false);

        let no_exchange = Closed(404, "NOT_FOUND - no exchange 'orders' in vhost '/'");
        check(no_exchange, Checking, Misconfigured, false);
        check(no_exchange, Sent, Misconfigured, false);
        let no_permission =
            Closed(403, "ACCESS_REFUSED - access to exchange 'orders' in vhost '/' refused for user 'u'");
        check(no_permission, Checking, Misconfigured, false);
        check(no_permission, Sent, Misconfigured, false);
        check(Closed(403, "ACCESS_REFUSED - Login was refused"), Opening, Unavailable, false);
        check(Closed(530, "NOT_ALLOWED - vhost x not found"), Opening, Unavailable, false);
        let topic = "ACCESS_REFUSED - access to topic 'order.placed' in exchange 'orders' in vhost '/' refused";
        check(Closed(403, topic), Sent, Misconfigured, true);
        let other = "ACCESS_REFUSED - access to topic 'order.paid' in exchange 'orders' in vhost '/' refused";
        check(Closed(403, other), Sent, Unconfirmed, false);

        let limit = |text| Closed(406, text);
        let text = "PRECONDITION_FAILED - message size 400 is larger than configured max size 399";
        check(limit(text), Sent, Rejected, false);
        check(Closed(311, text), Sent, Rejected, false);
        let text = "PRECONDITION_FAILED - message size 500 is larger than configured max size 400";
        check(limit(text), Sent, Unconfirmed, false);
        check(limit("PRECONDITION_FAILED - something else"), Sent, Unconfirmed, false);
        check(Closed(320, "CONNECTION_FORCED - broker forced connection closure"), Sent, Unconfirmed, false);
        check(Closed(541, "INTERNAL_ERROR"), Checking, Unavailable, false);
    }

    #[test]
    fn a_client_error_is_a_closing_or_a_loss() {
        let amqp = lapin::protocol::AMQPError::from_id(404, "NOT_FOUND".into()).unwrap();
        let closed = lapin::Error::from(lapin::ErrorKind::ProtocolError(amqp));
        assert_eq!(Fault::of(&closed), Closed(404, "NOT_FOUND"));
        let lost = lapin::Error::from(lapin::ErrorKind::MissingHeartbeatError);
        assert_eq!(Fault::of(&lost), Lost);
    }
}
