//! Topic templates: an abstract destination made from an event's fields.

use std::fmt::Write as _;

use thiserror::Error;

use crate::Envelope;

/// How one broker writes topics: what separates tokens, what is a wildcard, how long a topic may be.
///
/// A field's value never leaves its token: separators, wildcards, `%`, white space and control characters in data
/// are percent-encoded byte by byte, so `{aggregate_id}` = `a.b` becomes `a%2Eb` where `.` separates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicSyntax {
    /// The character between tokens, if the broker's topics have tokens.
    pub separator: Option<char>,
    /// Characters that subscribers use as wildcards; never produced from data and refused in templates.
    pub wildcards: &'static [char],
    /// The longest topic in bytes; a longer one is an error of that event.
    pub max_bytes: usize,
}

/// A parsed template such as `{aggregate_type}.{event_type}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    text: String,
    parts: Vec<Part>,
    syntax: TopicSyntax,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    EventType,
    AggregateType,
    AggregateId,
    Header(String),
}

/// What is wrong with a template, or with an event that it should name a topic for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopicError {
    /// A `{` without `}`, or a `}` without `{`.
    #[error("unbalanced braces in topic template `{template}`")]
    Unbalanced {
        /// The template.
        template: String,
    },
    /// A placeholder that does not exist.
    #[error(
        "unknown placeholder `{{{name}}}` in a topic template; known are {{event_type}}, {{aggregate_type}}, \
         {{aggregate_id}} and {{header:NAME}}"
    )]
    UnknownPlaceholder {
        /// What stood between the braces.
        name: String,
    },
    /// The template's own text holds a wildcard or a control character.
    #[error("topic template `{template}` contains {character:?}, which is reserved for subscribers or unprintable")]
    Reserved {
        /// The template.
        template: String,
        /// The character.
        character: char,
    },
    /// The event lacks a header that the template names.
    #[error("the topic template needs header `{name}`, which the event does not have")]
    MissingHeader {
        /// The header.
        name: String,
    },
    /// The topic is longer than the broker allows.
    #[error("the topic has {bytes} bytes, the broker allows {max_bytes}")]
    TooLong {
        /// Length of the rendered topic.
        bytes: usize,
        /// The broker's limit.
        max_bytes: usize,
    },
}

impl TopicTemplate {
    /// Parses a template for a broker's syntax.
    ///
    /// # Errors
    /// [`TopicError`] for unbalanced braces, unknown placeholders, reserved characters, or a template without
    /// placeholders that is too long.
    pub fn parse(template: &str, syntax: TopicSyntax) -> Result<Self, TopicError> {
        let unbalanced = || TopicError::Unbalanced { template: template.to_owned() };
        let mut parts = Vec::new();
        let mut rest = template;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix('{') {
                let (name, after) = inner.split_once('}').ok_or_else(unbalanced)?;
                parts.push(placeholder(name)?);
                rest = after;
            } else {
                let end = rest.find('{').unwrap_or(rest.len());
                let (literal, after) = rest.split_at(end);
                if literal.contains('}') {
                    return Err(unbalanced());
                }
                let reserved = |c: &char| syntax.wildcards.contains(c) || c.is_control();
                if let Some(character) = literal.chars().find(reserved) {
                    return Err(TopicError::Reserved { template: template.to_owned(), character });
                }
                parts.push(Part::Literal(literal.to_owned()));
                rest = after;
            }
        }
        let parsed = Self { text: template.to_owned(), parts, syntax };
        if parsed.is_static() {
            parsed.bounded(template.to_owned())?;
        }
        Ok(parsed)
    }

    /// The template as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether every event gets the same topic.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Literal(_)))
    }

    /// The topic of one event.
    ///
    /// # Errors
    /// [`TopicError::MissingHeader`] and [`TopicError::TooLong`]: this event can't have a topic.
    pub fn render(&self, event: &Envelope) -> Result<String, TopicError> {
        self.render_with(event, |topic, value| self.push_escaped(topic, value))
    }

    /// The topic of one event, for a broker whose topics can't hold `%`: `escape` appends a field's value in its own
    /// way and must keep it in its token.
    ///
    /// # Errors
    /// Those of [`render`](Self::render).
    pub fn render_with(&self, event: &Envelope, escape: impl Fn(&mut String, &str)) -> Result<String, TopicError> {
        let mut topic = String::with_capacity(self.text.len() + 32);
        for part in &self.parts {
            match part {
                Part::Literal(text) => topic.push_str(text),
                Part::EventType => escape(&mut topic, &event.event_type),
                Part::AggregateType => escape(&mut topic, &event.aggregate_type),
                Part::AggregateId => escape(&mut topic, &event.aggregate_id),
                Part::Header(name) => {
                    let value = event.headers.get(name).filter(|value| !value.is_empty());
                    let missing = || TopicError::MissingHeader { name: name.clone() };
                    escape(&mut topic, value.ok_or_else(missing)?);
                }
            }
        }
        self.bounded(topic)
    }

    /// The template's own text, without its placeholders: for brokers that allow few characters.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn bounded(&self, topic: String) -> Result<String, TopicError> {
        let (bytes, max_bytes) = (topic.len(), self.syntax.max_bytes);
        if bytes > max_bytes { Err(TopicError::TooLong { bytes, max_bytes }) } else { Ok(topic) }
    }

    fn push_escaped(&self, topic: &mut String, value: &str) {
        for c in value.chars() {
            let reserved = Some(c) == self.syntax.separator
                || self.syntax.wildcards.contains(&c)
                || c == '%'
                || c.is_control()
                || c.is_whitespace();
            if reserved {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(topic, "%{byte:02X}"); // writing to a String can't fail
                }
            } else {
                topic.push(c);
            }
        }
    }
}

fn placeholder(name: &str) -> Result<Part, TopicError> {
    match name {
        "event_type" => Ok(Part::EventType),
        "aggregate_type" => Ok(Part::AggregateType),
        "aggregate_id" => Ok(Part::AggregateId),
        _ => match name.strip_prefix("header:") {
            Some(header) if !header.is_empty() => Ok(Part::Header(header.to_owned())),
            _ => Err(TopicError::UnknownPlaceholder { name: name.to_owned() }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventId, Headers, Payload};
    use std::time::SystemTime;

    const DOTTED: TopicSyntax = TopicSyntax { separator: Some('.'), wildcards: &['*', '#'], max_bytes: 40 };

    fn event(aggregate_id: &str) -> Envelope {
        Envelope {
            id: 1,
            event_id: EventId::from_uuid(uuid::Uuid::nil()),
            aggregate_type: "order".into(),
            aggregate_id: aggregate_id.into(),
            event_type: "placed".into(),
            payload: Payload::raw_json("{}"),
            headers: Headers::from([("tenant".into(), "a b".into())]),
            created_at: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn data_stays_in_its_token() {
        let check = |template: &str, aggregate_id: &str, topic: &str| {
            let template = TopicTemplate::parse(template, DOTTED).unwrap();
            assert_eq!(template.render(&event(aggregate_id)).unwrap(), topic);
        };
        check("{aggregate_type}.{event_type}", "1", "order.placed");
        check("x.{aggregate_id}", "a.b", "x.a%2Eb");
        check("x.{aggregate_id}", "#*%\r\n", "x.%23%2A%25%0D%0A");
        check("x.{aggregate_id}", "zażółć", "x.zażółć");
        check("x.{aggregate_id}", "a\u{a0}b", "x.a%C2%A0b");
        check("{header:tenant}", "1", "a%20b");
        check("", "1", "");
    }

    #[test]
    fn an_adapter_may_escape_in_its_own_way() {
        let template = TopicTemplate::parse("a-{aggregate_id}.{header:tenant}", DOTTED).unwrap();
        assert_eq!(template.literals().collect::<Vec<_>>(), ["a-", "."]);
        let underscored = |topic: &mut String, value: &str| topic.push_str(&value.replace(['.', ' '], "_"));
        assert_eq!(template.render_with(&event("b.c"), underscored).unwrap(), "a-b_c.a_b");
        let long = |topic: &mut String, value: &str| topic.push_str(&value.repeat(9));
        let error = template.render_with(&event("b.c"), long).unwrap_err();
        assert_eq!(error, TopicError::TooLong { bytes: 57, max_bytes: 40 });
    }

    #[test]
    fn bad_templates_and_events_are_named() {
        let check = |template: &str, error: &str| {
            assert_eq!(TopicTemplate::parse(template, DOTTED).unwrap_err().to_string(), error);
        };
        check("{event_type", "unbalanced braces in topic template `{event_type`");
        check("a}b", "unbalanced braces in topic template `a}b`");
        check(
            "{evnt}",
            "unknown placeholder `{evnt}` in a topic template; known are {event_type}, {aggregate_type}, \
             {aggregate_id} and {header:NAME}",
        );
        check("orders.#", "topic template `orders.#` contains '#', which is reserved for subscribers or unprintable");
        check(&"x".repeat(41), "the topic has 41 bytes, the broker allows 40");
        let needs = TopicTemplate::parse("{header:absent}", DOTTED).unwrap();
        assert_eq!(needs.render(&event("1")), Err(TopicError::MissingHeader { name: "absent".into() }));
        let long = TopicTemplate::parse("{aggregate_id}", DOTTED).unwrap();
        assert_eq!(long.render(&event(&"é".repeat(21))), Err(TopicError::TooLong { bytes: 42, max_bytes: 40 }));
    }
}
