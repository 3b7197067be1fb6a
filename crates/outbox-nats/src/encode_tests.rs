use std::time::{Duration, SystemTime};

use outbox_core::wire::FORMATS;
use outbox_core::{EventId, Headers as OwnHeaders, Payload};
use outbox_testkit::golden;

use super::*;
use crate::config::NatsConfig;

fn event() -> Envelope {
    Envelope {
        id: 7,
        event_id: EventId::from_uuid("0190a6e4-0000-7000-8000-00000000002a".parse().unwrap()),
        aggregate_type: "order".into(),
        aggregate_id: "42".into(),
        event_type: "placed".into(),
        payload: Payload::raw_json(r#"{"total": 1.10}"#),
        headers: OwnHeaders::from([
            ("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            ("note".into(), "two\r\nlines ü".into()),
        ]),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    }
}

fn encoder(config: NatsConfig) -> Encoder {
    Encoder::new(config.check_publishing().unwrap(), &config)
}

fn encode(event: &Envelope) -> Result<Message, PublishError> {
    encoder(NatsConfig::default().with_max_message_bytes(1000)).encode(event)
}

fn headers(message: &Message) -> Vec<(String, String)> {
    let one = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
        assert_eq!(values.len(), 1, "{name}");
        (name.to_string(), values[0].to_string())
    };
    let mut all: Vec<_> = message.headers.iter().map(one).collect();
    all.sort_unstable();
    all
}

fn own(name: &str, value: &str) -> Envelope {
    let mut event = event();
    event.headers = OwnHeaders::from([(name.to_owned(), value.to_owned())]);
    event
}

/// The contract with consumers: what stands in these files is what they read.
#[test]
fn each_format_is_as_its_golden_file_says() {
    for name in FORMATS {
        let config = NatsConfig::default().with_format(name.parse().unwrap());
        let encoder = encoder(config.with_expected_stream("ORDERS"));
        let mut text = String::new();
        for (title, mut event) in golden::events() {
            // Such a name makes an event rejected on NATS, see below.
            event.headers.retain(|name, _| !name.contains(':'));
            let message = encoder.encode(&event).unwrap();
            let mut parts = vec![("(subject)".to_owned(), message.subject.clone())];
            parts.extend(headers(&message));
            text += &golden::section(title, &parts, &message.body);
        }
        golden::check(format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR")), &text);
    }
}

#[test]
fn the_size_is_what_the_client_sends() {
    let mut event = event();
    event.payload = Payload::bytes(vec![0xff, 0], "application/x-protobuf");
    let message = encode(&event).unwrap();
    // As the client writes it: a line with the version, each header on a line, an empty line.
    let lines: usize = headers(&message).iter().map(|(name, value)| format!("{name}: {value}\r\n").len()).sum();
    assert_eq!(message.header_bytes, "NATS/1.0\r\n".len() + lines + "\r\n".len());
    assert_eq!(message.bytes(), message.header_bytes + 2);
}

#[test]
fn system_names_win_in_any_case_and_control_headers_are_left_out() {
    let mut forged = event();
    let names = [
        "Event-ID",
        "CONTENT-TYPE",
        "aggregate-id",
        "Nats-Msg-Id",
        "nats-msg-id",
        "Orig-Nats-Msg-Id",
        "NATS-Expected-Last-Sequence",
        "Nats-Expected-Stream",
        "Nats-TTL",
        "nats-rollup",
    ];
    forged.headers = names.iter().map(|name| ((*name).to_owned(), "forged".to_owned())).collect();
    forged.headers.insert("message-id".into(), "own".into());
    forged.headers.insert("x-death".into(), "own".into());
    let message = encoder(NatsConfig::default().with_expected_stream("ORDERS")).encode(&forged).unwrap();
    let headers = headers(&message);
    assert!(headers.iter().all(|(_, value)| value != "forged"), "{headers:?}");
    let value = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    assert_eq!(value("Nats-Msg-Id"), Some("0190a6e4-0000-7000-8000-00000000002a"));
    assert_eq!(value("Nats-Expected-Stream"), Some("ORDERS"));
    assert_eq!((value("message-id"), value("x-death")), (Some("own"), Some("own")));
    assert_eq!(headers.len(), 10);
}

#[test]
fn values_that_can_not_be_carried_are_encoded() {
    let check = |value: &str, carried: &str| {
        let message = encode(&own("note", value)).unwrap();
        let headers = headers(&message);
        assert!(headers.contains(&("note".to_owned(), carried.to_owned())), "{headers:?}");
    };
    check("a b", "a b");
    check(" a b", "%20a%20b");
    check("a ", "a%20");
    check("", "");
    check("a\r\nNats-Msg-Id: other", "a%0D%0ANats-Msg-Id: other");
    check("\r", "%0D");
    check("\0", "%00");
    check("100%", "100%25");
    check("\"\\\t", "\"\\%09");
    check("🦀ü", "%F0%9F%A6%80%C3%BC");
    check(&"x".repeat(10_000), &"x".repeat(10_000));
}

#[test]
fn what_can_never_pass_is_rejected_with_the_figures() {
    let check = |event: &Envelope, report: &str| {
        let error = encode(event).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert_eq!(error.report(), report);
    };
    let mut large = event();
    large.payload = Payload::raw_json("x".repeat(1001));
    check(&large, "the body has 1001 bytes, max_message_bytes allows 1000");
    let name = |name: &str, shown: &str, problem: &str| {
        let carries = "NATS takes printable ASCII without blanks and `:`";
        let text = format!("the header name `{shown}` ({} bytes) can't be carried: {problem}; {carries}", name.len());
        check(&own(name, "v"), &text);
    };
    name("bad name", "bad name", "' ' at byte 3");
    name("a:b", "a:b", "':' at byte 1");
    name("ключ", "ключ", "'к' at byte 0");
    name("a\r\nb", "a\\r\\nb", "'\\r' at byte 1");
    name("a\0", "a\\0", "'\\0' at byte 1");
    check(&own("", "v"), "a header has an empty name (0 bytes), which NATS can't carry");
    assert!(encode(&own(&"n".repeat(300), "v")).is_ok());
    let mut long = event();
    long.aggregate_type = "*".repeat(1400);
    check(&long, "the topic has 4207 bytes, the broker allows 4000");
    // 321 bytes of other headers, the name of this one, a colon, a blank and the line's end.
    let room = MAX_HEADER_BYTES - encode(&own("h", "")).unwrap().header_bytes;
    assert_eq!(encode(&own("h", &"v".repeat(room))).unwrap().header_bytes, MAX_HEADER_BYTES);
    check(
        &own("h", &"v".repeat(room + 1)),
        "the headers take 65536 bytes (beside 15 of the body), JetStream allows 65535",
    );
}

#[test]
fn data_can_not_name_a_subject_of_the_server() {
    let subject = |template: &str, aggregate_type: &str| {
        let mut event = event();
        event.aggregate_type = aggregate_type.to_owned();
        encoder(NatsConfig::default().with_topic(template)).encode(&event).map(|message| message.subject)
    };
    let report = |template: &str, aggregate_type: &str| subject(template, aggregate_type).unwrap_err().report();
    let text = "the subject `$JS.placed` begins as those of the server do, by data of the event";
    assert_eq!(report("{aggregate_type}.{event_type}", "$JS"), text);
    assert!(subject("{aggregate_type}.x", "_INBOX").is_err());
    assert_eq!(subject("x.{aggregate_type}", "$JS").unwrap(), "x.$JS");
    assert_eq!(subject("$KV.bucket.{aggregate_type}", "a.b>*").unwrap(), "$KV.bucket.a%2Eb%3E%2A");
}
