//! CloudEvents as a reader that no one here wrote understands them: the SDK for Python, over the bindings of HTTP,
//! Kafka and AMQP, in both modes.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbox_core::wire::{Format, is_plain_in_http, percent_encode};
use outbox_core::{Envelope, Payload, rfc3339_micros};
use outbox_testkit::golden;
use outbox_testkit::services::{install, require_or_skip};
use serde_json::{Value, json};

/// How each protocol's binding names attributes.
const PROTOCOLS: [(&str, &str); 3] = [("http", "ce-"), ("kafka", "ce_"), ("amqp", "cloudEvents:")];

#[test]
fn the_sdk_for_python_reads_every_event_in_both_modes_over_three_protocols() {
    let sdk = install::cloudevents_sdk(&|line| println!("{line}"));
    let Some(sdk) = require_or_skip("cloudevents-sdk", sdk) else { return };
    let mut sent = Vec::new();
    let mut expected = Vec::new();
    for (format, (protocol, prefix)) in
        ["cloudevents", "cloudevents-structured"].into_iter().flat_map(|f| PROTOCOLS.map(|p| (f, p)))
    {
        let format = format.parse::<Format>().unwrap().with_source("https://example.com/orders?x=%20").unwrap();
        for (title, event) in golden::events() {
            sent.push(message(&format, protocol, prefix, &event));
            expected.push((format!("{title}, {} over {protocol}", format.as_str()), read_as(&format, &event)));
        }
    }
    let read = read(&sdk, &Value::from(sent));
    assert_eq!(read.len(), expected.len());
    for (mut read, (title, expected)) in read.into_iter().zip(expected) {
        if expected["attributes"].get("time").is_none() {
            // The SDK puts its own clock where an event has no time.
            read["attributes"].as_object_mut().unwrap().remove("time");
        }
        assert_eq!(read, expected, "{title}");
    }
}

/// What an adapter of this protocol sends, in words that the script knows.
fn message(format: &Format, protocol: &str, prefix: &str, event: &Envelope) -> Value {
    let message = format.render(event, prefix);
    let on_the_wire = |value: &str| match protocol {
        "http" => percent_encode(value, is_plain_in_http).into_owned(),
        _ => value.to_owned(),
    };
    let system = message.system.iter().map(|(name, value)| (name.to_string(), on_the_wire(value)));
    let own = message.own.iter().map(|(name, value)| ((*name).to_owned(), on_the_wire(value)));
    let headers: BTreeMap<_, _> = own.chain(system).collect();
    json!({
        "protocol": protocol,
        "headers": headers,
        "content_type": message.content_type,
        "body": STANDARD.encode(&message.body),
        "key": Value::Null,
    })
}

/// What the reader should tell. Names are as CloudEvents allows them, see `wire.rs`.
fn read_as(format: &Format, event: &Envelope) -> Value {
    let subject = if event.aggregate_id == "a\nb%" { "a%0Ab%25" } else { &event.aggregate_id };
    let mut attributes = json!({
        "specversion": "1.0",
        "id": event.event_id.to_string(),
        "source": "https://example.com/orders?x=%20",
        "type": event.event_type,
        "subject": subject,
        "partitionkey": subject,
        "aggregatetype": event.aggregate_type,
        "datacontenttype": event.payload.content_type(),
    });
    let time = rfc3339_micros(event.created_at);
    if !time.starts_with('-') {
        attributes["time"] = time.into();
    }
    for name in ["traceparent", "tracestate"] {
        if let Some((_, value)) = event.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)) {
            attributes[name] = value.as_str().into();
        }
    }
    match &event.payload {
        Payload::Json(json) => {
            json!({ "attributes": attributes, "data": serde_json::from_slice::<Value>(json).unwrap() })
        }
        // The SDK tells an empty body of the binary mode as no data.
        Payload::Bytes { data, .. } if data.is_empty() && format.as_str() == "cloudevents" => {
            json!({ "attributes": attributes, "data": Value::Null })
        }
        Payload::Bytes { data, .. } => json!({ "attributes": attributes, "bytes": STANDARD.encode(data) }),
    }
}

/// Runs the script on all messages at once.
fn read(sdk: &Path, messages: &Value) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/read_cloudevents.py");
    let mut python = Command::new("python3")
        .arg(script)
        .env("PYTHONPATH", sdk)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The script reads all before it writes, so neither side waits for the other.
    python.stdin.take().unwrap().write_all(messages.to_string().as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "the script ended with {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}
