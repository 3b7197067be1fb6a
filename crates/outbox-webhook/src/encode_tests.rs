use std::time::{Duration, SystemTime};

use outbox_core::{EventId, Headers, Payload};

use super::*;

fn event() -> Envelope {
    Envelope {
        id: 7,
        event_id: EventId::from_uuid("0190a6e4-0000-7000-8000-00000000002a".parse().unwrap()),
        aggregate_type: "order".into(),
        aggregate_id: "42 ü".into(),
        event_type: "placed".into(),
        payload: Payload::raw_json(r#"{"total": 1.10}"#),
        headers: Headers::from([
            ("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            ("Note".into(), "two\r\nlines \"ü\" 100%".into()),
        ]),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    }
}

fn rules() -> Rules {
    let own = HeaderMap::from_iter([(HeaderName::from_static("x-key"), HeaderValue::from_static("k"))]);
    Rules {
        endpoint: Endpoint::parse("https://h/{aggregate_type}").unwrap(),
        format: Format::Plain,
        max_message_bytes: 1000,
        fixed: fixed_headers(Some(HeaderValue::from_static("Bearer t")), own),
    }
}

fn headers(outgoing: &Outgoing) -> Vec<(&str, &str)> {
    let mut headers: Vec<_> =
        outgoing.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    headers.sort_unstable();
    headers
}

fn with(name: &str, value: &str) -> Envelope {
    let mut event = event();
    event.headers = Headers::from([(name.into(), value.into())]);
    event
}

#[test]
fn the_plain_format() {
    let outgoing = encode(&event(), &rules()).unwrap();
    assert_eq!(outgoing.uri.to_string(), "https://h/order");
    assert_eq!(outgoing.body, r#"{"total": 1.10}"#);
    assert_eq!(
        headers(&outgoing),
        [
            ("aggregate-id", "42%20%C3%BC"),
            ("aggregate-type", "order"),
            ("authorization", "Bearer t"),
            ("content-type", "application/json"),
            ("created-at", "2024-02-29T23:59:59.999999Z"),
            ("event-id", "0190a6e4-0000-7000-8000-00000000002a"),
            ("event-type", "placed"),
            ("note", "two%0D%0Alines%20%22%C3%BC%22%20100%25"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("user-agent", AGENT),
            ("webhook-id", "0190a6e4-0000-7000-8000-00000000002a"),
            ("x-key", "k"),
        ]
    );
}

#[test]
fn a_content_type_keeps_its_parameters_and_starts_no_line() {
    let check = |content_type: &str, expected: &str| {
        let mut event = event();
        event.payload = Payload::bytes("x", content_type);
        let outgoing = encode(&event, &rules()).unwrap();
        assert_eq!(outgoing.headers[CONTENT_TYPE], expected);
    };
    check("multipart/mixed; boundary=\"a b\"", "multipart/mixed; boundary=\"a b\"");
    check("text/plain\r\nhost: x", "text/plain%0D%0Ahost: x");
    check("text/ü", "text/%C3%BC");
}

/// B32: a value of any characters stays a value.
#[test]
fn a_value_starts_no_header_line() {
    let check = |value: &str, expected: &str| {
        let event = with("note", value);
        let outgoing = encode(&event, &rules()).unwrap();
        assert_eq!(outgoing.headers["note"], expected);
        assert_eq!(outgoing.headers.len(), 11);
    };
    check("a\r\nwebhook-id: other", "a%0D%0Awebhook-id:%20other");
    check("\r", "%0D");
    check("\0\u{7f}", "%00%7F");
    check("😀", "%F0%9F%98%80");
    check("", "");
    check(&"v".repeat(10_000), &"v".repeat(10_000));
}

/// B32: a name that HTTP can't carry makes the event a dead letter, with the reason.
#[test]
fn a_name_that_http_cant_carry_is_rejected() {
    for name in ["bad name", "a:b", "ключ", "", "a\r\nb", "a\0", "(a)"] {
        let error = encode(&with(name, "v"), &rules()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.report().contains("is none in HTTP"), "{}", error.report());
    }
    assert!(encode(&with(&"n".repeat(300), "v"), &rules()).is_ok());
}

/// B38: what the publisher and the operator set can't be set by an event, in any case of the letters.
#[test]
fn an_event_sets_no_header_that_is_not_its_own() {
    let plain = encode(&Envelope { headers: Headers::new(), ..event() }, &rules()).unwrap();
    for name in [
        "Authorization",
        "CONNECTION",
        "content-length",
        "Content-Type",
        "Cookie",
        "event-ID",
        "Expect",
        "aggregate-id",
        "created-at",
        "Forwarded",
        "Host",
        "Keep-Alive",
        "Proxy-Authorization",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "User-Agent",
        "Webhook-Id",
        "WEBHOOK-SIGNATURE",
        "webhook-timestamp",
        "webhook-anything",
        "X-Forwarded-For",
        "X-HTTP-Method-Override",
        "X-Key",
    ] {
        let outgoing = encode(&with(name, "forged"), &rules()).unwrap();
        assert_eq!(outgoing.headers, plain.headers, "{name}");
    }
    // Names of other brokers are an event's own here.
    assert!(encode(&with("Nats-Msg-Id", "x"), &rules()).unwrap().headers.contains_key("nats-msg-id"));
}

#[test]
fn what_can_never_pass_is_rejected_with_the_figures() {
    let check = |change: &dyn Fn(&mut Envelope), report: &str| {
        let mut event = event();
        event.headers = Headers::new();
        change(&mut event);
        let error = encode(&event, &rules()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert_eq!(error.report(), report);
    };
    check(
        &|event| event.payload = Payload::raw_json("x".repeat(1001)),
        "the body has 1001 bytes, max_message_bytes allows 1000",
    );
    check(
        &|event| {
            event.headers = (0..90).map(|number| (format!("h{number}"), "v".into())).collect();
        },
        "the request has 104 headers, 100 are allowed",
    );
    check(
        &|event| {
            event.headers.insert("long".into(), "v".repeat(16_000));
        },
        "url and headers have 17348 bytes, 16384 are allowed",
    );
    check(
        &|event| event.aggregate_type = "..".into(),
        "this event can't have a url: it would make `.` or `..` a segment of the path, which receivers take for a \
         step up",
    );
}
