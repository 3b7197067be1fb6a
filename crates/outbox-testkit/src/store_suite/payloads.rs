//! What was written is what is read.

use outbox_core::{Claimed, Event as _, Headers, MAX_NAME_BYTES, NewEvent, Payload};

use super::{StoreHarness, event, identities, read_all, reader};

async fn round_trip(harness: &dyn StoreHarness, events: &[NewEvent]) -> Vec<Claimed> {
    let inserted = harness.insert(events.to_vec()).await;
    let (_, _, mut lane) = reader(harness).await;
    let claimed = read_all(&mut *lane).await;
    assert_eq!(identities(&claimed), inserted);
    assert!(claimed.iter().all(|event| event.defect.is_none() && event.retrying.is_none()));
    claimed
}

/// JSON keeps its spaces, digits, key order and duplicates; bytes may be empty or any; content types come back.
pub async fn payloads_come_back_byte_for_byte(harness: &dyn StoreHarness) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let payloads = [
        Payload::raw_json("{ \"b\" : 1.10,\t\"a\":12345678901234567890.000000000001, \"b\": 2 }"),
        Payload::raw_json("\"zażółć \u{1f980} \\u0041\\n\""),
        Payload::raw_json("null"),
        Payload::raw_json(" [] "),
        Payload::bytes("", "application/octet-stream"),
        Payload::bytes(all_bytes, "application/x-protobuf; type=ünï"),
        Payload::Bytes { data: b"\xff\xfe\x00"[..].into(), content_type: None },
    ];
    let events: Vec<_> =
        payloads.iter().map(|payload| NewEvent::new("order", "1", "order.changed", payload.clone())).collect();
    let claimed = round_trip(harness, &events).await;
    for (claimed, written) in claimed.iter().zip(&payloads) {
        // `Debug` hides the content, so the bytes are compared by themselves.
        assert!(claimed.envelope.payload.data() == written.data(), "{written:?} came back with other bytes");
        assert_eq!(claimed.envelope.payload, *written);
    }
}

/// One megabyte of JSON and of bytes comes back whole.
pub async fn a_large_payload_comes_back(harness: &dyn StoreHarness) {
    const BYTES: usize = 1024 * 1024;
    // No pattern that compression would make small.
    let mut noise = 1_u32;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.to_be_bytes()[0]
    })
    .take(BYTES)
    .collect();
    let text: String = data.iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    let payloads = [Payload::raw_json(format!("\"{text}\"")), Payload::bytes(data, "image/png")];
    let events = payloads.clone().map(|payload| NewEvent::new("order", "1", "order.changed", payload));
    let claimed = round_trip(harness, &events).await;
    for (claimed, written) in claimed.iter().zip(&payloads) {
        assert!(claimed.envelope.payload == *written, "{written:?} came back changed");
    }
}

/// Names of full length and any script, and headers with any text, come back as they were.
pub async fn names_and_headers_come_back(harness: &dyn StoreHarness) {
    let long = "é".repeat(MAX_NAME_BYTES / 2);
    let payload = || Payload::raw_json("{}");
    let events = [
        NewEvent::new(long.clone(), long.clone(), long, payload()),
        NewEvent::new("commande", "'; DROP TABLE x; --\"\\", "тип.注文 %{}$1", payload())
            .with_header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .with_header("empty", "")
            .with_header("Ünïcode \"quoted\" \\ name", "line one\r\nline two\t\u{1f980}")
            .with_header("b", "2")
            .with_header("a", "1"),
        NewEvent::new("order", "\u{a0}spaces around\u{2003}", "x", payload()).with_header("big", "x".repeat(10_000)),
    ];
    let claimed = round_trip(harness, &events).await;
    for (claimed, written) in claimed.iter().zip(&events) {
        let envelope = &claimed.envelope;
        assert_eq!(envelope.aggregate_type, written.aggregate_type());
        assert_eq!(envelope.aggregate_id, written.aggregate_id());
        assert_eq!(envelope.event_type, written.event_type());
        assert_eq!(envelope.headers, written.headers());
    }
    assert_eq!(claimed[0].envelope.headers, Headers::new());
}

/// The ordering key is a function of aggregate type and id, and two lanes agree on it and on the bucket.
pub async fn equal_aggregates_have_equal_keys(harness: &dyn StoreHarness) {
    let of = |aggregate_type: &str, aggregate_id: &str| {
        NewEvent::new(aggregate_type, aggregate_id, "x", Payload::raw_json("{}"))
    };
    let events = [of("a", "bc"), of("ab", "c"), of("a", "bc"), event("1", 1), of("order", "1"), of("invoice", "1")];
    harness.insert(events.to_vec()).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let claimed = read_all(&mut *lane).await;
    let keys: Vec<_> = claimed.iter().map(|event| event.key).collect();
    assert_eq!((keys[0], keys[3]), (keys[2], keys[4]));
    assert!(keys[0] != keys[1] && keys[4] != keys[5], "the key depends on both names and where they end");
    let mut second = super::open(&*store, &ownership).await;
    for (first, again) in claimed.iter().zip(read_all(&mut *second).await) {
        assert_eq!((first.key, first.bucket), (again.key, again.bucket));
        assert!(usize::from(first.bucket) < ownership.tokens.len(), "every bucket has a token");
    }
}
