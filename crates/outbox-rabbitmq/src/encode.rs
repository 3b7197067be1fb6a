//! From an envelope to an AMQP message. Pure: no clock, no connection.

use std::time::UNIX_EPOCH;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox_core::wire::Format;
use outbox_core::{Envelope, ErrorKind, PublishError, TopicTemplate};

use crate::config::MAX_SHORT_STRING_BYTES;

/// AMQP 0-9-1: "persistent" in the property `delivery-mode`.
const PERSISTENT: u8 = 2;
/// How CloudEvents' AMQP binding 1.0.2 names attributes. The draft after it also allows `cloudEvents_`, for JMS clients,
/// and asks consumers to take both; a consumer of 1.0.2 knows this one only.
const ATTRIBUTE_PREFIX: &str = "cloudEvents:";
/// RabbitMQ sends a copy to each routing key in these headers: data would leave its topic, and a text instead of a
/// list closes the channel. <https://www.rabbitmq.com/docs/sender-selected>
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];
/// Frame header 7, class 2, weight 2, body size 8, property flags 2, frame end 1.
const HEADER_FRAME_OVERHEAD_BYTES: usize = 22;

/// A message ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) routing_key: ShortString,
    pub(crate) message_id: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
    /// Size of the header frame, which AMQP can't split.
    pub(crate) header_frame_bytes: usize,
}

/// Encodes one event.
///
/// # Errors
/// `Rejected`, with the figures: no topic, a name too long for AMQP's short strings, a header that would change the
/// route, a body over `max_message_bytes`.
pub(crate) fn encode(
    event: &Envelope,
    topic: &TopicTemplate,
    format: &Format,
    max_message_bytes: usize,
) -> Result<Message, PublishError> {
    // Asked before rendering, which may copy the payload: no format makes a body shorter than what it carries.
    let payload_bytes = event.payload.data().len();
    let too_large = |what: &str, bytes: usize| {
        (bytes > max_message_bytes)
            .then(|| rejected(format!("the {what} has {bytes} bytes, max_message_bytes allows {max_message_bytes}")))
    };
    if let Some(error) = too_large("payload", payload_bytes) {
        return Err(error);
    }
    let rendered = format.render(event, ATTRIBUTE_PREFIX);
    let body = rendered.body;
    let with_attributes = || format!("payload of {payload_bytes} bytes with its attributes");
    if let Some(error) = too_large(&with_attributes(), body.len()) {
        return Err(error);
    }
    let routing_key = topic.render(event).map_err(|error| rejected(error.to_string()).with_source(error))?;
    let routing_key = short("routing key", &routing_key)?;
    let content_type = rendered.content_type.as_ref();

    let mut table = FieldTable::default();
    let mut table_bytes = 4;
    let mut insert = |name: &str, value: &str| -> Result<(), PublishError> {
        table_bytes += name.len() + value.len() + 6;
        table.insert(short("header name", name)?, AMQPValue::LongString(LongString::from(value)));
        Ok(())
    };
    for (name, value) in rendered.own {
        if ROUTING_HEADERS.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
            return Err(rejected(format!("header `{name}` would change the route: RabbitMQ sends copies by it")));
        }
        insert(name, value)?;
    }
    for (name, value) in &rendered.system {
        insert(name, value)?;
    }
    if matches!(format, Format::Plain) {
        insert("content-type", content_type)?;
    }

    let event_id = event.event_id.to_string();
    let message_id = short("event id", &event_id)?;
    let mut properties = BasicProperties::default()
        .with_content_type(short("content type", content_type)?)
        .with_headers(table)
        .with_delivery_mode(PERSISTENT)
        .with_message_id(message_id.clone())
        .with_type(short("event type", &event.event_type)?);
    // AMQP's timestamp counts seconds from 1970 and has no sign; for an earlier time it is absent.
    let mut fixed_bytes = 1;
    if let Ok(since) = event.created_at.duration_since(UNIX_EPOCH) {
        properties = properties.with_timestamp(since.as_secs());
        fixed_bytes += 8;
    }
    let short_bytes = content_type.len() + event_id.len() + event.event_type.len() + 3;
    let header_frame_bytes = HEADER_FRAME_OVERHEAD_BYTES + table_bytes + short_bytes + fixed_bytes;
    Ok(Message { routing_key, message_id, properties, body, header_frame_bytes })
}

fn short(what: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        rejected(format!("the {what} `{shown}...` has {} bytes, AMQP allows {MAX_SHORT_STRING_BYTES}", text.len()))
    })
}

pub(crate) fn rejected(detail: String) -> PublishError {
    PublishError::new(ErrorKind::Rejected, detail)
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
