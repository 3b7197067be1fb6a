//! What a relay carries: a committed event with its place in the order.

use std::time::SystemTime;

use crate::{EventId, Headers, Payload};

/// A committed event on its way to a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Place in the order: the identity of the row, larger for later inserts. Never shown to consumers as an id.
    pub id: i64,
    /// The event's identity, the same in every copy.
    pub event_id: EventId,
    /// What kind of thing the event is about.
    pub aggregate_type: String,
    /// Which one; the message key on partitioned brokers.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The body, byte for byte as it was written.
    pub payload: Payload,
    /// The event's own headers.
    pub headers: Headers,
    /// When the inserting transaction began, by the database's clock. Never an order.
    pub created_at: SystemTime,
}

impl Envelope {
    /// What this event costs in memory and in a batch, in bytes: names, content type, headers and payload,
    /// and the struct itself.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let content_type = match &self.payload {
            Payload::Bytes { content_type: Some(text), .. } => text.len(),
            _ => 0,
        };
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        size_of::<Self>()
            + self.aggregate_type.len()
            + self.aggregate_id.len()
            + self.event_type.len()
            + self.payload.data().len()
            + content_type
            + headers
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn everything_of_any_length_is_counted() {
        let envelope = |text: &str, payload: Payload| Envelope {
            id: 1,
            event_id: EventId::from_uuid(uuid::Uuid::nil()),
            aggregate_type: text.to_owned(),
            aggregate_id: text.to_owned(),
            event_type: text.to_owned(),
            payload,
            headers: [(text.to_owned(), text.to_owned())].into(),
            created_at: SystemTime::UNIX_EPOCH,
        };
        let empty = envelope("", Payload::bytes("", "")).bytes();
        assert_eq!(envelope("x", Payload::bytes("y", "z")).bytes(), empty + 7);
        assert_eq!(envelope("x", Payload::raw_json("y")).bytes(), empty + 6);
    }
}
