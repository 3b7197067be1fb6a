use std::time::{Duration, SystemTime};

use outbox_core::{EventId, Headers, Payload};

use super::*;

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

fn config() -> KafkaConfig {
    KafkaConfig::default().with_max_message_bytes(4096)
}

fn encoded(event: &Envelope) -> Result<Record, PublishError> {
    encode(event, &topic::parse("{aggregate_type}.{event_type}").unwrap(), &config())
}

/// A record as a text that a person can compare, one line for each part.
fn shown(record: &Record) -> String {
    let text = |bytes: &Bytes| bytes.escape_ascii().to_string();
    let mut shown = format!("topic: {}\n", record.topic);
    shown += &format!("key: {}\n", record.key.as_ref().map_or("(null)".into(), text));
    shown += &format!("partition: {:?}, timestamp: {:?}\n", record.partition, record.timestamp);
    for (name, value) in &record.headers {
        shown += &format!("header {name}: {}\n", value.as_ref().map_or("(null)".into(), text));
    }
    shown + &format!("value: {}\n", record.value.as_ref().map_or("(null)".into(), text))
}

#[test]
fn the_plain_format() {
    let golden = include_str!("../tests/golden/plain.txt");
    assert_eq!(shown(&encoded(&event()).unwrap()), golden);
}

#[test]
fn bytes_keep_their_content_type_and_any_text_passes_as_it_is() {
    let mut event = event();
    event.payload = Payload::bytes(vec![0xff, 0], "application/x-protobuf");
    event.aggregate_id = "ключ\n".into();
    event.headers = Headers::from([("".into(), "".into()), ("bad name:\0".into(), "\r\n".into())]);
    let record = encoded(&event).unwrap();
    assert_eq!(record.value.as_deref(), Some([0xff, 0].as_slice()));
    assert_eq!(record.key.as_deref(), Some("ключ\n".as_bytes()));
    let own: Vec<_> = record.headers[5..].iter().map(|(n, v)| (n.as_str(), v.as_deref().unwrap())).collect();
    let expected: [(&str, &[u8]); 3] =
        [("content-type", b"application/x-protobuf"), ("", b""), ("bad name:\0", b"\r\n")];
    assert_eq!(own, expected);
}

#[test]
fn system_names_win_in_any_case() {
    let mut event = event();
    event.headers = Headers::from([
        ("Event-ID".into(), "forged".into()),
        ("CONTENT-TYPE".into(), "forged".into()),
        ("aggregate-id".into(), "forged".into()),
    ]);
    let record = encoded(&event).unwrap();
    assert!(record.headers.iter().all(|(_, value)| value.as_deref() != Some(b"forged".as_slice())));
    assert_eq!(record.headers.len(), 6);
}

/// The bytes of a batch with one record, written out by hand after the message format of Kafka's documentation.
#[test]
fn the_size_is_that_of_the_batch_on_the_wire() {
    let check = |key: usize, value: usize, headers: &[(usize, usize)], bytes: usize| {
        let mut record = Record::new("t", vec![0; value]).key(vec![0; key]);
        let header = |(name, value): &(usize, usize)| ("n".repeat(*name), Some(vec![0; *value].into()));
        record.headers = headers.iter().map(header).collect();
        assert_eq!(batch_bytes(&record), bytes, "{key} {value} {headers:?}");
    };
    // 61 fixed, 1 length, 3 attributes and differences, 1 + 1 key, 1 + 1 value, 1 number of headers
    check(1, 1, &[], 70);
    check(1, 1, &[(1, 1)], 74);
    // 63 is the last length in one byte, both of the value and of the record
    check(0, 57, &[], 125);
    check(0, 58, &[], 127);
    check(0, 63, &[], 132);
    check(0, 64, &[], 134);
    check(0, 8191, &[], 61 + 3 + 3 + 1 + 2 + 8191 + 1);
    check(0, 8192, &[], 61 + 3 + 3 + 1 + 3 + 8192 + 1);
}

#[test]
fn what_can_never_pass_is_rejected_with_the_figures() {
    let check = |change: &dyn Fn(&mut Envelope), report: &str| {
        let mut event = event();
        change(&mut event);
        let error = encoded(&event).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert_eq!(error.report(), report);
    };
    check(
        &|event| event.payload = Payload::raw_json("x".repeat(3073)),
        "the payload has 3073 bytes, max_message_bytes (4096) leaves 3072 for it",
    );
    check(
        &|event| event.headers = Headers::from([("h".into(), "v".repeat(4096))]),
        "with key and headers the message has 4356 bytes, max_message_bytes allows 4096",
    );
    check(
        &|event| event.headers = (0..10_000).map(|number| (format!("{number}"), String::new())).collect(),
        "the event has 10006 headers, at most 10000 are sent",
    );
    check(&|event| event.event_type = "é".repeat(41), "the topic has 252 bytes, the broker allows 249");
    let mut largest = event();
    largest.payload = Payload::raw_json("x".repeat(3072));
    assert!(encoded(&largest).is_ok());
}

/// Java's client chooses a partition by its murmur2 of the key. The values are those of its own test,
/// `UtilsTest.testMurmur2` of Apache Kafka, and the partition is `toPositive(hash) % partitions` as in
/// `BuiltInPartitioner.partitionForKey`.
#[test]
fn the_partition_is_the_one_that_javas_client_chooses() {
    let check = |key: &str, hash: i32, of_3: i32, of_12: i32| {
        let ours = krafka::producer::murmur2(key.as_bytes()).cast_signed();
        assert_eq!(ours, hash, "{key}");
        let positive = ours & 0x7fff_ffff;
        assert_eq!((positive % 3, positive % 12), (of_3, of_12), "{key}");
    };
    check("21", -973_932_308, 0, 0);
    check("foobar", -790_332_482, 0, 6);
    check("a-little-bit-long-string", -985_981_536, 2, 8);
    check("a-little-bit-longer-string", -1_486_304_829, 2, 11);
    check("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971, 2, 5);
    check("abc", 479_470_107, 0, 3);
}
