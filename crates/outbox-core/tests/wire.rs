//! The wire formats through their public interface: golden files, and a table for each rule.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

use std::time::{Duration, SystemTime};

use outbox_core::wire::{
    CloudEvents, CloudEventsMode, DEBEZIUM_TOPIC, DEFAULT_SOURCE, FORMATS, Format, InvalidSource, MAX_SOURCE_BYTES,
    Message, STRUCTURED_CONTENT_TYPE,
};
use outbox_core::{Envelope, Payload, TopicSyntax, TopicTemplate};
use outbox_testkit::golden;

fn event() -> Envelope {
    golden::events().swap_remove(0).1
}

fn structured() -> Format {
    "cloudevents-structured".parse().unwrap()
}

fn binary() -> Format {
    "cloudevents".parse().unwrap()
}

/// The body of the structured mode.
fn json(event: &Envelope) -> String {
    String::from_utf8(structured().render(event, "ce-").body.to_vec()).unwrap()
}

fn system<'a>(message: &'a Message<'_>, name: &str) -> Option<&'a str> {
    message.system.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_ref())
}

#[test]
fn each_format_is_as_its_golden_file_says() {
    for name in FORMATS {
        let format: Format = name.parse().unwrap();
        let mut text = String::new();
        for (title, event) in golden::events() {
            let message = format.render(&event, "ce-");
            let mut parts = vec![("(content type)".to_owned(), message.content_type.to_string())];
            parts.extend(message.system.iter().map(|(name, value)| (name.to_string(), value.to_string())));
            parts.extend(message.own.iter().map(|(name, value)| (format!("(own) {name}"), (*value).to_owned())));
            text += &golden::section(title, &parts, &message.body);
        }
        golden::check(format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR")), &text);
    }
}

#[test]
fn each_text_makes_its_format_and_an_unknown_one_lists_them() {
    for name in FORMATS {
        let format: Format = name.parse().unwrap();
        assert_eq!(format.as_str(), name);
        let expected = if name == "plain" { Format::default() } else { format.clone() };
        assert_eq!(serde_json::from_str::<Format>(&format!("\"{name}\"")).unwrap(), expected);
    }
    let error = "Plain".parse::<Format>().unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown format `Plain`; known are `plain`, `cloudevents`, `cloudevents-structured` and `debezium`"
    );
    assert!(FORMATS.iter().all(|name| error.contains(&format!("`{name}`"))));
    assert!(serde_json::from_str::<Format>("\"xml\"").unwrap_err().to_string().contains("unknown format `xml`"));
}

#[test]
fn a_source_is_a_uri_reference() {
    let check = |source: &str, expected: Result<(), InvalidSource>| {
        let made = CloudEvents::new(CloudEventsMode::Binary, source);
        assert_eq!(made.as_ref().map(drop).map_err(Clone::clone), expected, "{source}");
        assert_eq!(binary().with_source(source).map(drop), expected, "{source}");
        assert_eq!(Format::Plain.with_source(source).map(drop), expected, "{source}: wrong for every format");
        if let Ok(made) = made {
            assert_eq!(made.source(), source);
        }
    };
    for source in [
        DEFAULT_SOURCE,
        "orders",
        "orders/eu?x=1#y",
        "https://example.com:8080/orders/%C5%BC",
        "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
        "mailto:relay@example.com",
        "/a:b",
        "//host/path",
        "?only",
        "#only",
    ] {
        check(source, Ok(()));
    }
    let character = |found| Err(InvalidSource::Character { found });
    check("", Err(InvalidSource::Empty));
    check(" /orders", character(' '));
    check("/zamówienia", character('ó'));
    check("/a%2", character('%'));
    check("/a%GG", character('%'));
    check("/a%", character('%'));
    check("/a#b#c", character('#'));
    check("/a\"b", character('"'));
    check("http://[::1]/", character('['));
    check("/a\nb", character('\n'));
    check("1a:b", Err(InvalidSource::Scheme));
    check(":b", Err(InvalidSource::Scheme));
    check("a_b:c", Err(InvalidSource::Scheme));
    check(&"a".repeat(MAX_SOURCE_BYTES), Ok(()));
    check(&"a".repeat(MAX_SOURCE_BYTES + 1), Err(InvalidSource::Long { bytes: MAX_SOURCE_BYTES + 1 }));
}

#[test]
fn the_source_that_is_set_is_the_attribute_in_both_modes_and_others_have_none() {
    let event = event();
    let format = binary().with_source("https://example.com/orders").unwrap();
    assert_eq!(system(&format.render(&event, "ce_"), "ce_source"), Some("https://example.com/orders"));
    let format = structured().with_source("https://example.com/orders").unwrap();
    assert_eq!(format.as_str(), "cloudevents-structured");
    let body = format.render(&event, "").body;
    assert!(String::from_utf8_lossy(&body).contains(r#""source":"https://example.com/orders""#));
    assert_eq!(Format::Debezium.with_source("/x").unwrap(), Format::Debezium);
}

#[test]
fn the_prefix_is_the_protocols() {
    let event = event();
    for prefix in ["ce-", "ce_", "cloudEvents:", ""] {
        let message = binary().render(&event, prefix);
        let names: Vec<_> = message.system.iter().map(|(name, _)| name.strip_prefix(prefix).unwrap()).collect();
        let expected = ["specversion", "id", "source", "type", "subject", "time", "partitionkey", "aggregatetype"];
        assert_eq!(names, expected, "{prefix}");
    }
}

#[test]
fn own_headers_travel_unless_they_would_be_taken_for_the_formats() {
    let own = |format: &Format, prefix: &str, name: &str| {
        let mut event = event();
        event.headers = [(name.to_owned(), "own".to_owned())].into();
        let message = format.render(&event, prefix);
        assert!(message.system.iter().all(|(system, value)| value != "own" || system.ends_with("traceparent")));
        message.own == [(name, "own")]
    };
    let check = |format: &str, prefix: &str, travels: &[&str], left_out: &[&str]| {
        let format: Format = format.parse().unwrap();
        for name in travels {
            assert!(own(&format, prefix, name), "{format:?} {prefix} {name} travels");
        }
        for name in left_out {
            assert!(!own(&format, prefix, name), "{format:?} {prefix} {name} is left out");
        }
    };
    check("plain", "", &["id", "ce-id", "traceparent", "x-event-id"], &["Event-ID", "content-type", "CREATED-AT"]);
    check("debezium", "", &["event-id", "ce-id", "traceparent"], &["id", "Id", "eventtype", "Content-Type"]);
    for mode in ["cloudevents", "cloudevents-structured"] {
        check(mode, "ce-", &["id", "traceparent", "ce", "cedar-x", "c"], &["ce-id", "CE-Any", "ce_id", "content-type"]);
        let beside = ["traceparent", "ce-id", "cloudEvents", "cloudEventsX:id", "żółć-a"];
        check(mode, "cloudEvents:", &beside, &["cloudEvents:id", "CLOUDEVENTS_new"]);
    }
    check("cloudevents", "", &["tenant"], &["subject", "ID"]);
}

#[test]
fn the_trace_context_is_an_attribute_whatever_its_case_and_the_exact_name_first() {
    let trace = |headers: &[(&str, &str)]| {
        let mut event = event();
        event.headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let message = binary().render(&event, "ce-");
        assert_eq!(message.own.len(), headers.len(), "they travel as headers too");
        system(&message, "ce-traceparent").map(str::to_owned)
    };
    assert_eq!(trace(&[]), None);
    assert_eq!(trace(&[("TraceParent", "00-a")]), Some("00-a".to_owned()));
    assert_eq!(trace(&[("TraceParent", "00-a"), ("traceparent", "00-b")]), Some("00-b".to_owned()));
    assert_eq!(trace(&[("traceparent", "")]), None, "an attribute must not be empty");
}

#[test]
fn what_cloudevents_forbids_in_an_attribute_is_encoded_and_nothing_else_is() {
    let check = |given: &str, expected: &str| {
        let mut event = event();
        event.aggregate_id = given.to_owned();
        let message = binary().render(&event, "ce-");
        assert_eq!(system(&message, "ce-subject"), Some(expected));
        assert_eq!(system(&message, "ce-partitionkey"), Some(expected));
        let read: serde_json::Value = serde_json::from_str(&json(&event)).unwrap();
        assert_eq!(read["subject"], expected, "the same in both modes");
    };
    check("50% ü \"x\" \\", "50% ü \"x\" \\");
    check("a\nb", "a%0Ab");
    check("a\nb%", "a%0Ab%25");
    check("\u{7f}\u{80}\u{9f}\u{a0}", "%7F%C2%80%C2%9F\u{a0}");
    check(
        "\u{fffe}\u{1ffff}\u{fdd0}\u{fdef}\u{fffd}\u{fdf0}",
        "%EF%BF%BE%F0%9F%BF%BF%EF%B7%90%EF%B7%AF\u{fffd}\u{fdf0}",
    );
}

#[test]
fn optional_attributes_are_absent_rather_than_empty_or_invalid() {
    let mut event = event();
    event.aggregate_id = String::new();
    event.aggregate_type = String::new();
    event.payload = Payload::bytes("x", "");
    let year_10000 = Duration::from_secs(253_402_300_800);
    event.created_at = SystemTime::UNIX_EPOCH + year_10000;
    let message = binary().render(&event, "");
    let names: Vec<_> = message.system.iter().map(|(name, _)| name.as_ref()).collect();
    assert_eq!(names, ["specversion", "id", "source", "type"]);
    assert!(!json(&event).contains("datacontenttype"));
    event.created_at -= Duration::from_micros(1);
    assert_eq!(system(&binary().render(&event, ""), "time"), Some("9999-12-31T23:59:59.999999Z"));
}

#[test]
fn structured_data_is_the_payload_byte_for_byte_or_base64() {
    let check = |payload: Payload, end: &str| {
        let mut event = event();
        event.payload = payload;
        let text = json(&event);
        assert!(text.ends_with(end), "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    };
    // Digits, duplicate keys and escapes stay.
    let odd = r#"{"a":1.10,"a":100000000000000000000,"s":"\u00e9\/"}"#;
    check(Payload::raw_json(odd), &format!(r#""datacontenttype":"application/json","data":{odd}}}"#));
    check(Payload::raw_json("null"), r#""data":null}"#);
    check(Payload::raw_json(" \"text\"\n"), r#""data":"text"}"#);
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    check(Payload::raw_json(deep.clone()), &format!(r#""data":{deep}}}"#));
    check(Payload::bytes(vec![0, 0xff], "a/b"), r#""datacontenttype":"a/b","data_base64":"AP8="}"#);
    check(Payload::bytes("{}", "application/json"), r#""datacontenttype":"application/json","data_base64":"e30="}"#);
    check(Payload::bytes("", "a/b"), r#""data_base64":""}"#);
    // What is no JSON can't break the envelope, nor add to it.
    check(Payload::raw_json(r#"1,"id":"forged""#), r#""data_base64":"MSwiaWQiOiJmb3JnZWQi"}"#);
    check(Payload::raw_json("{"), r#""data_base64":"ew=="}"#);
    check(Payload::raw_json(""), r#""data_base64":""}"#);
    check(Payload::raw_json(vec![b'"', 0xff, b'"']), r#""data_base64":"Iv8i"}"#);
}

#[test]
fn structured_is_known_by_its_content_type_and_leaves_headers_to_the_event() {
    let event = event();
    let message = structured().render(&event, "ce-");
    assert_eq!(message.content_type, STRUCTURED_CONTENT_TYPE);
    assert_eq!(message.system, []);
}

#[test]
fn the_debezium_topic_is_a_template_of_this_project() {
    let syntax = TopicSyntax { separator: Some('.'), wildcards: &[], max_bytes: 249 };
    let topic = TopicTemplate::parse(DEBEZIUM_TOPIC, syntax).unwrap();
    assert_eq!(topic.render(&event()).unwrap(), "outbox.event.order");
}
