//! From an envelope to a request. Pure: no clock, no connection.

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Uri};
use outbox_core::wire::{Format, is_plain_in_http, percent_encode};
use outbox_core::{Envelope, ErrorKind, PublishError};

use crate::endpoint::Endpoint;

/// Request line and headers together. Node.js takes 16 KiB by default (`--max-http-header-size`), Apache and nginx 8 KiB
/// a line; one that takes less answers 431 or 400.
pub(crate) const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Apache takes 100 by default (`LimitRequestFields`), and so do many libraries.
pub(crate) const MAX_HEADERS: usize = 100;
/// What is added when the request is sent: method and version, `host`, `content-length`, `webhook-timestamp`, and a
/// signature of 48 bytes for each of 8 keys.
const ADDED_BYTES: usize = 1024;
/// Of the same: how many headers.
const ADDED_HEADERS: usize = 4;

pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Who sends, when the config says nothing else.
const AGENT: &str = concat!("outbox-webhook/", env!("CARGO_PKG_VERSION"));

/// What steers a connection, a request on its way, or whom a receiver takes the sender for. It is the publisher's and
/// the operator's; an event that has such a header is sent without it.
const CONTROL: [&str; 20] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-real-ip",
];
/// The same, by how the names begin.
const CONTROL_PREFIXES: [&str; 4] = ["webhook-", "proxy-", "sec-", "x-forwarded-"];

/// Whether only the publisher may set a header. The name is in lower case.
pub(crate) fn is_control(name: &str) -> bool {
    CONTROL.contains(&name) || CONTROL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A request without its signature, which is made when it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) uri: Uri,
    pub(crate) id: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What the config says about every request.
pub(crate) struct Rules {
    pub(crate) endpoint: Endpoint,
    pub(crate) format: Format,
    pub(crate) max_message_bytes: usize,
    /// The config's own headers, `authorization` included.
    pub(crate) fixed: HeaderMap,
}

/// The headers that the config adds to each request.
pub(crate) fn fixed_headers(authorization: Option<HeaderValue>, own: HeaderMap) -> HeaderMap {
    let mut fixed = HeaderMap::new();
    fixed.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    fixed.extend(own);
    if let Some(value) = authorization {
        fixed.insert(AUTHORIZATION, value);
    }
    fixed
}

/// Encodes one event.
///
/// # Errors
/// `Rejected`, with the figures: no URL, a header name that HTTP can't carry, too many or too long headers, a body over
/// `max_message_bytes`.
pub(crate) fn encode(event: &Envelope, rules: &Rules) -> Result<Outgoing, PublishError> {
    let message = rules.format.render(event, "ce-");
    if message.body.len() > rules.max_message_bytes {
        let (bytes, allowed) = (message.body.len(), rules.max_message_bytes);
        return Err(rejected(format!("the body has {bytes} bytes, max_message_bytes allows {allowed}")));
    }
    let uri = rules.endpoint.uri(event);
    let uri = uri.map_err(|problem| rejected(format!("this event can't have a url: {problem}")))?;
    let id = event.event_id.to_string();

    let mut headers = HeaderMap::with_capacity(24);
    headers.insert(CONTENT_TYPE, value(&percent_encode(&message.content_type, |c| (' '..='~').contains(&c)))?);
    headers.insert(WEBHOOK_ID, value(&id)?);
    for (system, text) in &message.system {
        headers.insert(name(system)?, value(&percent_encode(text, is_plain_in_http))?);
    }
    // What the operator wants in each request wins over the event, and the format over both.
    for (fixed, text) in &rules.fixed {
        headers.entry(fixed).or_insert_with(|| text.clone());
    }
    let mut own_headers = HeaderMap::new();
    for (own, text) in &message.own {
        let own = name(own)?;
        if !is_control(own.as_str()) && !headers.contains_key(&own) {
            own_headers.append(own, value(&percent_encode(text, is_plain_in_http))?);
        }
    }
    headers.extend(own_headers);
    bounded(&uri, &headers)?;
    Ok(Outgoing { uri, id, headers, body: message.body })
}

fn bounded(uri: &Uri, headers: &HeaderMap) -> Result<(), PublishError> {
    let count = headers.len() + ADDED_HEADERS;
    if count > MAX_HEADERS {
        return Err(rejected(format!("the request has {count} headers, {MAX_HEADERS} are allowed")));
    }
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let lines: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let bytes = path + lines + ADDED_BYTES;
    if bytes > MAX_HEADER_BYTES {
        return Err(rejected(format!("url and headers have {bytes} bytes, {MAX_HEADER_BYTES} are allowed")));
    }
    Ok(())
}

fn name(name: &str) -> Result<HeaderName, PublishError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|error| {
        let shown: String = name.chars().take(40).collect();
        rejected(format!("the header name {shown:?} of {} bytes is none in HTTP", name.len())).with_source(error)
    })
}

fn value(text: &str) -> Result<HeaderValue, PublishError> {
    // Everything that could fail has been encoded before.
    HeaderValue::from_str(text).map_err(|error| rejected("a header's value is none in HTTP".into()).with_source(error))
}

fn rejected(detail: String) -> PublishError {
    PublishError::new(ErrorKind::Rejected, detail)
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
