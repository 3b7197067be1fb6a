//! The attributes of a message: at most ten, with narrow names and no empty values. Pure.
//!
//! Emulators of SQS enforce none of this, so it is enforced and tested here.

use std::collections::BTreeMap;

use outbox_core::PublishError;
use outbox_core::wire::{Message, percent_encode};

use crate::body::{escape_json, is_xml};
use crate::encode::rejected;

/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html>, as all
/// limits here.
pub(crate) const MAX_ATTRIBUTES: usize = 10;
const MAX_NAME_BYTES: usize = 256;
const RESERVED_PREFIXES: [&str; 2] = ["aws.", "amazon."];
/// The data type of all attributes.
pub(crate) const STRING: &str = "String";

/// Holds the event's own headers as one JSON object when they don't all fit as attributes.
pub(crate) const HEADERS: &str = "headers";
const CONTENT_TYPE: &str = "content-type";
const CONTENT_ENCODING: &str = "content-encoding";
/// Tracing tools look for these as attributes: they stay out of [`HEADERS`] where there is room.
const TRACE_CONTEXT: [&str; 2] = ["traceparent", "tracestate"];

/// A name and a value that SQS takes.
pub(crate) type Attribute = (String, String);

/// The attributes of a message, those of the format first.
///
/// What does not fit travels in [`HEADERS`]: the event's own headers all together, and should the format alone need
/// more than there are, its last ones. What tells how to read the body always stays.
///
/// # Errors
/// `Rejected` when the headers can't be written as JSON, which strings can.
pub(crate) fn attributes(message: &Message<'_>, base64: bool) -> Result<Vec<Attribute>, PublishError> {
    let encoding = base64.then_some((CONTENT_ENCODING, "base64"));
    // An absent attribute stands for an empty value, which SQS does not take.
    let present = |(_, value): &(&str, &str)| !value.is_empty();
    let body = [(CONTENT_TYPE, &*message.content_type)].into_iter().filter(present).chain(encoding);
    let body: Vec<Attribute> = body.map(attribute).collect();
    let system = message.system.iter().map(|(name, value)| (&**name, &**value)).filter(present);
    let mut system: Vec<(&str, &str)> = system.collect();
    let fits = |name: &str, value: &str| {
        let taken = name.eq_ignore_ascii_case(HEADERS) || (base64 && name.eq_ignore_ascii_case(CONTENT_ENCODING));
        !taken && !value.is_empty() && is_legal_name(name)
    };
    let all_fit = message.own.iter().all(|(name, value)| fits(name, value));
    if all_fit && system.len() + body.len() + message.own.len() <= MAX_ATTRIBUTES {
        let own = message.own.iter().copied().map(attribute);
        return Ok(system.into_iter().map(attribute).chain(body).chain(own).collect());
    }
    // One place is for the rest.
    let room = MAX_ATTRIBUTES - 1 - body.len();
    let mut rest: BTreeMap<&str, &str> = system.split_off(room.min(system.len())).into_iter().collect();
    let mut attributes: Vec<Attribute> = system.into_iter().map(attribute).chain(body).collect();
    for (name, value) in &message.own {
        let has_room = attributes.len() + 1 < MAX_ATTRIBUTES;
        if has_room && fits(name, value) && TRACE_CONTEXT.iter().any(|trace| name.eq_ignore_ascii_case(trace)) {
            attributes.push(attribute((name, value)));
        } else {
            rest.insert(name, value);
        }
    }
    let json = serde_json::to_string(&rest)
        .map_err(|error| rejected("the headers could not be written as JSON".to_owned()).with_source(error))?;
    attributes.push((HEADERS.to_owned(), escape_json(&json)));
    Ok(attributes)
}

/// An attribute with a value that SQS carries.
fn attribute((name, value): (&str, &str)) -> Attribute {
    (name.to_owned(), percent_encode(value, is_xml).into_owned())
}

/// What the attributes count towards the size of their message, by the rules of SQS: names, types and values.
pub(crate) fn bytes(attributes: &[Attribute]) -> usize {
    attributes.iter().map(|(name, value)| name.len() + STRING.len() + value.len()).sum()
}

/// Whether SQS takes the name of an attribute.
fn is_legal_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
}

#[cfg(test)]
#[path = "attributes_tests.rs"]
mod tests;
