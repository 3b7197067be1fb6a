//! What JetStream answers to a published message. Pure.

use serde::Deserialize;

/// The status of a message that tells that nobody listens on a subject: no stream takes it.
const NO_RESPONDERS: u16 = 503;

/// An answer that speaks about the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A stream has it. `duplicate`: it had a message with this id already, within its window.
    Stored {
        duplicate: bool,
    },
    Refused(Refusal),
    /// No stream takes the subject.
    NoStream,
}

/// JetStream's error: <https://github.com/nats-io/nats-server/blob/main/server/errors.json> lists them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    /// As in HTTP.
    pub(crate) code: u16,
    /// Which error it is, exactly.
    pub(crate) err_code: u64,
    pub(crate) description: String,
}

#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<Refusal>,
}

/// Reads an answer; `None` when it is none of JetStream's: an ordinary subscriber may answer as well, and its words
/// confirm nothing.
pub(crate) fn read(status: Option<u16>, payload: &[u8]) -> Option<Answer> {
    if status == Some(NO_RESPONDERS) && payload.is_empty() {
        return Some(Answer::NoStream);
    }
    let ack: Ack = serde_json::from_slice(payload).ok()?;
    match ack.error {
        // JetStream always numbers its errors; a service of somebody's may word its own like them.
        Some(refusal) if refusal.err_code == 0 => None,
        Some(refusal) => Some(Answer::Refused(refusal)),
        None => (!ack.stream.is_empty() && ack.seq > 0).then_some(Answer::Stored { duplicate: ack.duplicate }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acknowledgement_confirms() {
        let check = |status, payload: &str, answer| assert_eq!(read(status, payload.as_bytes()), answer, "{payload}");
        let stored = |duplicate| Some(Answer::Stored { duplicate });
        check(None, r#"{"stream":"ORDERS","seq":5}"#, stored(false));
        check(None, r#"{"stream":"ORDERS","domain":"hub","seq":5,"duplicate":true}"#, stored(true));
        let refusal = Refusal { code: 503, err_code: 10077, description: "maximum messages exceeded".to_owned() };
        check(
            None,
            r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"X","seq":0}"#,
            Some(Answer::Refused(refusal)),
        );
        check(Some(503), "", Some(Answer::NoStream));
        check(None, r#"{"error":{"code":400,"description":"a service's own"}}"#, None);
        check(None, r#"{"error":"a service's own"}"#, None);
        check(None, r#"{"stream":"","seq":5}"#, None);
        check(None, r#"{"stream":"ORDERS"}"#, None);
        check(None, "", None);
        check(None, "ok", None);
        check(None, "true", None);
        check(None, "{}", None);
        check(Some(100), "", None);
    }
}
