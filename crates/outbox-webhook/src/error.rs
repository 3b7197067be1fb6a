//! Errors of the config, and the mapping from what came of a request to the kind that the relay acts on.

use outbox_core::ErrorKind;

use crate::health::Trouble;

/// A value that can't be used: which field, what is wrong, what would do. Never shows a secret or the URL's path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field of [`WebhookConfig`](crate::WebhookConfig), which is also the key in a config file.
    pub field: &'static str,
    /// What is wrong with the value and what would be right.
    pub problem: String,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// No connection: nothing was sent.
    Unreached,
    /// The host has no address that may be connected to: nothing was sent.
    Forbidden,
    /// Sent, as a whole or in part, and the answer did not come, or was none of HTTP.
    Unanswered,
    /// Answered.
    Answered {
        /// The status.
        status: u16,
        /// Whether the answer says when to come again.
        retry_after: bool,
    },
}

impl End {
    /// What the end says about the endpoint's health; `None` when it says nothing.
    pub(crate) fn sign(self) -> Option<Sign> {
        match self {
            Self::Answered { status: 200..=299, .. } => Some(Sign::Accepted),
            Self::Answered { status, .. } if is_trouble(status) => Some(Sign::Trouble),
            Self::Unanswered => Some(Sign::Trouble),
            _ => None,
        }
    }
}

/// What an end says about the endpoint's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It takes events.
    Accepted,
    /// It does not work, or not with this event.
    Trouble,
}

/// What the relay should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The endpoint took the event.
    Confirmed,
    /// It did not.
    Refused {
        /// Who is to blame.
        kind: ErrorKind,
        /// Only the event's URL is at fault, not the whole destination.
        only_topic: bool,
    },
}

/// Says nothing about who is to blame: one event, or an endpoint that answers everybody so.
fn is_trouble(status: u16) -> bool {
    is_broken_handler(status) || is_broken_gateway(status) || status == REQUEST_TIMEOUT
}

/// The receiver gave up waiting for the request, as one that is overloaded does with everybody's.
const REQUEST_TIMEOUT: u16 = 408;

/// The handler failed: 500, and the codes of the same meaning that servers make up.
fn is_broken_handler(status: u16) -> bool {
    matches!(status, 500 | 506 | 508 | 510 | 600..)
}

/// A gateway speaks for an endpoint that it can't reach or that did not answer it: 502 and 504, 520 to 527 and 530 of
/// Cloudflare, 561 of AWS, 598 and 599 of proxies. The endpoint may have got the event. Other codes above 511 are
/// nobody's and are taken the same way.
fn is_broken_gateway(status: u16) -> bool {
    matches!(status, 502 | 504 | 512..=528 | 530..=599)
}

/// The one place where ends become kinds. `trouble` is what the endpoint's troubles look like, this one included.
pub(crate) fn classify(end: End, trouble: Trouble) -> Verdict {
    use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};
    let (status, retry_after) = match end {
        End::Unreached => return refused(Unavailable),
        // The name points to where it must not: someone has to mend that.
        End::Forbidden => return refused(Misconfigured),
        End::Unanswered => return refused(Unconfirmed),
        End::Answered { status, retry_after } => (status, retry_after),
    };
    match status {
        200..=299 => Verdict::Confirmed,
        // Nothing was accepted; the address, the key, the method or the contract is wrong for all events of this URL.
        0..=199 | 300..=399 | 401..=405 | 407 | 410 | 421 | 426 | 501 | 505 | 511 => {
            Verdict::Refused { kind: Misconfigured, only_topic: true }
        }
        // Too large for ever; with `Retry-After` the receiver says that it is not for ever.
        413 | 431 if !retry_after => refused(Rejected),
        // Not now: asked to slow down (529 and 509 are common without a standard), storage full, too early.
        425 | 429 | 503 | 507 | 509 | 529 => refused(Throttled),
        REQUEST_TIMEOUT => refused(Unconfirmed),
        400..=499 => refused(Failed),
        status if is_broken_gateway(status) => refused(Unconfirmed),
        // A handler that fails with every event is ill, and no event may be charged for that.
        _ => match trouble {
            Trouble::Common => refused(Unconfirmed),
            Trouble::OfOne => refused(Failed),
        },
    }
}

const fn refused(kind: ErrorKind) -> Verdict {
    Verdict::Refused { kind, only_topic: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};

    #[test]
    fn every_end_has_its_kind() {
        let both = |end, kind, only_topic| {
            for trouble in [Trouble::OfOne, Trouble::Common] {
                assert_eq!(classify(end, trouble), Verdict::Refused { kind, only_topic }, "{end:?} {trouble:?}");
            }
        };
        both(End::Unreached, Unavailable, false);
        both(End::Forbidden, Misconfigured, false);
        both(End::Unanswered, Unconfirmed, false);
        let answered = |status| End::Answered { status, retry_after: false };
        let asked = |status| End::Answered { status, retry_after: true };
        for status in [101, 300, 301, 302, 303, 304, 307, 308, 401, 402, 403, 404, 405, 407, 410, 421, 426, 501, 505] {
            both(answered(status), Misconfigured, true);
        }
        for status in [413, 431] {
            both(answered(status), Rejected, false);
            both(asked(status), Failed, false);
        }
        for status in [425, 429, 503, 507, 509, 529] {
            both(answered(status), Throttled, false);
            both(asked(status), Throttled, false);
        }
        for status in [400, 406, 409, 411, 412, 414, 415, 417, 418, 422, 423, 424, 428, 451, 499] {
            both(answered(status), Failed, false);
        }
        for status in [408, 502, 504, 520, 521, 522, 523, 524, 530, 561, 598, 599] {
            both(answered(status), Unconfirmed, false);
        }
        for status in [500, 506, 508, 510, 600, 999] {
            assert_eq!(classify(answered(status), Trouble::OfOne), refused(Failed), "{status}");
            assert_eq!(classify(answered(status), Trouble::Common), refused(Unconfirmed), "{status}");
        }
    }

    #[test]
    fn only_2xx_is_success() {
        for status in 0..=999 {
            for trouble in [Trouble::OfOne, Trouble::Common] {
                for retry_after in [false, true] {
                    let verdict = classify(End::Answered { status, retry_after }, trouble);
                    assert_eq!(verdict == Verdict::Confirmed, (200..300).contains(&status), "{status}");
                }
            }
        }
    }

    /// Whatever the relay may charge in the end (`Failed`, and `Unconfirmed` after a good check) and may be everybody's
    /// must count as trouble: otherwise an endpoint that answers nothing else charges its way to dead letters.
    #[test]
    fn what_an_ill_endpoint_answers_is_charged_to_nobody() {
        for status in (500..=999).chain([408, 425, 429]) {
            for retry_after in [false, true] {
                let end = End::Answered { status, retry_after };
                let Verdict::Refused { kind, .. } = classify(end, Trouble::Common) else { panic!("{status}") };
                match kind {
                    Throttled | Misconfigured => assert_eq!(end.sign(), None, "{status}: free in any case"),
                    Unconfirmed => assert_eq!(end.sign(), Some(Sign::Trouble), "{status}"),
                    _ => panic!("{status} would be charged: {kind}"),
                }
            }
        }
    }

    #[test]
    fn what_an_end_says_about_the_endpoint() {
        let check = |end: End, sign| assert_eq!(end.sign(), sign, "{end:?}");
        let answered = |status| End::Answered { status, retry_after: false };
        check(answered(204), Some(Sign::Accepted));
        check(answered(500), Some(Sign::Trouble));
        check(answered(502), Some(Sign::Trouble));
        check(answered(408), Some(Sign::Trouble));
        check(End::Unanswered, Some(Sign::Trouble));
        for end in [End::Unreached, End::Forbidden, answered(400), answered(404), answered(429), answered(503)] {
            check(end, None);
        }
    }
}
