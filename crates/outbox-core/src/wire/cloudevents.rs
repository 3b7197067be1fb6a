//! CloudEvents 1.0: which attributes an event has, and both ways to write them.
//!
//! <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{Message, own_headers, percent_encode};
use crate::{Envelope, Payload, rfc3339_micros};

/// The `source` when none is set: a relative reference, as the specification's own examples have it. Event ids are
/// unique everywhere, so `source` and `id` together are whatever this is.
pub const DEFAULT_SOURCE: &str = "/outbox";

/// The longest `source`, in bytes: the same bound as for all names that travel with an event.
pub const MAX_SOURCE_BYTES: usize = 255;

/// The content type of the structured mode.
pub const STRUCTURED_CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

/// Where the attributes stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CloudEventsMode {
    /// Attributes in headers, body = payload bytes.
    #[default]
    Binary,
    /// Attributes and payload in one JSON object.
    Structured,
}

/// The settings of [`Format::CloudEvents`](super::Format::CloudEvents).
///
/// | attribute | is |
/// |---|---|
/// | `specversion` | `1.0` |
/// | `id` | the event id |
/// | `source` | as set, [`DEFAULT_SOURCE`] by default |
/// | `type` | the event type |
/// | `subject`, `partitionkey` | the aggregate id |
/// | `aggregatetype` | the aggregate type |
/// | `time` | when the inserting transaction began; absent before the year 0 and after 9999, which RFC 3339 can't write |
/// | `traceparent`, `tracestate` | the event's headers of these names, in any case |
/// | `datacontenttype` | the content type of the payload; in binary mode it is the content type of the message |
///
/// # Characters
/// CloudEvents allows no control characters and no noncharacters in an attribute. A value that holds one is
/// percent-encoded as a whole: each such character and each `%`. Any other value stays as it is, also with `%` in it:
/// consumers read the same value in both modes. (So a consumer can't tell `a%0Ab` from `a`, line feed, `b`.)
///
/// # Own headers
/// They travel beside the attributes, `traceparent` too. One whose name begins with the attribute prefix of the
/// protocol, in any case and with `-`, `_` or `:` behind it, is left out: consumers would take it for an attribute.
///
/// # Structured mode
/// A JSON payload is put into `data` as its bytes are, found to be JSON by a scan that keeps no tree. Everything else
/// is in `data_base64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    mode: CloudEventsMode,
    source: String,
}

impl Default for CloudEvents {
    fn default() -> Self {
        Self { mode: CloudEventsMode::default(), source: DEFAULT_SOURCE.to_owned() }
    }
}

/// A text can't be the `source` of CloudEvents.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidSource {
    /// CloudEvents requires one.
    #[error("the source must not be empty")]
    Empty,
    /// It is longer than [`MAX_SOURCE_BYTES`].
    #[error("the source must be at most {MAX_SOURCE_BYTES} bytes, got {bytes}")]
    Long {
        /// Its length in bytes of UTF-8.
        bytes: usize,
    },
    /// It holds a character that a URI can't have there.
    #[error("the source must be a URI or a path such as `/orders`; {found:?} can't stand there, write it as %XX")]
    Character {
        /// The first such character.
        found: char,
    },
    /// What stands before the first colon is no scheme.
    #[error("the source must be a URI or a path such as `/orders`; what stands before its first `:` is no scheme")]
    Scheme,
}

impl CloudEvents {
    /// Settings with a `source`: a URI reference (RFC 3986) that names this system, best an absolute URI.
    ///
    /// # Errors
    /// [`InvalidSource`] when it is empty, too long or no URI reference.
    pub fn new(mode: CloudEventsMode, source: impl Into<String>) -> Result<Self, InvalidSource> {
        let source = source.into();
        check_source(&source)?;
        Ok(Self { mode, source })
    }

    /// Sets the mode.
    #[must_use]
    pub const fn with_mode(mut self, mode: CloudEventsMode) -> Self {
        self.mode = mode;
        self
    }

    /// Where the attributes stand.
    #[must_use]
    pub const fn mode(&self) -> CloudEventsMode {
        self.mode
    }

    /// The attribute `source`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn render<'a>(&self, event: &'a Envelope, prefix: &str) -> Message<'a> {
        let attributes = self.attributes(event);
        match self.mode {
            CloudEventsMode::Binary => {
                let named = |(name, value)| (Cow::Owned(format!("{prefix}{name}")), value);
                let system = attributes.into_iter().map(named).collect::<Vec<_>>();
                let own = beside_attributes(event, prefix, &system);
                let content_type = Cow::Borrowed(event.payload.content_type());
                Message { body: event.payload.data().clone(), content_type, system, own }
            }
            CloudEventsMode::Structured => Message {
                body: json_envelope(&attributes, &event.payload).into(),
                content_type: Cow::Borrowed(STRUCTURED_CONTENT_TYPE),
                system: Vec::new(),
                own: beside_attributes(event, prefix, &[]),
            },
        }
    }

    /// All attributes but `datacontenttype`, in a fixed order.
    fn attributes<'a>(&self, event: &'a Envelope) -> Vec<(&'static str, Cow<'a, str>)> {
        let mut attributes = vec![
            ("specversion", Cow::Borrowed("1.0")),
            ("id", Cow::Owned(event.event_id.to_string())),
            ("source", Cow::Owned(self.source.clone())),
            ("type", allowed(&event.event_type)),
        ];
        // An optional attribute must not be empty, so an empty value is an absent one.
        let mut optional = |name, value: Cow<'a, str>| {
            if !value.is_empty() {
                attributes.push((name, value));
            }
        };
        optional("subject", allowed(&event.aggregate_id));
        let time = rfc3339_micros(event.created_at);
        if !time.starts_with(['+', '-']) {
            optional("time", Cow::Owned(time));
        }
        optional("partitionkey", allowed(&event.aggregate_id));
        optional("aggregatetype", allowed(&event.aggregate_type));
        for name in ["traceparent", "tracestate"] {
            optional(name, header(event, name).map_or(Cow::Borrowed(""), allowed));
        }
        attributes
    }
}

/// The value of an event's header; the exact name before one in another case.
fn header<'a>(event: &'a Envelope, name: &str) -> Option<&'a str> {
    let exact = event.headers.get(name);
    let found = exact.or_else(|| event.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v));
    found.map(String::as_str)
}

/// The value as CloudEvents allows it.
fn allowed(value: &str) -> Cow<'_, str> {
    let forbidden = |c: char| c.is_control() || matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe;
    if value.contains(forbidden) { percent_encode(value, |c| !forbidden(c)) } else { Cow::Borrowed(value) }
}

/// The event's own headers that nobody takes for an attribute.
fn beside_attributes<'a>(
    event: &'a Envelope,
    prefix: &str,
    system: &[(Cow<'static, str>, Cow<'a, str>)],
) -> Vec<(&'a str, &'a str)> {
    const SEPARATORS: [char; 3] = ['-', '_', ':'];
    let stem = prefix.trim_end_matches(SEPARATORS);
    let reserved = |name: &str| {
        let (start, rest) = name.split_at_checked(stem.len()).unwrap_or(("", ""));
        !stem.is_empty() && start.eq_ignore_ascii_case(stem) && rest.starts_with(SEPARATORS)
    };
    own_headers(event, system).into_iter().filter(|(name, _)| !reserved(name)).collect()
}

/// The event in the JSON format. <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>
fn json_envelope(attributes: &[(&'static str, Cow<'_, str>)], payload: &Payload) -> Vec<u8> {
    let data = payload.data();
    let json = match payload {
        Payload::Json(json) => serde_json::from_slice::<&RawValue>(json).ok(),
        Payload::Bytes { .. } => None,
    };
    let mut out = Vec::with_capacity(if json.is_some() { data.len() } else { data.len().div_ceil(3) * 4 } + 512);
    let content_type = ("datacontenttype", allowed(payload.content_type()));
    for (name, value) in attributes.iter().chain((!content_type.1.is_empty()).then_some(&content_type)) {
        out.extend_from_slice(if out.is_empty() { b"{\"" } else { b",\"" });
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        out.extend_from_slice(serde_json::Value::from(value.as_ref()).to_string().as_bytes());
    }
    match json {
        Some(json) => {
            out.extend_from_slice(b",\"data\":");
            out.extend_from_slice(json.get().as_bytes());
            out.push(b'}');
        }
        None => {
            out.extend_from_slice(b",\"data_base64\":\"");
            out.extend_from_slice(STANDARD.encode(data).as_bytes());
            out.extend_from_slice(b"\"}");
        }
    }
    out
}

/// Checks what RFC 3986 says of the characters of a URI reference and of its scheme.
fn check_source(source: &str) -> Result<(), InvalidSource> {
    if source.is_empty() {
        return Err(InvalidSource::Empty);
    }
    if source.len() > MAX_SOURCE_BYTES {
        return Err(InvalidSource::Long { bytes: source.len() });
    }
    let refuse = |found| Err(InvalidSource::Character { found });
    let mut fragment = false;
    for (at, c) in source.char_indices() {
        match c {
            '%' => {
                let digits = source.as_bytes().get(at + 1..at + 3);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return refuse(c);
                }
            }
            '#' if fragment => return refuse(c),
            '#' => fragment = true,
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' | '_' | '~' => {}
            ':' | '/' | '?' | '@' | '!' | '$' | '&' | '\'' | '(' | ')' | '*' | '+' | ',' | ';' | '=' => {}
            // `[` and `]` too: they may stand around an IPv6 address only, which is a poor name of a system.
            _ => return refuse(c),
        }
    }
    let first = &source[..source.find(['/', '?', '#']).unwrap_or(source.len())];
    match first.split_once(':') {
        Some((scheme, _)) => {
            let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
            let ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(rest);
            if ok { Ok(()) } else { Err(InvalidSource::Scheme) }
        }
        None => Ok(()),
    }
}
