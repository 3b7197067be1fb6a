use std::borrow::Cow;

use bytes::Bytes;

use super::*;

fn message<'a>(system: usize, own: &[(&'a str, &'a str)]) -> Message<'a> {
    let system = (0..system).map(|n| (Cow::Owned(format!("s{n}")), Cow::Borrowed("v"))).collect();
    Message { body: Bytes::from_static(b"x"), content_type: Cow::Borrowed("t"), system, own: own.to_vec() }
}

/// Names with values, without those of the format.
fn own_of(attributes: &[Attribute]) -> Vec<(&str, &str)> {
    let own = attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    own.filter(|(name, _)| !(name.starts_with('s') || name.starts_with("content-"))).collect()
}

#[test]
fn names_follow_the_rules_of_aws() {
    let check = |name: &str, legal: bool| assert_eq!(is_legal_name(name), legal, "{name}");
    for name in ["a", "A-b_c.d9", "tenant", "aws", "awsome.x", "amazonia", "x.aws.y", &"n".repeat(256)] {
        check(name, true);
    }
    let long = "n".repeat(257);
    for name in
        ["", ".a", "a.", "a..b", "AWS.x", "aws.x", "Aws.x", "Amazon.x", "AMAZON.x", "a b", "ü", "a:b", "a/b", &long]
    {
        check(name, false);
    }
}

#[test]
fn own_headers_are_attributes_when_all_fit_else_one_json_object() {
    let check = |system: usize, base64: bool, own: &[(&str, &str)], expected: &[(&str, &str)]| {
        let attributes = attributes(&message(system, own), base64).unwrap();
        assert!(attributes.len() <= MAX_ATTRIBUTES);
        assert_eq!(own_of(&attributes), expected, "{own:?}");
    };
    check(5, false, &[], &[]);
    check(5, false, &[("a", "1"), ("b", "2")], &[("a", "1"), ("b", "2")]);
    // Ten in all: five of the format, the content type, four of the event's own; one more does not fit.
    let own = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")];
    check(5, false, &own[..4], &own[..4]);
    check(5, false, &own, &[("headers", r#"{"a":"1","b":"2","c":"3","d":"4","e":"5"}"#)]);
    check(5, true, &own[..4], &[("headers", r#"{"a":"1","b":"2","c":"3","d":"4"}"#)]);
    check(5, true, &own[..3], &own[..3]);
    // One that can't be an attribute takes the others with it, so that a consumer looks in one place.
    let together = |bad: (&str, &str), json: &str| {
        check(2, false, &[("a", "1"), (bad.0, bad.1)], &[("headers", json)]);
    };
    together(("empty", ""), r#"{"a":"1","empty":""}"#);
    together(("two words", "2"), r#"{"a":"1","two words":"2"}"#);
    together(("AWS.x", "2"), r#"{"AWS.x":"2","a":"1"}"#);
    together(("headers", "{}"), r#"{"a":"1","headers":"{}"}"#);
    together(("Headers", "{}"), r#"{"Headers":"{}","a":"1"}"#);
    together(("ü", "\u{ffff}\u{7}\"%"), r#"{"a":"1","ü":"\uffff\u0007\"%"}"#);
    // A coding of the event's own must not be taken for ours.
    check(2, false, &[("content-encoding", "gzip")], &[]);
    check(2, true, &[("Content-Encoding", "gzip")], &[("headers", r#"{"Content-Encoding":"gzip"}"#)]);
}

#[test]
fn the_trace_context_stays_out_of_the_json_object_where_there_is_room() {
    let own = [("a", ""), ("traceparent", "00-1"), ("tracestate", "x=1")];
    let check = |system: usize, expected: &[(&str, &str)]| {
        assert_eq!(own_of(&attributes(&message(system, &own), false).unwrap()), expected);
    };
    check(6, &[("traceparent", "00-1"), ("tracestate", "x=1"), ("headers", r#"{"a":""}"#)]);
    check(7, &[("traceparent", "00-1"), ("headers", r#"{"a":"","tracestate":"x=1"}"#)]);
    check(8, &[("headers", r#"{"a":"","traceparent":"00-1","tracestate":"x=1"}"#)]);
}

#[test]
fn the_format_comes_first_and_loses_its_empty_values() {
    let mut message = message(2, &[("own", "50%\u{7}\u{ffff}")]);
    message.system[0].1 = "".into();
    message.system[1].1 = "a\u{0}b".into();
    let pairs = |base64| {
        let found = attributes(&message, base64).unwrap();
        found.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    assert_eq!(pairs(false), ["s1=a%00b", "content-type=t", "own=50%25%07%EF%BF%BF"]);
    assert_eq!(pairs(true), ["s1=a%00b", "content-type=t", "content-encoding=base64", "own=50%25%07%EF%BF%BF"]);
    message.content_type = "".into();
    let found = attributes(&message, false).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(bytes(&found), "s1a%00bown50%25%07%EF%BF%BF".len() + 2 * "String".len());
}

/// CloudEvents needs eight of the ten places.
#[test]
fn what_the_format_has_no_place_for_travels_with_the_own_headers() {
    let check = |system: usize, base64: bool, own: &[(&str, &str)], last: (&str, &str), rest: Option<&str>| {
        let attributes = attributes(&message(system, own), base64).unwrap();
        assert!(attributes.len() <= MAX_ATTRIBUTES);
        let found = |name: &str| attributes.iter().find(|attribute| attribute.0 == name).map(|(_, value)| &**value);
        assert_eq!(found("headers"), rest);
        let of_format = attributes.iter().rfind(|(name, _)| name.starts_with('s')).unwrap();
        assert_eq!((&*of_format.0, &*of_format.1), last);
        assert_eq!((found("content-type"), found("content-encoding").is_some()), (Some("t"), base64));
    };
    check(8, true, &[], ("s7", "v"), None);
    check(8, true, &[("a", "%")], ("s6", "v"), Some(r#"{"a":"%","s7":"v"}"#));
    check(9, false, &[], ("s8", "v"), None);
    check(9, false, &[("a", "1")], ("s7", "v"), Some(r#"{"a":"1","s8":"v"}"#));
    check(9, true, &[], ("s6", "v"), Some(r#"{"s7":"v","s8":"v"}"#));
    check(
        15,
        false,
        &[],
        ("s7", "v"),
        Some(r#"{"s10":"v","s11":"v","s12":"v","s13":"v","s14":"v","s8":"v","s9":"v"}"#),
    );
}
