//! What consumers see of an event, whatever the broker: the body, its content type and named values.
//!
//! An adapter renders an [`Envelope`] with [`Format::render`] and puts each part where its protocol keeps it.
//! Values that a protocol can't carry go through [`percent_encode`].
//!
//! | config text | format |
//! |---|---|
//! | `plain` | [`Format::Plain`] |
//! | `cloudevents` | [`Format::CloudEvents`], binary mode |
//! | `cloudevents-structured` | [`Format::CloudEvents`], structured mode |
//! | `debezium` | [`Format::Debezium`] |

mod cloudevents;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::str::FromStr;

use bytes::Bytes;
use serde::Deserialize;
use thiserror::Error;

use crate::{Envelope, rfc3339_micros};

pub use cloudevents::{
    CloudEvents, CloudEventsMode, DEFAULT_SOURCE, InvalidSource, MAX_SOURCE_BYTES, STRUCTURED_CONTENT_TYPE,
};

/// How an event is written on the wire. Part of the external contract.
///
/// Made from the text in the config by [`FromStr`] or `Deserialize`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub enum Format {
    /// Body = payload bytes; everything else in headers with plain names. The default.
    #[default]
    Plain,
    /// CloudEvents 1.0 by the binding of each protocol.
    CloudEvents(CloudEvents),
    /// What Debezium's outbox event router emits in its default configuration: body = payload bytes, header `id` =
    /// event id, and the message key, where the protocol has one, = aggregate id. The header `eventType` is added, as
    /// that router's option `type:header:eventType` does: without it no consumer could tell what happened.
    ///
    /// The router's default topic is [`DEBEZIUM_TOPIC`]; an adapter's topic is set in its own config.
    Debezium,
}

/// The texts that [`Format`] is made from.
pub const FORMATS: [&str; 4] = ["plain", "cloudevents", "cloudevents-structured", "debezium"];

/// The headers of the plain format, in their order. `content-type` belongs to it too and stands in
/// [`Message::content_type`].
pub const PLAIN_HEADERS: [&str; 5] = ["event-id", "event-type", "aggregate-type", "aggregate-id", "created-at"];

/// The headers of the Debezium format, in their order.
pub const DEBEZIUM_HEADERS: [&str; 2] = ["id", "eventType"];

/// The topic of Debezium's outbox event router in its default configuration, as a template of this project.
pub const DEBEZIUM_TOPIC: &str = "outbox.event.{aggregate_type}";

/// A text that names no [`Format`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown format `{given}`; known are `plain`, `cloudevents`, `cloudevents-structured` and `debezium`")]
pub struct UnknownFormat {
    given: String,
}

/// An event in a format, for any protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// The bytes that consumers read.
    pub body: Bytes,
    /// What they are; to be put where the protocol keeps it. (NATS wants it as `ce-datacontenttype` too in the binary
    /// mode of CloudEvents.)
    pub content_type: Cow<'a, str>,
    /// Headers of the format, in a fixed order. Their names are ASCII letters, digits and `-` with the prefix that the
    /// adapter gave, and fit every protocol; some hold upper-case letters (`eventType`).
    pub system: Vec<(Cow<'static, str>, Cow<'a, str>)>,
    /// The event's own headers that no header of the format overrides (`content-type` included, in any case), by name.
    pub own: Vec<(&'a str, &'a str)>,
}

impl Format {
    /// The text that makes this format.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::CloudEvents(settings) => match settings.mode() {
                CloudEventsMode::Binary => "cloudevents",
                CloudEventsMode::Structured => "cloudevents-structured",
            },
            Self::Debezium => "debezium",
        }
    }

    /// Sets the `source` of a CloudEvents format; the other formats have none and stay as they are.
    ///
    /// # Errors
    /// [`InvalidSource`] when it is no URI reference, for whatever format: a config that is wrong is said to be so.
    pub fn with_source(self, source: &str) -> Result<Self, InvalidSource> {
        let settings = |mode| CloudEvents::new(mode, source);
        Ok(match self {
            Self::CloudEvents(old) => Self::CloudEvents(settings(old.mode())?),
            other => settings(CloudEventsMode::Binary).map(|_| other)?,
        })
    }

    /// Renders one event. Pure; but for the structured mode of CloudEvents the payload is not copied.
    ///
    /// `attribute_prefix` stands before the names of CloudEvents attributes, as the protocol's binding says: `ce-` for
    /// HTTP and NATS, `ce_` for Kafka, `cloudEvents:` for AMQP. The other formats do not use it.
    #[must_use]
    pub fn render<'a>(&self, event: &'a Envelope, attribute_prefix: &str) -> Message<'a> {
        let data = || event.payload.data().clone();
        let content_type = || Cow::Borrowed(event.payload.content_type());
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
                Message { body: data(), content_type: content_type(), system, own }
            }
            Self::CloudEvents(settings) => settings.render(event, attribute_prefix),
            Self::Debezium => {
                let values = [Cow::Owned(event.event_id.to_string()), Cow::Borrowed(event.event_type.as_str())];
                let system: Vec<_> = DEBEZIUM_HEADERS.iter().map(|name| Cow::Borrowed(*name)).zip(values).collect();
                let own = own_headers(event, &system);
                Message { body: data(), content_type: content_type(), system, own }
            }
        }
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "plain" => Ok(Self::Plain),
            "cloudevents" => Ok(Self::CloudEvents(CloudEvents::default())),
            "cloudevents-structured" => {
                Ok(Self::CloudEvents(CloudEvents::default().with_mode(CloudEventsMode::Structured)))
            }
            "debezium" => Ok(Self::Debezium),
            _ => Err(UnknownFormat { given: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for Format {
    type Error = UnknownFormat;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
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
