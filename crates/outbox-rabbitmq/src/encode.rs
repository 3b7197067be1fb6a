//! From an envelope to an AMQP message. Pure: no clock, no connection.

use std::time::UNIX_EPOCH;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox_core::{Envelope, ErrorKind, PublishError, TopicTemplate, rfc3339_micros};

use crate::config::MAX_SHORT_STRING_BYTES;

/// AMQP 0-9-1: "persistent" in the property `delivery-mode`.
const PERSISTENT: u8 = 2;
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
    max_message_bytes: usize,
) -> Result<Message, PublishError> {
    let body = event.payload.data();
    if body.len() > max_message_bytes {
        return Err(rejected(format!(
            "the payload has {} bytes, max_message_bytes allows {max_message_bytes}",
            body.len()
        )));
    }
    let routing_key = topic.render(event).map_err(|error| rejected(error.to_string()).with_source(error))?;
    let routing_key = short("routing key", &routing_key)?;
    let content_type = event.payload.content_type();
    let event_id = event.event_id.to_string();
    let created_at = rfc3339_micros(event.created_at);
    let system = [
        ("event-id", event_id.as_str()),
        ("event-type", &event.event_type),
        ("aggregate-type", &event.aggregate_type),
        ("aggregate-id", &event.aggregate_id),
        ("created-at", &created_at),
        ("content-type", content_type),
    ];

    let mut table = FieldTable::default();
    let mut table_bytes = 4;
    let mut insert = |name: &str, value: &str| -> Result<(), PublishError> {
        table_bytes += name.len() + value.len() + 6;
        table.insert(short("header name", name)?, AMQPValue::LongString(LongString::from(value)));
        Ok(())
    };
    for (name, value) in &event.headers {
        if system.iter().any(|(taken, _)| taken.eq_ignore_ascii_case(name)) {
            continue; // system names win
        }
        if ROUTING_HEADERS.iter().any(|reserved| reserved.eq_ignore_ascii_case(name)) {
            return Err(rejected(format!("header `{name}` would change the route: RabbitMQ sends copies by it")));
        }
        insert(name, value)?;
    }
    for (name, value) in system {
        insert(name, value)?;
    }

    let message_id = short("event id", &event_id)?;
    let mut properties = BasicProperties::default()
        .with_content_type(short("content type", content_type)?)
        .with_headers(table)
        .with_delivery_mode(PERSISTENT)
        .with_message_id(message_id.clone())
        .with_type(short("event type", &event.event_type)?);
    // AMQP's timestamp counts seconds from 1970 and has no sign; an earlier time stands in `created-at` alone.
    if let Ok(since) = event.created_at.duration_since(UNIX_EPOCH) {
        properties = properties.with_timestamp(since.as_secs());
    }
    let short_bytes = content_type.len() + event_id.len() + event.event_type.len() + 3;
    let header_frame_bytes = HEADER_FRAME_OVERHEAD_BYTES + table_bytes + short_bytes + 1 + 8;
    Ok(Message { routing_key, message_id, properties, body: body.clone(), header_frame_bytes })
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
