//! From an envelope to a message of SQS. Pure: no clock, no connection.

use std::fmt::Write as _;

use outbox_core::wire::{self, Format};
use outbox_core::{Envelope, ErrorKind, Payload, PublishError};
use sha2::{Digest, Sha256};

use crate::attributes::{self, Attribute};
use crate::body::{Body, Content, body};
use crate::config::SqsConfig;

/// Stands before the names of CloudEvents attributes, as in its bindings for HTTP and NATS.
const CLOUDEVENTS_PREFIX: &str = "ce-";
/// The longest `MessageGroupId`, of printable ASCII without blanks:
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html>.
const MAX_GROUP_BYTES: usize = 128;
/// Stands before the hash of an aggregate id that can't be a group id.
const HASHED_GROUP: &str = "sha256-";

/// A message ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) body: String,
    pub(crate) attributes: Vec<Attribute>,
    /// Only for a FIFO queue.
    pub(crate) fifo: Option<Fifo>,
    /// What SQS counts: the body, and the names, types and values of the attributes.
    pub(crate) bytes: usize,
}

/// What a FIFO queue needs and a standard queue must not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fifo {
    pub(crate) group_id: String,
    pub(crate) deduplication_id: String,
}

/// Encodes one event.
///
/// # Errors
/// `Rejected`, with the figures: an empty payload, more than `max_message_bytes`.
pub(crate) fn encode(event: &Envelope, config: &SqsConfig) -> Result<Message, PublishError> {
    let rendered = config.format.render(event, CLOUDEVENTS_PREFIX);
    let max = config.max_message_bytes;
    if rendered.body.len() > max {
        // Told without a copy of what may be huge.
        let attributes = attributes::bytes(&attributes::attributes(&rendered, false)?);
        return Err(too_large(rendered.body.len(), attributes, max));
    }
    let (text, base64) = match body(&rendered.body, content(event, &rendered, &config.format))? {
        Body::Text(text) => (text, false),
        Body::Base64(text) => (text, true),
    };
    let attributes = attributes::attributes(&rendered, base64)?;
    let bytes = text.len() + attributes::bytes(&attributes);
    if bytes > max {
        return Err(too_large(text.len(), bytes - text.len(), max));
    }
    let fifo = config
        .is_fifo()
        .then(|| Fifo { group_id: group_id(&event.aggregate_id), deduplication_id: event.event_id.to_string() });
    Ok(Message { body: text, attributes, fifo, bytes })
}

/// What the body is. JSON that the event holds as opaque bytes stays byte for byte: somebody may have signed it.
fn content(event: &Envelope, rendered: &wire::Message<'_>, format: &Format) -> Content {
    let essence = rendered.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || essence.ends_with("+json");
    let is_payload = *format == Format::Plain || rendered.body == *event.payload.data();
    let is_opaque = matches!(event.payload, Payload::Bytes { .. }) && is_payload;
    if is_json && !is_opaque { Content::Json } else { Content::Opaque }
}

/// The aggregate id where it can be a group id, else its hash: the same for the same id, for ever and on every relay.
fn group_id(aggregate_id: &str) -> String {
    let fits =
        (1..=MAX_GROUP_BYTES).contains(&aggregate_id.len()) && aggregate_id.chars().all(|c| c.is_ascii_graphic());
    // An id that looks like a hash is hashed too, so that it meets no other one.
    if fits && !aggregate_id.starts_with(HASHED_GROUP) {
        return aggregate_id.to_owned();
    }
    let mut hashed = HASHED_GROUP.to_owned();
    for byte in Sha256::digest(aggregate_id) {
        let _ = write!(hashed, "{byte:02x}"); // writing to a String can't fail
    }
    hashed
}

fn too_large(body: usize, attributes: usize, max: usize) -> PublishError {
    let sum = body + attributes;
    rejected(format!(
        "the message has {sum} bytes ({body} of body, {attributes} of attributes), max_message_bytes allows {max}"
    ))
}

pub(crate) fn rejected(detail: String) -> PublishError {
    PublishError::new(ErrorKind::Rejected, detail)
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
