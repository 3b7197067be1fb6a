//! `enqueue`: writes events into the outbox, in one transaction.

use std::io::Read;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use outbox_core::{EventId, Headers, InvalidEvent, NewEvent, Payload};
use outbox_pg::{EnqueueError, Outbox};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sqlx::Connection as _;
use uuid::Uuid;

use super::args::Output;
use super::failure::{Failure, with_causes};
use super::output::{Items, print};
use super::settings::Settings;

pub(crate) const EXAMPLES: &str = "\
Examples:
  outbox-relay enqueue --aggregate-type order --aggregate-id 17 --event-type order.placed --payload '{\"total\": 5}'
  outbox-relay enqueue --aggregate-type scan --aggregate-id 9 --event-type scan.made \\
      --payload-file scan.png --content-type image/png --header tenant=acme

  # Many events, one JSON object a line, all or none
  printf '%s\\n' '{\"aggregate_type\":\"order\",\"aggregate_id\":\"1\",\"event_type\":\"order.placed\",\"payload\":{}}' \\
      | outbox-relay enqueue --stdin

A line has aggregate_type, aggregate_id, event_type and one of payload (any JSON) and payload_base64 (bytes);
optional are content_type (with payload_base64), headers (object of strings) and event_id (UUID).
Prints the event ids, one a line, in the order of the events.";

/// The most that is read from stdin or from a payload's file: all events of one transaction are held in memory.
const MAX_INPUT_BYTES: u64 = 256 * 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct EnqueueArgs {
    /// What kind of thing the event is about, for example order
    #[arg(long, required_unless_present = "stdin", value_name = "NAME")]
    aggregate_type: Option<String>,
    /// Which one; events of one aggregate keep their order
    #[arg(long, required_unless_present = "stdin", value_name = "ID")]
    aggregate_id: Option<String>,
    /// What happened, for example order.placed
    #[arg(long, required_unless_present = "stdin", value_name = "NAME")]
    event_type: Option<String>,
    /// The body: the text of one JSON value
    #[arg(long, required_unless_present_any = ["stdin", "payload_file"], conflicts_with = "payload_file", value_name = "JSON")]
    payload: Option<String>,
    /// A file with the body: JSON, or any bytes when --content-type is given
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Makes the body opaque bytes of this media type
    #[arg(long, requires = "payload_file", value_name = "TYPE")]
    content_type: Option<String>,
    /// A header; can be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,
    /// The event id [default: a new UUID of version 7]
    #[arg(long, value_name = "UUID")]
    event_id: Option<Uuid>,
    /// Reads the events from stdin, one JSON object a line
    #[arg(long, conflicts_with_all = ["aggregate_type", "aggregate_id", "event_type", "payload", "payload_file", "content_type", "headers", "event_id"])]
    stdin: bool,
}

/// One line of stdin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(default)]
    payload_base64: Option<String>,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    headers: Headers,
    #[serde(default)]
    event_id: Option<Uuid>,
}

/// `"payload": null` is a payload.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

#[derive(Debug, Serialize)]
struct Written {
    event_id: EventId,
}

pub(crate) async fn enqueue(settings: &Settings, args: &EnqueueArgs, output: Output) -> Result<(), Failure> {
    let events = if args.stdin { from_lines(&read(std::io::stdin(), "stdin")?)? } else { vec![from_flags(args)?] };
    let mut connection = super::database::connect(settings).await?;
    let failed = |error: sqlx::Error| Failure::failed(&error);
    let mut transaction = connection.begin().await.map_err(failed)?;
    let outbox = Outbox::new(settings.database.schema.clone());
    let ids = outbox.enqueue_many(&mut transaction, &events).await.map_err(|error| match error {
        EnqueueError::Invalid { index, source } => invalid(args.stdin, index, &source),
        other => Failure::failed(&other),
    })?;
    transaction.commit().await.map_err(|error| {
        let why = with_causes(&error);
        Failure::Failed(format!("the answer to the commit was lost: the events may or may not be written: {why}"))
    })?;
    let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
    let items = ids.into_iter().map(|event_id| Written { event_id }).collect();
    // A caller that takes this for a failure and tries again would write the events twice.
    let told = |failure| match failure {
        Failure::Failed(why) => Failure::Failed(format!("the events are committed, do not write them again; {why}")),
        other => other,
    };
    print(output, &text, &Items { items }).map_err(told)
}

fn invalid(stdin: bool, index: usize, error: &InvalidEvent) -> Failure {
    let place = if stdin { format!("event {}: ", index + 1) } else { String::new() };
    Failure::Usage(format!("{place}{}", with_causes(error)))
}

fn from_flags(args: &EnqueueArgs) -> Result<NewEvent, Failure> {
    let name = |name: &Option<String>| name.clone().unwrap_or_default(); // clap has required them
    let payload = match (&args.payload, &args.payload_file) {
        (_, Some(path)) => {
            let shown = path.display().to_string();
            let unreadable = |error| Failure::Usage(format!("--payload-file {shown} can't be read: {error}"));
            let data = read(std::fs::File::open(path).map_err(unreadable)?, &shown)?;
            match &args.content_type {
                Some(content_type) => Payload::bytes(data, content_type.clone()),
                None => Payload::raw_json(data),
            }
        }
        (payload, None) => Payload::raw_json(payload.clone().unwrap_or_default()),
    };
    let mut event =
        NewEvent::new(name(&args.aggregate_type), name(&args.aggregate_id), name(&args.event_type), payload);
    for header in &args.headers {
        let (name, value) =
            header.split_once('=').ok_or_else(|| Failure::Usage("--header needs NAME=VALUE".to_owned()))?;
        event = event.with_header(name, value);
    }
    Ok(match args.event_id {
        Some(id) => event.with_event_id(EventId::from_uuid(id)),
        None => event,
    })
}

fn from_lines(input: &[u8]) -> Result<Vec<NewEvent>, Failure> {
    let mut events = Vec::new();
    for (index, line) in input.split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |problem: &str| Failure::Usage(format!("line {}: {problem}", index + 1));
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| {
            // The position alone: the message of a value of the wrong type repeats that value.
            use serde_json::error::Category;
            match error.classify() {
                Category::Data => wrong(&format!("is not an event (at column {}): {}", error.column(), FIELDS)),
                _ => wrong(&format!("is no JSON (at column {})", error.column())),
            }
        })?;
        let payload = match (line.payload, line.payload_base64) {
            (Some(json), None) if line.content_type.is_none() => Payload::raw_json(json.get().to_owned()),
            (Some(_), None) => return Err(wrong("content_type goes with payload_base64 only")),
            (None, Some(text)) => {
                let data = STANDARD.decode(text).map_err(|_| wrong("payload_base64 is no base64 with padding"))?;
                Payload::Bytes { data: data.into(), content_type: line.content_type }
            }
            _ => return Err(wrong("needs exactly one of payload and payload_base64")),
        };
        let mut event = NewEvent::new(line.aggregate_type, line.aggregate_id, line.event_type, payload);
        for (name, value) in line.headers {
            event = event.with_header(name, value);
        }
        if let Some(id) = line.event_id {
            event = event.with_event_id(EventId::from_uuid(id));
        }
        events.push(event);
    }
    if events.is_empty() { Err(Failure::Usage("stdin holds no event".to_owned())) } else { Ok(events) }
}

const FIELDS: &str = "known are aggregate_type, aggregate_id, event_type, payload, payload_base64, content_type, headers \
                      (object of strings) and event_id (UUID)";

fn read(from: impl Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    let read = from.take(MAX_INPUT_BYTES + 1).read_to_end(&mut data);
    read.map_err(|error| Failure::Failed(format!("{name} can't be read: {error}")))?;
    if data.len() as u64 > MAX_INPUT_BYTES {
        return Err(Failure::Usage(format!("{name} holds more than {MAX_INPUT_BYTES} bytes: send it in parts")));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use outbox_core::Event as _;

    use super::*;

    #[test]
    fn lines_become_events() {
        let text = r#"{"aggregate_type":"order","aggregate_id":"1","event_type":"e","payload":{"n": 1.10},"headers":{"a":"b"}}

{"aggregate_type":"order","aggregate_id":"2","event_type":"e","payload_base64":"AP8K","content_type":"x/y"}
{"aggregate_type":"order","aggregate_id":"3","event_type":"e","payload":null,"event_id":"00000000-0000-0000-0000-000000000001"}"#;
        let events = from_lines(text.as_bytes()).unwrap();
        let one = NewEvent::new("order", "1", "e", Payload::raw_json(r#"{"n": 1.10}"#)).with_header("a", "b");
        let two = NewEvent::new("order", "2", "e", Payload::bytes(vec![0, 255, 10], "x/y"));
        assert_eq!(events[..2], [one, two]);
        assert_eq!(events[2].event_id().unwrap().as_uuid(), Uuid::from_u128(1));
        assert_eq!(events[2].payload().unwrap(), Payload::raw_json("null"));
    }

    #[test]
    fn a_bad_line_is_named_without_its_content() {
        let check = |line: &str, expected: &str| {
            let text = format!("\n{line}\n");
            let Err(Failure::Usage(problem)) = from_lines(text.as_bytes()) else { panic!("{line}") };
            assert!(problem.contains(expected) && !problem.contains("geheim"), "{problem}");
        };
        let with = |rest: &str| format!(r#"{{"aggregate_type":"o","aggregate_id":"1","event_type":"e"{rest}}}"#);
        check("", "stdin holds no event");
        check("{geheim", "line 2: is no JSON");
        check(r#"{"aggregate_type":"geheim"}"#, "line 2: is not an event");
        check(&with(""), "line 2: needs exactly one of payload and payload_base64");
        check(&with(r#","payload":1,"payload_base64":"""#), "line 2: needs exactly one");
        check(&with(r#","payload":"geheim","content_type":"x""#), "line 2: content_type goes with payload_base64 only");
        check(&with(r#","payload_base64":"geheim!""#), "line 2: payload_base64 is no base64");
        check(&with(r#","payload":1,"paylod":"geheim""#), "line 2: is not an event");
    }
}
