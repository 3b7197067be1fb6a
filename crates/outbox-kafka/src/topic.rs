//! Topics that Kafka takes, whatever stands in the event. Pure.
//!
//! Kafka allows `a-z A-Z 0-9 . _ -`, so `%` can't escape here; `_` does. In data every other character, and the
//! separator `.`, becomes `_` with two upper-case hexadecimal digits for each of its bytes. An `_` of the data stays as
//! it is unless it could be read as such an escape, so `order_placed` stays and no two values give the same token.
//! <https://kafka.apache.org/documentation/#topicconfigs>

use std::fmt::Write as _;

use outbox_core::{Envelope, PublishError, TopicSyntax, TopicTemplate};

use crate::encode::rejected;

/// Kafka keeps a topic's partition in a directory of its name, a dash and a number, hence a file name's 255 bytes less
/// these. `Topic.MAX_NAME_LENGTH` of Apache Kafka.
const MAX_TOPIC_BYTES: usize = 249;

const SYNTAX: TopicSyntax = TopicSyntax { separator: Some('.'), wildcards: &[], max_bytes: MAX_TOPIC_BYTES };

/// Parses a template and checks its own text.
pub(crate) fn parse(template: &str) -> Result<TopicTemplate, String> {
    let parsed = TopicTemplate::parse(template, SYNTAX).map_err(|error| error.to_string())?;
    if let Some(illegal) = parsed.literals().flat_map(str::chars).find(|c| !is_legal(*c)) {
        return Err(format!(
            "`{template}` contains {illegal:?}, and Kafka's topics hold only a-z, A-Z, 0-9, `.`, `_` and `-`"
        ));
    }
    if matches!(template, "" | "." | "..") {
        return Err(format!("must be a topic's name, and `{template}` is none"));
    }
    Ok(parsed)
}

/// The topic of one event.
///
/// # Errors
/// `Rejected`: a header is missing that the template names, or the topic is too long.
pub(crate) fn render(template: &TopicTemplate, event: &Envelope) -> Result<String, PublishError> {
    template.render_with(event, push_escaped).map_err(|error| rejected(error.to_string()).with_source(error))
}

fn push_escaped(topic: &mut String, value: &str) {
    for (at, c) in value.char_indices() {
        if (is_legal(c) && c != '.' && c != '_') || (c == '_' && !may_begin_an_escape(&value[at + 1..])) {
            topic.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(topic, "_{byte:02X}"); // writing to a String can't fail
        }
    }
}

fn is_legal(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Whether what follows an `_` could be read as the digits of an escape; the value's end could be followed by any text.
fn may_begin_an_escape(rest: &str) -> bool {
    rest.bytes().take(2).all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use outbox_core::{ErrorKind, EventId, Headers, Payload};

    use super::*;

    fn event(aggregate_id: &str) -> Envelope {
        Envelope {
            id: 1,
            event_id: EventId::from_uuid(uuid::Uuid::nil()),
            aggregate_type: "order".into(),
            aggregate_id: aggregate_id.into(),
            event_type: "order_placed".into(),
            payload: Payload::raw_json("{}"),
            headers: Headers::from([("tenant".into(), "a b".into())]),
            created_at: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn data_stays_in_its_token_and_is_always_legal() {
        let check = |template: &str, aggregate_id: &str, topic: &str| {
            let rendered = render(&parse(template).unwrap(), &event(aggregate_id)).unwrap();
            assert_eq!(rendered, topic);
            assert!(rendered.chars().all(is_legal), "{rendered}");
        };
        check("{aggregate_type}.{event_type}", "1", "order.order_placed");
        check("x.{aggregate_id}", "a.b", "x.a_2Eb");
        check("{aggregate_id}", "..", "_2E_2E");
        check("{aggregate_id}", "a_2Eb", "a_5F2Eb");
        check("{aggregate_id}", "a_2eb", "a_2eb");
        check("{aggregate_id}", "a_b_", "a_b_5F");
        check("{aggregate_id}", "a_B", "a_5FB");
        check("{aggregate_id}", "__", "__5F");
        check("x-{aggregate_id}", "%/\\\r\n\0", "x-_25_2F_5C_0D_0A_00");
        check("x.{aggregate_id}", "żó", "x._C5_BC_C3_B3");
        check("{header:tenant}", "1", "a_20b");
    }

    #[test]
    fn no_two_values_give_the_same_token() {
        let alphabet = ["_", "2", "E", "e", ".", "é", "-", "x"];
        let mut values = vec![String::new()];
        for _ in 0..4 {
            let longer = values.iter().flat_map(|value| alphabet.map(|c| format!("{value}{c}")));
            values = longer.collect();
        }
        let token = |value: &String| {
            let mut token = String::new();
            push_escaped(&mut token, value);
            token
        };
        let tokens: std::collections::BTreeSet<_> = values.iter().map(token).collect();
        assert_eq!(tokens.len(), values.len());
    }

    #[test]
    fn bad_templates_and_events_are_named() {
        let check = |template: &str, problem: &str| assert_eq!(parse(template).unwrap_err(), problem);
        check("", "must be a topic's name, and `` is none");
        check("..", "must be a topic's name, and `..` is none");
        check("{x", "unbalanced braces in topic template `{x`");
        let rest = "and Kafka's topics hold only a-z, A-Z, 0-9, `.`, `_` and `-`";
        check("orders.*", &format!("`orders.*` contains '*', {rest}"));
        check("zamówienia", &format!("`zamówienia` contains 'ó', {rest}"));
        check(&"x".repeat(250), "the topic has 250 bytes, the broker allows 249");
        let error = render(&parse("{aggregate_id}").unwrap(), &event(&"é".repeat(42))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert_eq!(error.report(), "the topic has 252 bytes, the broker allows 249");
        let error = render(&parse("{header:absent}").unwrap(), &event("1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.report().contains("header `absent`"), "{}", error.report());
    }
}
