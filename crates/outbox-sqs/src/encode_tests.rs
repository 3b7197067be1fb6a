use std::time::{Duration, UNIX_EPOCH};

use outbox_core::{EventId, Headers};

use super::*;

const ID: &str = "0190a6e4-0000-7000-8000-00000000002a";

fn event() -> Envelope {
    Envelope {
        id: 7,
        event_id: EventId::from_uuid(ID.parse().unwrap()),
        aggregate_type: "order".into(),
        aggregate_id: "42".into(),
        event_type: "placed".into(),
        payload: Payload::raw_json(r#"{"total": 1.10}"#),
        headers: Headers::new(),
        created_at: UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    }
}

fn standard() -> SqsConfig {
    SqsConfig::new("https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
}

fn fifo() -> SqsConfig {
    SqsConfig::new("https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo")
}

/// A message as text: one part a line, the body last.
fn shown(title: &str, message: &Message) -> String {
    let mut text = format!("=== {title}\n");
    if let Some(fifo) = &message.fifo {
        let _ = writeln!(text, "MessageGroupId: {}", fifo.group_id);
        let _ = writeln!(text, "MessageDeduplicationId: {}", fifo.deduplication_id);
    }
    for (name, value) in &message.attributes {
        let _ = writeln!(text, "attribute {name} ({}): {}", attributes::STRING, value.escape_debug());
    }
    let _ = writeln!(text, "bytes: {}\n\n{}\n", message.bytes, message.body);
    text
}

/// The wire is part of the contract with consumers: a change must show.
#[test]
fn the_plain_format_is_as_in_the_golden_file() {
    let mut headers = event();
    headers.headers = Headers::from([
        ("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        ("tenant".into(), "100% \u{fc}".into()),
        ("Event-Id".into(), "forged".into()),
    ]);
    let mut many = headers.clone();
    many.headers.extend(["a", "b", "c"].map(|name| (name.to_owned(), "\u{7}%".to_owned())));
    let mut named = event();
    named.aggregate_id = "zam\u{f3}wienie 7".into();
    named.aggregate_type = "a\u{b}b%".into();
    let mut bytes = event();
    bytes.payload = Payload::bytes(vec![0, 0xff, b'\n'], "application/x-protobuf");
    let mut escaped = event();
    escaped.payload = Payload::raw_json("{\"note\": \"\u{ffff}\"}");
    let cases = [
        ("json", &standard(), &event()),
        ("json on a fifo queue", &fifo(), &event()),
        ("own headers", &standard(), &headers),
        ("own headers that don't fit", &standard(), &many),
        ("names beyond ascii on a fifo queue", &fifo(), &named),
        ("bytes", &standard(), &bytes),
        ("json with a character that sqs refuses", &standard(), &escaped),
    ];
    let found: String = cases.map(|(title, config, event)| shown(title, &encode(event, config).unwrap())).concat();
    assert_eq!(found, include_str!("../tests/golden/plain.txt"));
}

#[test]
fn json_that_the_event_holds_as_bytes_stays_byte_for_byte() {
    let check = |payload: Payload, base64: bool| {
        let message = encode(&Envelope { payload, ..event() }, &standard()).unwrap();
        let marked = message.attributes.iter().any(|(name, value)| name == "content-encoding" && value == "base64");
        assert_eq!(marked, base64, "{}", message.body);
    };
    check(Payload::raw_json("\"\u{ffff}\""), false);
    check(Payload::bytes("\"\u{ffff}\"", "application/json"), true);
    check(Payload::bytes("\"x\"", "application/json"), false);
    check(Payload::bytes("\u{ffff}", "text/plain"), true);
}

#[test]
fn group_ids_are_legal_and_stable() {
    let check = |aggregate_id: &str, expected: &str| {
        let found = group_id(aggregate_id);
        assert_eq!(found, expected);
        assert!(found.len() <= 128 && found.chars().all(|c| c.is_ascii_graphic()));
    };
    // Of the one blank, by another implementation (`printf ' ' | sha256sum`).
    let hash_of_blank = "sha256-36a9e7f1c95b82ffb99743e0c5c4ce95d83c9a430aac59f84ef3cbfab6145068";
    check("42", "42");
    check("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
    check(&"x".repeat(128), &"x".repeat(128));
    check(" ", hash_of_blank);
    let hashed = ["", "a b", "a\u{7f}", "\u{fc}", "\u{1f600}", "e\u{301}", "\u{e9}", hash_of_blank];
    let mut seen: Vec<_> = hashed.iter().map(|id| group_id(id)).chain([group_id(&"x".repeat(129))]).collect();
    assert!(seen.iter().all(|id| id.len() == 71 && id.starts_with("sha256-")));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), hashed.len() + 1, "different ids are different groups");
}

#[test]
fn a_standard_queue_gets_neither_group_nor_deduplication_id() {
    assert_eq!(encode(&event(), &standard()).unwrap().fifo, None);
    let expected = Fifo { group_id: "42".into(), deduplication_id: ID.into() };
    assert_eq!(encode(&event(), &fifo()).unwrap().fifo, Some(expected));
}

#[test]
fn body_and_attributes_count_together_and_the_figures_are_told() {
    let max = 1024;
    let config = standard().with_max_message_bytes(max);
    let filled = |payload: Vec<u8>| Envelope { payload: Payload::bytes(payload, "text/plain"), ..event() };
    let beside = encode(&filled(vec![b'x']), &config).unwrap().bytes - 1;
    let names = "event-idevent-typeaggregate-typeaggregate-idcreated-atcontent-type".len() + 6 * "String".len();
    let values = ID.len() + "placed".len() + "order".len() + "42".len() + "2024-02-29T23:59:59.999999Z".len();
    assert_eq!(beside, names + values + "text/plain".len());

    assert_eq!(encode(&filled(vec![b'x'; max - beside]), &config).unwrap().bytes, max);
    let check = |payload: Vec<u8>, body: usize, beside: usize| {
        let error = encode(&filled(payload), &config).unwrap_err();
        let sum = body + beside;
        let expected = format!(
            "rejected: the message has {sum} bytes ({body} of body, {beside} of attributes), max_message_bytes allows \
             1024"
        );
        assert_eq!(error.to_string(), expected);
    };
    check(vec![b'x'; max - beside + 1], max - beside + 1, beside);
    check(vec![b'x'; 5000], 5000, beside);
    // Base64 grows by a third, and its marker counts as well.
    check(vec![0xff; 612], 816, beside + "content-encodingStringbase64".len());
}
