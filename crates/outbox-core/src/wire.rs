//! What consumers see of an event, whatever the broker: the body, its content type and named values.
//!
//! An adapter renders an [`Envelope`] with [`Format::render`] and puts each part where its protocol keeps it.
//! Values that a protocol can't carry go through [`percent_encode`].

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;

use crate::{Envelope, rfc3339_micros};

/// How an event is written on the wire. Part of the external contract.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// Body = payload bytes; everything else in headers with plain names. The default.
    #[default]
    Plain,
}

/// The headers of the plain format, in their order. `content-type` belongs to it too and stands in
/// [`Message::content_type`].
pub const PLAIN_HEADERS: [&str; 5] = ["event-id", "event-type", "aggregate-type", "aggregate-id", "created-at"];

/// An event in a format, for any protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// The bytes that consumers read.
    pub body: Bytes,
    /// What they are; to be put where the protocol keeps it.
    pub content_type: Cow<'a, str>,
    /// Headers of the format, in a fixed order. Their names are lower-case ASCII and fit every protocol.
    pub system: Vec<(Cow<'static, str>, Cow<'a, str>)>,
    /// The event's own headers that no header of the format overrides (`content-type` included, in any case), by name.
    pub own: Vec<(&'a str, &'a str)>,
}

impl Format {
    /// Renders one event. Pure; the payload is not copied.
    ///
    /// `attribute_prefix` stands before the names of CloudEvents attributes, as the protocol's binding says: `ce-` for
    /// HTTP and NATS, `ce_` for Kafka. The plain format does not use it.
    #[must_use]
    pub fn render<'a>(&self, event: &'a Envelope, attribute_prefix: &str) -> Message<'a> {
        let _ = attribute_prefix;
        match self {
            Self::Plain => {
                let values = [
                    Cow::Owned(event.event_id.to_string()),
                    Cow::Borrowed(event.event_type.as_str()),
                    Cow::Borrowed(event.aggregate_type.as_str()),
                    Cow::Borrowed(event.aggregate_id.as_str()),
                    Cow::Owned(rfc3339_micros(event.created_at)),
                ];
                let system: Vec<_> = PLAIN_HEADERS.iter().map(|name| Cow::Borrowed(*name)).zip(values).collect();
                let own = own_headers(event, &system);
                Message {
                    body: event.payload.data().clone(),
                    content_type: Cow::Borrowed(event.payload.content_type()),
                    system,
                    own,
                }
            }
        }
    }
}

fn own_headers<'a>(event: &'a Envelope, system: &[(Cow<'static, str>, Cow<'a, str>)]) -> Vec<(&'a str, &'a str)> {
    let taken = |name: &str| {
        name.eq_ignore_ascii_case("content-type") || system.iter().any(|(taken, _)| taken.eq_ignore_ascii_case(name))
    };
    event.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(name, _)| !taken(name)).collect()
}

/// Percent-encodes what a protocol can't carry, byte by byte in UTF-8: every character that `carries` refuses, and `%`,
/// so that a consumer can decode. Borrows when there is nothing to encode.
#[must_use]
pub fn percent_encode(value: &str, carries: impl Fn(char) -> bool) -> Cow<'_, str> {
    let passes = |c: char| c != '%' && carries(c);
    if value.chars().all(passes) {
        return Cow::Borrowed(value);
    }
    let mut encoded = String::with_capacity(value.len() + 16);
    for c in value.chars() {
        if passes(c) {
            encoded.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(encoded, "%{byte:02X}"); // writing to a String can't fail
            }
        }
    }
    Cow::Owned(encoded)
}

/// Whether a header of HTTP carries a character unencoded, by section 3.1.3.2 of CloudEvents' HTTP binding: printable
/// ASCII but space, `"` and `%`.
#[must_use]
pub fn is_plain_in_http(c: char) -> bool {
    ('!'..='~').contains(&c) && c != '"' && c != '%'
}
