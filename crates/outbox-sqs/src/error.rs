//! What went wrong and who is to blame: one pure function decides.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{BoxError, ProvideErrorMetadata, SdkError};
use hyper_util::client::legacy::Error as HttpClientError;
use outbox_core::{ErrorKind, PublishError};
use thiserror::Error;

/// A field of the config that can't be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field's name in [`SqsConfig`](crate::SqsConfig).
    pub field: &'static str,
    /// What is wrong and what would be right; never a secret.
    pub problem: String,
}

/// What was asked of SQS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// To take events.
    Sending,
    /// Only whether the queue is there.
    Checking,
}

/// Why there is no success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault<'a> {
    /// No request could be made; nothing was sent.
    Unbuildable,
    /// There are no credentials; nothing was sent.
    NoCredentials,
    /// The connection or its TLS handshake failed; nothing was sent.
    NotConnected,
    /// No answer in time, a connection that broke, an answer that could not be read.
    NoAnswer,
    /// SQS answered the request as a whole with a refusal.
    Refused {
        status: u16,
        /// Absent when whoever answered was not SQS.
        code: Option<&'a str>,
        message: &'a str,
    },
    /// SQS refused one entry of a batch.
    Entry { sender_fault: bool, code: &'a str, message: &'a str },
}

/// What the relay should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: ErrorKind,
    /// The event itself is refused. When that was said of several at once, each must be tried alone.
    pub(crate) blames_event: bool,
}

/// What may stand before a code; the last two are those of the queue's key.
const PREFIXES: [&str; 3] = ["AWS.SimpleQueueService.", "KMS.", "Kms"];

const MISSING: [&str; 4] = ["QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently", "InvalidAddress"];
/// The login is known and may not do this, or the queue's key may not be used, or this is no SQS.
const FORBIDDEN: [&str; 12] = [
    "AccessDenied",
    "UnauthorizedOperation",
    "AuthorizationError",
    "OptInRequired",
    "InvalidSecurity",
    "UnsupportedOperation",
    "InvalidAction",
    "UnknownOperation",
    "Disabled",
    "InvalidKeyUsage",
    "InvalidState",
    "NotFound",
];
/// The login is not known, or no longer: nothing of the destination can be told before it is.
const UNKNOWN_LOGIN: [&str; 14] = [
    "InvalidClientTokenId",
    "UnrecognizedClient",
    "SignatureDoesNotMatch",
    "InvalidSignature",
    "IncompleteSignature",
    "MissingAuthenticationToken",
    "MissingAuthentication",
    "ExpiredToken",
    "InvalidToken",
    "InvalidAccessKeyId",
    "AuthFailure",
    "NotAuthorized",
    "RequestExpired",
    "RequestTimeTooSkewed",
];
const THROTTLED: [&str; 12] = [
    "Throttling",
    "Throttled",
    "RequestThrottled",
    "OverLimit",
    "TooManyRequests",
    "RequestLimitExceeded",
    "LimitExceeded",
    "BandwidthLimitExceeded",
    "ProvisionedThroughputExceeded",
    "PriorRequestNotComplete",
    "SlowDown",
    "ServiceUnavailable",
];
/// SQS itself failed.
const INTERNAL: [&str; 4] = ["InternalError", "InternalFailure", "InternalServerError", "InternalServer"];
const UNACCEPTABLE: [&str; 3] = ["InvalidMessageContents", "BatchRequestTooLong", "RequestEntityTooLarge"];

/// The one place where faults become kinds.
pub(crate) fn classify(fault: Fault<'_>, stage: Stage) -> Verdict {
    use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};
    let verdict = |kind| Verdict { kind, blames_event: false };
    let blame = |kind| match stage {
        Stage::Sending => Verdict { kind, blames_event: true },
        // A check carries no event that could be at fault.
        Stage::Checking => verdict(Misconfigured),
    };
    let unanswered = match stage {
        Stage::Sending => Unconfirmed,
        Stage::Checking => Unavailable,
    };
    let (code, message) = match fault {
        Fault::Unbuildable => return verdict(Misconfigured),
        Fault::NoCredentials | Fault::NotConnected => return verdict(Unavailable),
        Fault::NoAnswer => return verdict(unanswered),
        Fault::Refused { code, message, .. } => (code.map(bare), message),
        Fault::Entry { code, message, .. } => (Some(bare(code)), message),
    };
    let is = |codes: &[&str]| code.is_some_and(|code| codes.contains(&code));
    if is(&THROTTLED) {
        return verdict(Throttled);
    }
    if is(&MISSING) || is(&FORBIDDEN) {
        return verdict(Misconfigured);
    }
    if is(&UNKNOWN_LOGIN) {
        return verdict(Unavailable);
    }
    if is(&UNACCEPTABLE) || (code.is_some() && is_about_size(message)) {
        return blame(Rejected);
    }
    match fault {
        // An entry that SQS says it did not take, for reasons of its own: no fault of the event.
        Fault::Entry { sender_fault: false, .. } if is(&INTERNAL) => verdict(Throttled),
        Fault::Entry { .. } => blame(Failed),
        _ if is(&INTERNAL) => verdict(unanswered),
        Fault::Refused { status, .. } => match status {
            429 | 503 => verdict(Throttled),
            413 => blame(Rejected),
            // A refusal without a code is not from SQS: a proxy, a wrong address. No event is to pay for it.
            300..=499 if code.is_none() => verdict(Misconfigured),
            401 | 403 | 404 => verdict(Misconfigured),
            400..=499 => blame(Failed),
            _ => verdict(unanswered),
        },
        _ => verdict(unanswered),
    }
}

/// The code without what differs between protocols and servers.
fn bare(code: &str) -> &str {
    let code = code.rsplit_once('#').map_or(code, |(_, code)| code);
    let code = PREFIXES.iter().find_map(|prefix| code.strip_prefix(prefix)).unwrap_or(code);
    code.strip_suffix("Exception").unwrap_or(code)
}

/// `InvalidParameterValue` says by its text alone that a message is too large for the queue: `One or more parameters
/// are invalid. Reason: Message must be shorter than 262144 bytes.`
fn is_about_size(message: &str) -> bool {
    message.contains("must be shorter than")
}

/// The longest part of a server's own words that is kept, in characters; it should not, but might, repeat data.
const MAX_SAID: usize = 300;

/// What SQS said, for the operator.
pub(crate) fn said(code: &str, message: &str) -> String {
    let code: String = code.chars().take(MAX_SAID).collect();
    match message {
        "" => code,
        message => format!("{code}: {}", message.chars().take(MAX_SAID).collect::<String>()),
    }
}

/// The fault in an error of the SDK.
pub(crate) fn fault_of<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> Fault<'_> {
    match error {
        SdkError::ConstructionFailure(_) => Fault::Unbuildable,
        SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
            Some(source) if never_connected(source) => Fault::NotConnected,
            Some(source) if lacks_credentials(source) => Fault::NoCredentials,
            _ => Fault::NoAnswer,
        },
        // A success that could not be read.
        SdkError::ServiceError(strange) if strange.raw().status().is_success() => Fault::NoAnswer,
        SdkError::ServiceError(refusal) => Fault::Refused {
            status: refusal.raw().status().as_u16(),
            code: refusal.err().code(),
            message: refusal.err().message().unwrap_or_default(),
        },
        // A time-out of the caller's own client, an answer that broke off or makes no sense, and what is yet to come.
        _ => Fault::NoAnswer,
    }
}

/// Whether the HTTP client got no connection, and so sent nothing. It is said by the client's own error alone; where
/// that is absent something may have been sent.
fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    chain(error).filter_map(|error| error.downcast_ref::<HttpClientError>()).any(HttpClientError::is_connect)
}

fn lacks_credentials(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(<dyn StdError>::is::<CredentialsError>)
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// What is behind an error of the SDK, without the answer's headers and body.
#[derive(Debug, Error)]
#[error(transparent)]
pub(crate) struct Cause(BoxError);

/// The error of an event, or of a check, for a request that failed as a whole.
pub(crate) fn refusal<E>(error: SdkError<E, HttpResponse>, kind: ErrorKind, what: &str) -> PublishError
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
{
    let detail = match fault_of(&error) {
        Fault::Refused { status, code, message } => {
            format!("{what}: sqs answered {}", said(code.unwrap_or(&format!("HTTP status {status}")), message))
        }
        Fault::NoCredentials => format!("{what}: no credentials"),
        Fault::NotConnected => format!("{what}: no connection to sqs"),
        Fault::NoAnswer => format!("{what}: sqs gave no answer that tells what became of it"),
        Fault::Unbuildable | Fault::Entry { .. } => format!("{what}: the client could not make a request"),
    };
    let refused = matches!(fault_of(&error), Fault::Refused { .. });
    let error_out = PublishError::new(kind, detail);
    match error.into_source() {
        // A refusal's own words are in the sentence already.
        Ok(source) if !refused => error_out.with_source(Cause(source)),
        _ => error_out,
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
