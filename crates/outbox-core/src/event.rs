//! What business code writes: an event, before it has an id and an order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use thiserror::Error;
use uuid::Uuid;

/// The longest aggregate type, aggregate id or event type, in bytes of UTF-8.
///
/// AMQP carries routing keys and `type` as short strings of at most 255 bytes, the smallest such limit of the
/// supported brokers; the table's CHECK constraints enforce the same number.
pub const MAX_NAME_BYTES: usize = 255;

/// The longest content type, in bytes of UTF-8: AMQP carries it as a short string too.
pub const MAX_CONTENT_TYPE_BYTES: usize = 255;

/// The identity of an event: the same in the table, in every copy of the message and in the consumer's inbox.
///
/// Ids made by this project are of UUID version 7; ids made by SQL alone may be of any version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// Wraps an existing UUID.
    #[must_use]
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// The UUID itself.
    #[must_use]
    pub const fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.as_hyphenated(), f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Headers of an event: a flat map of strings that travels with every copy of the message.
pub type Headers = BTreeMap<String, String>;

/// The body of an event. It passes through to the broker byte for byte and is never parsed into a tree.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// The text of one JSON value, in UTF-8.
    Json(Bytes),
    /// Opaque bytes with the content type that describes them.
    Bytes {
        /// The bytes as they will be on the wire. May be empty.
        data: Bytes,
        /// Media type, for example `application/x-protobuf`, at most [`MAX_CONTENT_TYPE_BYTES`]. Without one it is
        /// `application/octet-stream`.
        content_type: Option<String>,
    },
}

impl Payload {
    /// Serializes a value to JSON.
    ///
    /// # Errors
    /// [`PayloadError`] when the value's `Serialize` fails or yields a map with keys that are no strings.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, PayloadError> {
        serde_json::to_vec(value).map(|json| Self::Json(json.into())).map_err(PayloadError)
    }

    /// Takes bytes that already are the text of one JSON value. PostgreSQL checks the syntax at the insert.
    #[must_use]
    pub fn raw_json(json: impl Into<Bytes>) -> Self {
        Self::Json(json.into())
    }

    /// Takes opaque bytes with their content type.
    #[must_use]
    pub fn bytes(data: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        Self::Bytes { data: data.into(), content_type: Some(content_type.into()) }
    }

    /// The bytes that go to the broker.
    #[must_use]
    pub const fn data(&self) -> &Bytes {
        match self {
            Self::Json(data) | Self::Bytes { data, .. } => data,
        }
    }

    /// The media type that goes to the broker.
    #[must_use]
    pub fn content_type(&self) -> &str {
        match self {
            Self::Json(_) => "application/json",
            Self::Bytes { content_type, .. } => content_type.as_deref().unwrap_or("application/octet-stream"),
        }
    }
}

/// Shows the length, never the content: payloads do not belong in logs.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({}, {} bytes)", self.content_type(), self.data().len())
    }
}

/// A value could not be serialized as the payload of an event.
#[derive(Debug, Error)]
#[error("the payload could not be serialized to JSON")]
pub struct PayloadError(#[source] serde_json::Error);

/// A business type that can be written to the outbox.
///
/// Implement it once for each type of event; the call that writes it (`outbox_pg::enqueue`) takes the caller's open
/// transaction, so the event exists exactly when the transaction commits.
///
/// ```
/// use std::borrow::Cow;
/// use outbox_core::{Event, Payload, PayloadError};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced { order: i64, total_cents: i64 }
///
/// impl Event for OrderPlaced {
///     fn aggregate_type(&self) -> Cow<'_, str> { "order".into() }
///     fn aggregate_id(&self) -> Cow<'_, str> { self.order.to_string().into() }
///     fn event_type(&self) -> Cow<'_, str> { "order.placed".into() }
///     fn payload(&self) -> Result<Payload, PayloadError> { Payload::json(self) }
/// }
/// ```
pub trait Event {
    /// What kind of thing the event is about, for example `order`. Not empty, at most [`MAX_NAME_BYTES`].
    fn aggregate_type(&self) -> Cow<'_, str>;

    /// Which one. Events of one (aggregate type, aggregate id) keep their order.
    fn aggregate_id(&self) -> Cow<'_, str>;

    /// What happened, for example `order.placed`.
    fn event_type(&self) -> Cow<'_, str>;

    /// The body of the message.
    ///
    /// # Errors
    /// [`PayloadError`] when it can't be serialized; nothing is written then.
    fn payload(&self) -> Result<Payload, PayloadError>;

    /// Headers that travel with the message, for example `traceparent`. None by default.
    fn headers(&self) -> Headers {
        Headers::new()
    }

    /// An id chosen by the caller. By default the call that writes the event makes a UUID version 7.
    fn event_id(&self) -> Option<EventId> {
        None
    }
}

/// An event made on the spot, for code that has no type of its own for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    payload: Payload,
    headers: Headers,
    event_id: Option<EventId>,
}

impl NewEvent {
    /// An event without headers, its id left to the call that writes it.
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: Payload,
    ) -> Self {
        Self {
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            payload,
            headers: Headers::new(),
            event_id: None,
        }
    }

    /// Adds a header; the last value of a name wins.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Chooses the event id instead of having one made.
    #[must_use]
    pub const fn with_event_id(mut self, id: EventId) -> Self {
        self.event_id = Some(id);
        self
    }
}

impl Event for NewEvent {
    fn aggregate_type(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.aggregate_type)
    }
    fn aggregate_id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.aggregate_id)
    }
    fn event_type(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.event_type)
    }
    fn payload(&self) -> Result<Payload, PayloadError> {
        Ok(self.payload.clone())
    }
    fn headers(&self) -> Headers {
        self.headers.clone()
    }
    fn event_id(&self) -> Option<EventId> {
        self.event_id
    }
}

/// Why an event may not be written. Found before any SQL is sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A name is empty or only white space.
    #[error("{field} must not be empty or only white space")]
    EmptyName {
        /// `aggregate_type`, `aggregate_id` or `event_type`.
        field: &'static str,
    },
    /// A name is longer than [`MAX_NAME_BYTES`].
    #[error("{field} must be at most {MAX_NAME_BYTES} bytes, got {bytes}")]
    LongName {
        /// `aggregate_type`, `aggregate_id` or `event_type`.
        field: &'static str,
        /// Its length in bytes of UTF-8.
        bytes: usize,
    },
    /// The content type is longer than [`MAX_CONTENT_TYPE_BYTES`].
    #[error("content_type must be at most {MAX_CONTENT_TYPE_BYTES} bytes, got {bytes}")]
    LongContentType {
        /// Its length in bytes of UTF-8.
        bytes: usize,
    },
    /// A text holds U+0000, which PostgreSQL can't store.
    #[error("{field} must not contain the character U+0000")]
    Nul {
        /// The field, or `header <name>`.
        field: String,
    },
    /// A header has an empty name.
    #[error("a header name must not be empty")]
    EmptyHeaderName,
    /// The payload is no text of one JSON value.
    #[error("the payload is not valid JSON")]
    Json(#[source] serde_json::Error),
    /// The event's own `payload` function failed.
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

impl InvalidEvent {
    /// Checks everything about an event that can be known without a database.
    ///
    /// JSON is checked by a scan that keeps no tree: numbers of any size and nesting of any depth pass here. PostgreSQL
    /// refuses nesting beyond its `max_stack_depth`, some thousands of levels by default.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(
        aggregate_type: &str,
        aggregate_id: &str,
        event_type: &str,
        payload: &Payload,
        headers: &Headers,
    ) -> Result<(), Self> {
        check_name("aggregate_type", aggregate_type)?;
        check_name("aggregate_id", aggregate_id)?;
        check_name("event_type", event_type)?;
        for (name, value) in headers {
            if name.is_empty() {
                return Err(Self::EmptyHeaderName);
            }
            if name.contains('\0') || value.contains('\0') {
                let field = format!("header {}", name.replace('\0', "\u{fffd}"));
                return Err(Self::Nul { field });
            }
        }
        match payload {
            Payload::Json(json) => {
                serde_json::from_slice::<&serde_json::value::RawValue>(json).map(drop).map_err(Self::Json)
            }
            Payload::Bytes { content_type: Some(text), .. } if text.contains('\0') => {
                Err(Self::Nul { field: "content_type".to_owned() })
            }
            Payload::Bytes { content_type: Some(text), .. } if text.len() > MAX_CONTENT_TYPE_BYTES => {
                Err(Self::LongContentType { bytes: text.len() })
            }
            Payload::Bytes { .. } => Ok(()),
        }
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), InvalidEvent> {
    if name.trim().is_empty() {
        return Err(InvalidEvent::EmptyName { field });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(InvalidEvent::LongName { field, bytes: name.len() });
    }
    if name.contains('\0') {
        return Err(InvalidEvent::Nul { field: field.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_any_depth_and_any_size_of_number_passes() {
        let check = |json: String, valid: bool| {
            let checked = InvalidEvent::check("a", "b", "c", &Payload::raw_json(json.clone()), &Headers::new());
            assert_eq!(checked.is_ok(), valid, "{} bytes", json.len());
        };
        check(format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), true);
        check(format!("{}{}", "[".repeat(100_000), "]".repeat(99_999)), false);
        check(format!("1{}", "0".repeat(1000)), true);
    }
}
