use std::time::{Duration, SystemTime};

use outbox_core::wire::FORMATS;
use outbox_core::{EventId, Headers, Payload, TopicSyntax};
use outbox_testkit::golden;

use super::*;
use lapin::protocol::basic::gen_properties;

const SYNTAX: TopicSyntax = TopicSyntax { separator: Some('.'), wildcards: &['*', '#'], max_bytes: 255 };

fn event() -> Envelope {
    Envelope {
        id: 7,
        event_id: EventId::from_uuid("0190a6e4-0000-7000-8000-00000000002a".parse().unwrap()),
        aggregate_type: "order".into(),
        aggregate_id: "42".into(),
        event_type: "placed".into(),
        payload: Payload::raw_json(r#"{"total": 1.10}"#),
        headers: Headers::from([
            ("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            ("note".into(), "two\r\nlines ü".into()),
        ]),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    }
}

fn topic() -> TopicTemplate {
    TopicTemplate::parse("{aggregate_type}.{event_type}", SYNTAX).unwrap()
}

fn headers(message: &Message) -> Vec<(String, String)> {
    let table = message.properties.headers().as_ref().unwrap();
    let text = |value: &AMQPValue| String::from_utf8(value.as_long_string().unwrap().as_bytes().to_vec()).unwrap();
    table.into_iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_plain_format() {
    let message = encode(&event(), &topic(), &Format::Plain, 1000).unwrap();
    assert_eq!(message.routing_key.as_str(), "order.placed");
    assert_eq!(message.body, r#"{"total": 1.10}"#);
    let properties = &message.properties;
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "0190a6e4-0000-7000-8000-00000000002a");
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "placed");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(1_709_251_199));
    let expected = pairs(&[
        ("aggregate-id", "42"),
        ("aggregate-type", "order"),
        ("content-type", "application/json"),
        ("created-at", "2024-02-29T23:59:59.999999Z"),
        ("event-id", "0190a6e4-0000-7000-8000-00000000002a"),
        ("event-type", "placed"),
        ("note", "two\r\nlines ü"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]);
    assert_eq!(headers(&message), expected);
}

#[test]
fn each_format_is_as_its_golden_file_says() {
    for name in FORMATS {
        let format: Format = name.parse().unwrap();
        let mut text = String::new();
        for (title, event) in golden::events() {
            let message = encode(&event, &topic(), &format, 1000).unwrap();
            let properties = &message.properties;
            let shorts = [("content_type", properties.content_type()), ("message_id", properties.message_id())];
            let shorts = shorts.into_iter().chain([("type", properties.kind())]);
            let mut parts = vec![("(routing key)".to_owned(), message.routing_key.to_string())];
            parts.extend(shorts.map(|(name, value)| (format!("({name})"), value.as_ref().unwrap().to_string())));
            parts.push(("(delivery_mode)".to_owned(), format!("{:?}", properties.delivery_mode())));
            parts.push(("(timestamp)".to_owned(), format!("{:?}", properties.timestamp())));
            parts.extend(headers(&message));
            text += &golden::section(title, &parts, &message.body);
        }
        golden::check(format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR")), &text);
    }
}

#[test]
fn the_body_is_measured_as_it_is_sent() {
    let format: Format = "cloudevents-structured".parse().unwrap();
    let mut event = event();
    event.headers.clear();
    let bytes = encode(&event, &topic(), &format, 10_000).unwrap().body.len();
    assert!(encode(&event, &topic(), &format, bytes).is_ok());
    let error = encode(&event, &topic(), &format, bytes - 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    let report = format!("the payload of 15 bytes with its attributes has {bytes} bytes, max_message_bytes allows");
    assert!(error.report().starts_with(&report), "{}", error.report());
}

/// What was counted here is what stands in the frame, in every format; see also the test against the broker's limit.
#[test]
fn the_header_frame_is_counted_to_the_byte() {
    for name in FORMATS {
        let format: Format = name.parse().unwrap();
        for (title, event) in golden::events() {
            let message = encode(&event, &topic(), &format, 1000).unwrap();
            let written = gen_properties(&message.properties)(Vec::<u8>::new().into()).unwrap();
            // Frame header 7, class 2, weight 2, body size 8, frame end 1; the property flags are among the properties.
            assert_eq!(written.position + 20, message.header_frame_bytes as u64, "{title} {name}");
        }
    }
}

#[test]
fn bytes_keep_their_content_type_and_old_times_have_no_timestamp() {
    let mut event = event();
    event.payload = Payload::bytes(vec![0xff, 0], "application/x-protobuf");
    event.created_at = SystemTime::UNIX_EPOCH - Duration::from_micros(1);
    let message = encode(&event, &topic(), &Format::Plain, 1000).unwrap();
    assert_eq!(message.body, [0xff, 0].as_slice());
    assert_eq!(message.properties.content_type().as_ref().unwrap().as_str(), "application/x-protobuf");
    assert_eq!(*message.properties.timestamp(), None);
}

#[test]
fn system_names_win_in_any_case() {
    let mut event = event();
    event.headers = Headers::from([
        ("Event-ID".into(), "forged".into()),
        ("CONTENT-TYPE".into(), "forged".into()),
        ("aggregate-id".into(), "forged".into()),
    ]);
    let message = encode(&event, &topic(), &Format::Plain, 1000).unwrap();
    assert!(headers(&message).iter().all(|(_, value)| value != "forged"));
    assert_eq!(headers(&message).len(), 6);
}

#[test]
fn what_can_never_pass_is_rejected_with_the_figures() {
    let check = |change: &dyn Fn(&mut Envelope), report: &str| {
        let mut event = event();
        change(&mut event);
        let error = encode(&event, &topic(), &Format::Plain, 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.report().starts_with(report), "{}", error.report());
    };
    let long = "n".repeat(256);
    check(
        &|event| event.payload = Payload::raw_json("x".repeat(1001)),
        "the payload has 1001 bytes, max_message_bytes allows 1000",
    );
    check(
        &|event| {
            event.headers.insert(long.clone(), "v".into());
        },
        "the header name `nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...` has 256 bytes, AMQP allows 255",
    );
    check(
        &|event| event.payload = Payload::bytes(vec![1], long.clone()),
        "the content type `nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...` has 256 bytes, AMQP allows 255",
    );
    check(&|event| event.aggregate_type = "#".repeat(90), "the topic has 277 bytes, the broker allows 255");
    for name in ["CC", "bcc"] {
        check(
            &|event| {
                event.headers.insert(name.into(), "other".into());
            },
            &format!("header `{name}` would change the route: RabbitMQ sends copies by it"),
        );
    }
}
