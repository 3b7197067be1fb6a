//! From an envelope to a NATS message. Pure: no clock, no connection.

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use outbox_core::wire::{CloudEventsMode, Format, is_plain_in_http, percent_encode};
use outbox_core::{Envelope, ErrorKind, PublishError, TopicTemplate};

use crate::config::NatsConfig;

/// CloudEvents' binding for NATS: <https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/nats-protocol-binding.md>.
const ATTRIBUTE_PREFIX: &str = "ce-";
/// The content type where that binding has it; beside `content-type`, where everyone else looks.
const DATA_CONTENT_TYPE: &str = "ce-datacontenttype";
/// The header by which a stream drops second copies.
const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The header by which a message names the only stream that may take it.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// In any letter case within a header's name it makes the header the server's own. Not only at the start: older servers
/// found their headers by the name's end.
const CONTROL_MARK: &str = "nats-";
/// JetStream keeps the length of a message's headers in 16 bits (error 10097).
pub(crate) const MAX_HEADER_BYTES: usize = 65_535;
/// `NATS/1.0`, a line's end, and the empty line after the headers.
const HEADER_OVERHEAD_BYTES: usize = 12;
/// A colon, a space and a line's end for each header.
const EACH_HEADER_BYTES: usize = 4;
/// Of a name that is shown in an error.
const SHOWN_CHARACTERS: usize = 40;

/// A message ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    /// What the headers take on the wire.
    pub(crate) header_bytes: usize,
    pub(crate) body: Bytes,
}

impl Message {
    /// What counts against the server's `max_payload`.
    pub(crate) fn bytes(&self) -> usize {
        self.header_bytes + self.body.len()
    }
}

/// What all events of a publisher have in common.
#[derive(Debug, Clone)]
pub(crate) struct Encoder {
    topic: TopicTemplate,
    format: Format,
    expected_stream: Option<String>,
    max_message_bytes: usize,
}

impl Encoder {
    pub(crate) fn new(topic: TopicTemplate, config: &NatsConfig) -> Self {
        Self {
            topic,
            format: config.format.clone(),
            expected_stream: config.expected_stream.clone(),
            max_message_bytes: config.max_message_bytes,
        }
    }

    pub(crate) fn topic(&self) -> &TopicTemplate {
        &self.topic
    }

    /// Encodes one event.
    ///
    /// # Errors
    /// `Rejected`, with the figures: no subject, or one that belongs to the server; a header name that NATS can't carry;
    /// a body over `max_message_bytes`, headers over 64 KiB.
    pub(crate) fn encode(&self, event: &Envelope) -> Result<Message, PublishError> {
        let subject = self.topic.render(event).map_err(|error| rejected(error.to_string()).with_source(error))?;
        if belongs_to_server(&subject) && !belongs_to_server(self.topic.as_str()) {
            let shown = shown(&subject);
            return Err(rejected(format!(
                "the subject {shown} begins as those of the server do, by data of the event"
            )));
        }
        let rendered = self.format.render(event, ATTRIBUTE_PREFIX);
        if rendered.body.len() > self.max_message_bytes {
            let (bytes, allowed) = (rendered.body.len(), self.max_message_bytes);
            return Err(rejected(format!("the body has {bytes} bytes, max_message_bytes allows {allowed}")));
        }
        let mut headers = Headers::default();
        for (name, value) in rendered.own {
            if !name.to_ascii_lowercase().contains(CONTROL_MARK) {
                headers.add(name, value)?;
            }
        }
        let is_attribute = matches!(self.format, Format::CloudEvents(_));
        for (name, value) in &rendered.system {
            // The binding encodes an attribute as HTTP's does; other headers keep their blanks and quotation marks.
            match is_attribute {
                true => headers.add_encoded(name, &percent_encode(value, is_plain_in_http))?,
                false => headers.add(name, value)?,
            }
        }
        headers.add("content-type", &rendered.content_type)?;
        if matches!(&self.format, Format::CloudEvents(events) if events.mode() == CloudEventsMode::Binary) {
            headers.add_encoded(DATA_CONTENT_TYPE, &percent_encode(&rendered.content_type, is_plain_in_http))?;
        }
        headers.add(MESSAGE_ID, &event.event_id.to_string())?;
        if let Some(stream) = &self.expected_stream {
            headers.add(EXPECTED_STREAM, stream)?;
        }
        if headers.bytes > MAX_HEADER_BYTES {
            let (bytes, body) = (headers.bytes, rendered.body.len());
            return Err(rejected(format!(
                "the headers take {bytes} bytes (beside {body} of the body), JetStream allows {MAX_HEADER_BYTES}"
            )));
        }
        Ok(Message { subject, headers: headers.map, header_bytes: headers.bytes, body: rendered.body })
    }
}

/// Subjects by which the server is asked and commanded, and those of answers.
fn belongs_to_server(subject: &str) -> bool {
    subject.starts_with('$') || subject.starts_with("_INBOX")
}

#[derive(Debug)]
struct Headers {
    map: HeaderMap,
    bytes: usize,
}

impl Default for Headers {
    fn default() -> Self {
        Self { map: HeaderMap::new(), bytes: HEADER_OVERHEAD_BYTES }
    }
}

impl Headers {
    fn add(&mut self, name: &str, value: &str) -> Result<(), PublishError> {
        // Readers strip blanks at the ends; where there are any, all are encoded.
        let at_ends = value.starts_with(' ') || value.ends_with(' ');
        self.add_encoded(name, &percent_encode(value, |c| c.is_ascii_graphic() || (c == ' ' && !at_ends)))
    }

    /// The conversions from texts to names and values panic for some; here only those that return an error are used.
    fn add_encoded(&mut self, name: &str, value: &str) -> Result<(), PublishError> {
        let bad = name.char_indices().find(|(_, c)| !c.is_ascii_graphic() || *c == ':');
        if let Some((at, c)) = bad {
            return Err(rejected(format!(
                "the header name {} ({} bytes) can't be carried: {c:?} at byte {at}; NATS takes printable ASCII \
                 without blanks and `:`",
                shown(name),
                name.len()
            )));
        }
        if name.is_empty() {
            return Err(rejected("a header has an empty name (0 bytes), which NATS can't carry".to_owned()));
        }
        self.bytes += name.len() + value.len() + EACH_HEADER_BYTES;
        let refused = |problem: String| rejected(format!("the header {} can't be carried: {problem}", shown(name)));
        let key: HeaderName = name.parse().map_err(|_| refused("its name".to_owned()))?;
        let value: HeaderValue = value.parse().map_err(|_| refused("its value".to_owned()))?;
        self.map.insert(key, value);
        Ok(())
    }
}

fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_CHARACTERS).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("`{}{more}`", cut.escape_debug())
}

pub(crate) fn rejected(detail: String) -> PublishError {
    PublishError::new(ErrorKind::Rejected, detail)
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
