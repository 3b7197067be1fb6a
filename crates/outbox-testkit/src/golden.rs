//! Golden files: what an adapter puts on the wire, kept as text beside its tests.
//!
//! A change of the wire is a change of the external contract, so it must show in a diff.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use outbox_core::{Envelope, EventId, Headers, Payload};
use uuid::Uuid;

/// One event of each kind that a wire format treats in its own way, with a name for the golden file.
#[must_use]
pub fn events() -> Vec<(&'static str, Envelope)> {
    let event = |number: u128, payload: Payload, headers: &[(&str, &str)]| Envelope {
        id: 7,
        event_id: EventId::from_uuid(Uuid::from_u128(0x0190_a6e4_0000_7000_8000_0000_0000_0000 + number)),
        aggregate_type: "order".to_owned(),
        aggregate_id: "42".to_owned(),
        event_type: "order.placed".to_owned(),
        payload,
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Headers>(),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    };
    let json = || Payload::raw_json(r#"{"total": 1.10, "note": "zażółć"}"#);
    let mut named = event(5, json(), &[]);
    named.aggregate_type = "zamówienie".to_owned();
    named.aggregate_id = "50% \"a\" ü".to_owned();
    let mut controls = event(6, json(), &[]);
    controls.aggregate_id = "a\nb%".to_owned();
    let mut ancient = event(7, json(), &[]);
    ancient.created_at = SystemTime::UNIX_EPOCH - Duration::from_secs(70_000_000_000);
    vec![
        ("json", event(1, json(), &[])),
        ("json with line breaks", event(2, Payload::raw_json("\n{\"a\":\r\n1}\n"), &[])),
        ("bytes", event(3, Payload::bytes(vec![0, 0xff, b'\n'], "application/x-protobuf"), &[])),
        (
            "headers",
            event(
                4,
                json(),
                &[
                    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                    ("TraceState", "vendor=1"),
                    ("tenant", "blue"),
                    ("note", "ü, 100%"),
                    // None of these may be taken for what the format says.
                    ("Content-Type", "forged/type"),
                    ("Event-Id", "forged"),
                    ("ID", "forged"),
                    ("EVENTTYPE", "forged"),
                    ("ce-id", "forged"),
                    ("CE_Source", "forged"),
                    ("cloudEvents:type", "forged"),
                    ("cloudevents_subject", "forged"),
                ],
            ),
        ),
        ("names beyond ascii", named),
        ("control characters in a name", controls),
        ("before the year 0", ancient),
        (
            "empty bytes without a content type",
            event(8, Payload::Bytes { data: Vec::new().into(), content_type: None }, &[]),
        ),
    ]
}

/// One message as text: its named parts in their order, then the body.
#[must_use]
pub fn section(title: &str, parts: &[(String, String)], body: &[u8]) -> String {
    let mut text = format!("=== {title}\n");
    for (name, value) in parts {
        // Escaped: one part is one line, whatever it holds. Writing to a String can't fail.
        let _ = writeln!(text, "{name}: {}", value.escape_debug());
    }
    let body = String::from_utf8(body.to_vec()).unwrap_or_else(|_| format!("(hexadecimal) {body:02x?}"));
    let body = body.replace('\r', "\\r"); // version control may change the line ends of a text
    let _ = writeln!(text, "\n{body}\n");
    text
}

/// Compares with a golden file.
///
/// # Panics
/// When the file is absent or differs. What was found is then in a file beside it whose name ends in `.new`; rename
/// it when the change is wanted.
pub fn check(path: impl AsRef<Path>, actual: &str) {
    let path = path.as_ref();
    let new = path.with_extension("new");
    if fs::read_to_string(path).is_ok_and(|golden| golden == actual) {
        // Left from an earlier run; absent as a rule.
        let _ = fs::remove_file(new);
        return;
    }
    fs::write(&new, actual).unwrap_or_else(|error| panic!("{} can't be written: {error}", new.display()));
    panic!("{} differs from {}: rename it when the change is wanted", path.display(), new.display());
}
