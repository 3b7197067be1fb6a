//! From an envelope to a Kafka record. Pure: no clock, no connection.

use bytes::Bytes;
use krafka::Record;
use outbox_core::{Envelope, ErrorKind, PublishError, TopicTemplate};

use crate::config::KafkaConfig;
use crate::topic;

/// Stands before the names of CloudEvents attributes, by section 3.2.3.1 of CloudEvents' Kafka binding.
const ATTRIBUTE_PREFIX: &str = "ce_";
/// The client sends no more, so that a consumer can bound what it reads.
const MAX_HEADERS: usize = 10_000;
/// The fixed fields of a record batch, version 2. <https://kafka.apache.org/documentation/#recordbatch>
const BATCH_OVERHEAD_BYTES: usize = 61;
/// Of a record that is alone in its batch: attributes, and zero as difference of time and of offset.
const RECORD_OVERHEAD_BYTES: usize = 3;

/// Encodes one event. The record's time is left to the client, which sets that of sending: brokers refuse records and
/// delete segments by it, so an event that waited out an outage must not look old.
///
/// # Errors
/// `Rejected`, with the figures: no topic, too many headers, larger than `max_message_bytes`.
pub(crate) fn encode(event: &Envelope, template: &TopicTemplate, config: &KafkaConfig) -> Result<Record, PublishError> {
    let topic = topic::render(template, event)?;
    let message = config.format.render(event, ATTRIBUTE_PREFIX);
    let (max, max_payload) = (config.max_message_bytes, config.max_payload_bytes());
    if message.body.len() > max_payload {
        let bytes = message.body.len();
        return Err(rejected(format!(
            "the payload has {bytes} bytes, max_message_bytes ({max}) leaves {max_payload} for it"
        )));
    }
    let system = message.system.iter().map(|(name, value)| (name.as_ref(), value.as_ref()));
    let headers: krafka::Headers = system
        .chain([("content-type", message.content_type.as_ref())])
        .chain(message.own.iter().copied())
        .map(|(name, value)| (name.to_owned(), Some(Bytes::copy_from_slice(value.as_bytes()))))
        .collect();
    if headers.len() > MAX_HEADERS {
        return Err(rejected(format!("the event has {} headers, at most {MAX_HEADERS} are sent", headers.len())));
    }
    let mut record = Record::new(topic, message.body).key(Bytes::copy_from_slice(event.aggregate_id.as_bytes()));
    record.headers = headers;
    let bytes = batch_bytes(&record);
    if bytes > max {
        return Err(rejected(format!(
            "with key and headers the message has {bytes} bytes, max_message_bytes allows {max}"
        )));
    }
    Ok(record)
}

/// The size of a batch with this record alone, not compressed: what a broker compares with `message.max.bytes`.
pub(crate) fn batch_bytes(record: &Record) -> usize {
    let field = |bytes: Option<&Bytes>| bytes.map_or(1, |bytes| varint_bytes(bytes.len()) + bytes.len());
    let header =
        |(name, value): &(String, Option<Bytes>)| varint_bytes(name.len()) + name.len() + field(value.as_ref());
    let headers: usize = record.headers.iter().map(header).sum();
    let body = RECORD_OVERHEAD_BYTES
        + field(record.key.as_ref())
        + field(record.value.as_ref())
        + varint_bytes(record.headers.len())
        + headers;
    BATCH_OVERHEAD_BYTES + varint_bytes(body) + body
}

/// Bytes of a length as Kafka writes it: zigzag, seven bits a byte.
fn varint_bytes(length: usize) -> usize {
    let bits = usize::BITS - (length << 1).leading_zeros();
    usize::try_from(bits.div_ceil(7).max(1)).unwrap_or(1)
}

pub(crate) fn rejected(detail: String) -> PublishError {
    PublishError::new(ErrorKind::Rejected, detail)
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
