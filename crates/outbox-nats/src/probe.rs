//! Whether the destination can be reached: one question to JetStream, no event.

use bytes::Bytes;
use outbox_core::PublishError;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::answer::Refusal;
use crate::config::NatsConfig;
use crate::connection::unreachable;
use crate::error::{Fault, classify};
use crate::session::Session;
use crate::waiting::{Awaits, Reply};

/// Which streams take a subject.
const STREAM_NAMES: &str = "$JS.API.STREAM.NAMES";
/// Whether this account has JetStream.
const ACCOUNT_INFO: &str = "$JS.API.INFO";

#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    error: Option<Refusal>,
    /// Stands in every answer about streams.
    total: Option<u64>,
    /// `null` when there are none.
    streams: Option<Vec<String>>,
}

/// Asks JetStream which stream takes the subject, or without one whether it is there at all.
///
/// A user who may not ask is no problem: the refusal shows that the server is there, and publishing will tell the rest.
///
/// # Errors
/// `Unavailable` when the connection is silent, `Misconfigured` when no stream takes the subject or no answer may be
/// received.
pub(crate) async fn probe(session: &Session, subject: Option<&str>, config: &NatsConfig) -> Result<(), PublishError> {
    let deadline = Instant::now() + config.connect_timeout;
    let half = Instant::now() + config.connect_timeout / 2;
    let asked = match subject {
        // A subject may hold a quotation mark or a backslash.
        Some(subject) => (STREAM_NAMES, serde_json::json!({ "subject": subject }).to_string()),
        None => (ACCOUNT_INFO, String::new()),
    };
    match ask(session, asked.0, Bytes::from(asked.1), half).await? {
        Some(reply) => judge(reply, subject, session, config),
        // JetStream is silent, as in a cluster that elects its leader, while streams may be well. An echo of our own
        // tells whether the connection is.
        None => match echo(session, deadline).await? {
            Some(_) => Ok(()),
            None => {
                session.give_up();
                let waited = config.connect_timeout;
                Err(unreachable(&format!("nats did not answer within connect_timeout ({waited:?})")))
            }
        },
    }
}

/// What is known about an event that was sent and not acknowledged while the connection is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Silence {
    /// JetStream says that no stream takes its subject, so somebody else listens there; the problem in words.
    NoStream(String),
    /// A stream may have it. More words for the operator, or none.
    Unexplained(&'static str),
}

/// Asks JetStream why a subject may have been silent.
pub(crate) async fn explain_silence(session: &Session, subject: &str, by: Instant, config: &NatsConfig) -> Silence {
    let question = Bytes::from(serde_json::json!({ "subject": subject }).to_string());
    match ask(session, STREAM_NAMES, question, by).await {
        Ok(Some(Reply::PublishDenied(_))) => Silence::Unexplained(
            "; whether a stream takes the subject is not known: allow this user to publish on `$JS.API.STREAM.NAMES`",
        ),
        Ok(Some(reply)) => match judge(reply, Some(subject), session, config) {
            Err(problem) if problem.kind() == classify(Fault::NoStream).kind => Silence::NoStream(problem.report()),
            _ => Silence::Unexplained(""),
        },
        Ok(None) | Err(_) => Silence::Unexplained(""),
    }
}

async fn ask(session: &Session, subject: &str, body: Bytes, by: Instant) -> Result<Option<Reply>, PublishError> {
    let mut wait = session.wait(subject, Awaits::Anything);
    match timeout_at(by, session.ask(subject, body, &wait)).await {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => return Err(down(fault, session)),
        Err(_) => return Ok(None),
    }
    match timeout_at(by, wait.reply()).await {
        Ok(Some(reply)) => Ok(Some(reply)),
        Ok(None) => Err(unreachable(&format!("the connection to nats broke{}", session.because()))),
        Err(_) => Ok(None),
    }
}

/// Sends a message to our own inbox; a refusal is an answer as well.
async fn echo(session: &Session, by: Instant) -> Result<Option<Reply>, PublishError> {
    let mut wait = session.wait("", Awaits::Anything);
    let own = session.reply_subject(&wait);
    // A refusal names this subject, so that is where it must be waited for.
    let mut refused = session.wait(&own, Awaits::Anything);
    match timeout_at(by, session.ask(&own, Bytes::new(), &refused)).await {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => return Err(down(fault, session)),
        Err(_) => return Ok(None),
    }
    let either = async {
        tokio::select! {
            reply = wait.reply() => reply,
            reply = refused.reply() => reply,
        }
    };
    Ok(timeout_at(by, either).await.ok().flatten())
}

/// What is wrong, and who can mend it.
pub(crate) fn no_stream(subject: &str) -> String {
    format!("no stream takes the subject `{subject}`; add it to the subjects of a stream")
}

fn down(fault: Fault<'_>, session: &Session) -> PublishError {
    let what = match fault {
        Fault::AnswersDenied => "no permission to receive answers",
        _ => "the connection to nats is down",
    };
    PublishError::new(classify(fault).kind, format!("{what}{}", session.because()))
}

/// Only what JetStream says about the subject counts. An account without JetStream may still reach a stream of another
/// one, and a question that JetStream can't answer now says nothing about events.
fn judge(reply: Reply, subject: Option<&str>, session: &Session, config: &NatsConfig) -> Result<(), PublishError> {
    let payload = match reply {
        Reply::Question { payload, .. } => payload,
        Reply::AnswersDenied(_) => return Err(down(Fault::AnswersDenied, session)),
        Reply::PublishDenied(_) | Reply::Event(_) => return Ok(()),
    };
    let told = serde_json::from_slice::<Told>(&payload).unwrap_or_default();
    let (Some(subject), None, Some(_)) = (subject, told.error, told.total) else { return Ok(()) };
    let streams = told.streams.unwrap_or_default();
    let problem = match &config.expected_stream {
        _ if streams.is_empty() => no_stream(subject),
        Some(expected) if !streams.contains(expected) => format!(
            "the subject `{subject}` is taken by stream `{}`, not by `{expected}` (expected_stream)",
            streams.join("`, `")
        ),
        _ => return Ok(()),
    };
    Err(PublishError::new(classify(Fault::NoStream).kind, problem))
}
