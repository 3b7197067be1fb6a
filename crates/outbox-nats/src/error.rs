//! Who is to blame: from what the server or the client library said to the kind that the relay acts on.

use outbox_core::ErrorKind;

use crate::answer::Refusal;

/// A value that can't be used: which field, what is wrong, what would do. Never shows a URL or a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field of [`NatsConfig`](crate::NatsConfig), which is also the key in a config file.
    pub field: &'static str,
    /// What is wrong with the value and what would be right.
    pub problem: String,
}

/// What happened instead of a confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault<'a> {
    /// No connection, or none that could be logged in: nothing was sent.
    Unreachable,
    /// Others are in flight up to `max_in_flight` and were not answered in time: nothing was sent.
    WindowFull,
    /// The connection took nothing in time: nothing was sent.
    Stuck,
    /// Sent, and no answer within the time-out.
    TimedOut,
    /// Sent, and the connection broke before the answer.
    Lost,
    /// Nobody listens on the subject.
    NoStream,
    /// JetStream's own refusal.
    Refused(&'a Refusal),
    /// The server does not let us publish on this subject.
    PublishDenied,
    /// The server does not let us receive answers.
    AnswersDenied,
    /// The client library finds the message larger than the server's `max_payload`.
    TooLarge,
}

/// What the relay should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: ErrorKind,
    /// Only this event's subject is at fault, not the whole destination.
    pub(crate) only_topic: bool,
}

/// The one place where faults become kinds.
pub(crate) fn classify(fault: Fault<'_>) -> Verdict {
    let all = |kind| Verdict { kind, only_topic: false };
    let topic = Verdict { kind: ErrorKind::Misconfigured, only_topic: true };
    match fault {
        Fault::Unreachable | Fault::Stuck => all(ErrorKind::Unavailable),
        Fault::WindowFull => all(ErrorKind::Throttled),
        Fault::TimedOut | Fault::Lost => all(ErrorKind::Unconfirmed),
        Fault::NoStream | Fault::PublishDenied => topic,
        Fault::AnswersDenied => all(ErrorKind::Misconfigured),
        Fault::TooLarge => all(ErrorKind::Rejected),
        Fault::Refused(refusal) => match refusal.err_code {
            // Larger than the stream's max_msg_size; headers over 64 KiB.
            10054 | 10097 => all(ErrorKind::Rejected),
            // No JetStream for this account, or on this server.
            10035 | 10039 | 10076 => all(ErrorKind::Misconfigured),
            // Stream gone, another than expected, sealed, offline; one that takes only counters.
            10056 | 10059 | 10060 | 10109 | 10118 | 10169 | 10185 | 10194 => topic,
            // Account's limit reached. The other quotas (10023, 10028, 10047) and a full stream (10077) come as 5xx.
            10002 => all(ErrorKind::Throttled),
            // An earlier copy with this id is being stored right now, with an outcome that nobody knows yet.
            10158 => all(ErrorKind::Unconfirmed),
            _ => match refusal.code {
                401 | 403 | 404 => topic,
                408 | 429 | 500..=599 => all(ErrorKind::Throttled),
                409 => all(ErrorKind::Unconfirmed),
                _ => all(ErrorKind::Failed),
            },
        },
    }
}

/// What a server's error line (`-ERR`) means for those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial<'a> {
    /// Publishing on this subject.
    Publish(&'a str),
    /// Receiving on this subject.
    Subscription(&'a str),
}

/// Reads `Permissions Violation for Publish to "billing.y"` (2.9 to 2.15).
pub(crate) fn denial(words: &str) -> Option<Denial<'_>> {
    let at = words.to_ascii_lowercase().find("permissions violation for ")?;
    let rest = &words[at + "permissions violation for ".len()..];
    let (what, rest) = rest.split_once(" to \"")?;
    // A subject can hold a quotation mark, and only a queue's name may follow it.
    let end = rest.rfind("\" using queue \"").or_else(|| rest.rfind('"'))?;
    let subject = &rest[..end];
    match what.to_ascii_lowercase().as_str() {
        "publish" => Some(Denial::Publish(subject)),
        "subscription" => Some(Denial::Subscription(subject)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};
    use Fault::{
        AnswersDenied, Lost, NoStream, PublishDenied, Refused, Stuck, TimedOut, TooLarge, Unreachable, WindowFull,
    };

    #[test]
    fn every_fault_has_its_kind() {
        fn check(fault: Fault<'_>, kind: ErrorKind, only_topic: bool) {
            assert_eq!(classify(fault), Verdict { kind, only_topic }, "{fault:?}");
        }
        check(Unreachable, Unavailable, false);
        check(Stuck, Unavailable, false);
        check(WindowFull, Throttled, false);
        check(TimedOut, Unconfirmed, false);
        check(Lost, Unconfirmed, false);
        check(NoStream, Misconfigured, true);
        check(PublishDenied, Misconfigured, true);
        check(AnswersDenied, Misconfigured, false);
        check(TooLarge, Rejected, false);

        let refused = |code, err_code, kind, only_topic| {
            let refusal = Refusal { code, err_code, description: String::new() };
            check(Refused(&refusal), kind, only_topic);
        };
        refused(400, 10054, Rejected, false); // message size exceeds maximum allowed
        refused(400, 10097, Rejected, false); // header size exceeds maximum allowed of 64k
        refused(400, 10002, Throttled, false); // resource limits exceeded for account
        refused(503, 10023, Throttled, false); // insufficient resources
        refused(500, 10028, Throttled, false); // insufficient memory resources available
        refused(500, 10047, Throttled, false); // insufficient storage resources available
        refused(503, 10077, Throttled, false); // maximum messages exceeded, with discard new
        refused(503, 10008, Throttled, false); // JetStream system temporarily unavailable
        refused(429, 10167, Throttled, false); // too many requests
        refused(503, 10039, Misconfigured, false); // JetStream not enabled for account
        refused(503, 10035, Misconfigured, false); // account not found
        refused(503, 10076, Misconfigured, false); // JetStream not enabled
        refused(404, 10059, Misconfigured, true); // stream not found
        refused(400, 10060, Misconfigured, true); // expected stream does not match
        refused(400, 10056, Misconfigured, true); // stream name in subject does not match request
        refused(400, 10109, Misconfigured, true); // invalid operation on sealed stream
        refused(500, 10118, Misconfigured, true); // stream is offline
        refused(500, 10194, Misconfigured, true); // stream is offline: reason
        refused(400, 10169, Misconfigured, true); // message counter increment is missing
        refused(412, 10185, Misconfigured, true); // required api level
        refused(409, 10158, Unconfirmed, false); // duplicate message id is in process
        refused(409, 99, Unconfirmed, false);
        refused(404, 99, Misconfigured, true);
        refused(403, 99, Misconfigured, true);
        refused(400, 10003, Failed, false); // bad request
        refused(400, 10071, Failed, false); // wrong last sequence
        refused(0, 0, Failed, false);
    }

    #[test]
    fn a_denial_names_what_and_where() {
        let check = |words: &str, expected| assert_eq!(denial(words), expected, "{words}");
        check(r#"Permissions Violation for Publish to "billing.y""#, Some(Denial::Publish("billing.y")));
        check(r#"permissions violation for publish to "a"b""#, Some(Denial::Publish("a\"b")));
        check(r#"Permissions Violation for Subscription to "_INBOX.x.*""#, Some(Denial::Subscription("_INBOX.x.*")));
        check(r#"Permissions Violation for Subscription to "a" using queue "b""#, Some(Denial::Subscription("a")));
        check(r#"Permissions Violation for Publish with Reply of "_INBOX.x""#, None);
        check("Authorization Violation", None);
        check("Permissions Violation for ", None);
    }
}
