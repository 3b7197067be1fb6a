//! What can be set about the publisher, with the reason for each default.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use outbox_core::units;
use outbox_core::wire::{Format, PLAIN_HEADERS};
use serde::Deserialize;

use crate::encode::{Rules, fixed_headers, is_control};
use crate::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::guard::{self, Reach};
use crate::sign::Keys;
use crate::tls::Files;

/// Standard Webhooks advises 15 to 30 seconds; with the wait for a connection it stays below the relay's 30 s.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// A healthy endpoint shakes hands within a second; five also cover a slow name server.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// One connection each. A receiver of modest size serves so many at once; at 50 ms a request they are 640 events a
/// second.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 32;
/// nginx's default for `client_max_body_size`.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 1024 * 1024;

const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
const MAX_IN_FLIGHT: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 512 * 1024 * 1024;

/// Whether requests are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Signing {
    /// As Standard Webhooks says, with each key of `secret`. The default.
    #[default]
    Standard,
    /// Not at all, for an endpoint that knows its callers by a secret URL, a header or a client certificate.
    None,
}

/// Whether connections may go to addresses that are not of the public Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PrivateAddresses {
    /// They may. The default, since the host is the operator's own choice and most often a neighbour.
    #[default]
    Allow,
    /// They may not: loopback, private, link-local (metadata services), shared, multicast, reserved, in IPv4, IPv6 and
    /// IPv4 inside IPv6. Each connection is judged by the address that it then goes to.
    Refuse,
}

/// Where `http://` is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PlainHttp {
    /// Only to this machine; the address is checked at each connection. The default.
    #[default]
    Loopback,
    /// Anywhere: whoever is on the way reads and changes events, the signature notwithstanding for reading.
    Anywhere,
}

/// Where events go and how. Durations and sizes are texts with units when deserialized.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct WebhookConfig {
    /// `https://host/path`. The path may hold `{event_type}`, `{aggregate_type}`, `{aggregate_id}` and
    /// `{header:NAME}`; data is percent-encoded and never leaves its segment. Path and query are never shown. No
    /// default.
    pub url: String,
    /// Secrets of Standard Webhooks (`whsec_` and base64 of 24 to 64 bytes), separated by white space; up to eight.
    /// Each request carries a signature by each, so that a receiver can change over. No default.
    pub secret: String,
    /// Whether requests are signed. Default [`Signing::Standard`].
    pub signing: Signing,
    /// The header `authorization` of each request, such as `Bearer …`. Default none.
    pub authorization: Option<String>,
    /// More headers of each request; their values are secret too. They win over an event's own headers of the same
    /// name. Default none.
    pub headers: BTreeMap<String, String>,
    /// How long a request may take from its connection to the head of its answer; then it is unconfirmed. Low: copies
    /// while the endpoint is slow. High: a lost answer is noticed late. Default [`DEFAULT_REQUEST_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub request_timeout: Duration,
    /// How long a connection may take: resolving, connecting and TLS together. Default [`DEFAULT_CONNECT_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub connect_timeout: Duration,
    /// Requests under way at once, each on its own connection, 1 to 1024. Low: fewer events a second. High: a receiver
    /// that is flooded. Default [`DEFAULT_MAX_IN_FLIGHT`].
    pub max_in_flight: usize,
    /// The largest body that is sent; a larger event is rejected before sending. Default
    /// [`DEFAULT_MAX_MESSAGE_BYTES`].
    #[serde(deserialize_with = "units::bytes")]
    pub max_message_bytes: usize,
    /// Whether connections may go to addresses that are not of the public Internet. Default
    /// [`PrivateAddresses::Allow`].
    pub private_addresses: PrivateAddresses,
    /// Where `http://` is accepted. Default [`PlainHttp::Loopback`].
    pub plain_http: PlainHttp,
    /// PEM file of authorities to trust beside the system's. Default none.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate and its chain; goes with `key_file`. Default none.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's private key; goes with `cert_file`. Default none.
    pub key_file: Option<PathBuf>,
    /// How events are written. Not a key of this table in a file: a route has one format, whatever its broker.
    #[serde(skip)]
    pub format: Format,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            secret: String::new(),
            signing: Signing::Standard,
            authorization: None,
            headers: BTreeMap::new(),
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            private_addresses: PrivateAddresses::Allow,
            plain_http: PlainHttp::Loopback,
            ca_file: None,
            cert_file: None,
            key_file: None,
            format: Format::default(),
        }
    }
}

/// Shows no secret: neither keys nor values of headers, nor the URL's path, which is a secret with some services.
impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = Endpoint::parse(&self.url).map_or_else(|_| "not valid".to_owned(), |endpoint| endpoint.shown());
        f.debug_struct("WebhookConfig")
            .field("url", &url)
            .field("signing", &self.signing)
            .field("headers", &self.headers.keys())
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("private_addresses", &self.private_addresses)
            .field("plain_http", &self.plain_http)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl WebhookConfig {
    /// The defaults for one URL and secret.
    pub fn new(url: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { url: url.into(), secret: secret.into(), ..Self::default() }
    }

    /// Sends without a signature; the secret is not used.
    #[must_use]
    pub const fn unsigned(mut self) -> Self {
        self.signing = Signing::None;
        self
    }

    /// Sets the header `authorization`.
    #[must_use]
    pub fn with_authorization(mut self, value: impl Into<String>) -> Self {
        self.authorization = Some(value.into());
        self
    }

    /// Adds a header to each request.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets how long a request may take once it has a connection.
    #[must_use]
    pub const fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets how long a connection may take.
    #[must_use]
    pub const fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how many requests are under way at once.
    #[must_use]
    pub const fn with_max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = requests;
        self
    }

    /// Sets the largest body.
    #[must_use]
    pub const fn with_max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets whether connections may go to addresses that are not public.
    #[must_use]
    pub const fn with_private_addresses(mut self, private: PrivateAddresses) -> Self {
        self.private_addresses = private;
        self
    }

    /// Sets where `http://` is accepted.
    #[must_use]
    pub const fn with_plain_http(mut self, plain: PlainHttp) -> Self {
        self.plain_http = plain;
        self
    }

    /// Trusts the authorities of a PEM file beside the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Authenticates by a client certificate (PEM) and its private key (PEM).
    #[must_use]
    pub fn with_client_certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.cert_file = Some(cert.into());
        self.key_file = Some(key.into());
        self
    }

    /// Sets how events are written.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Checks what concerns requests. No error text shows a secret.
    pub(crate) fn check_requests(&self) -> Result<(Rules, Option<Keys>), Vec<ConfigError>> {
        let mut errors = Vec::new();
        let endpoint = Endpoint::parse(&self.url).map_err(|problem| refuse(&mut errors, "url", problem));
        let keys = self.keys().map_err(|problem| refuse(&mut errors, "secret", problem));
        let authorization = self.authorization.as_ref().map(|text| header_value(text)).transpose();
        let authorization = authorization.map_err(|problem| refuse(&mut errors, "authorization", problem.to_owned()));
        let own = self.own_headers().map_err(|problem| refuse(&mut errors, "headers", problem));
        for (field, value) in [("request_timeout", self.request_timeout), ("connect_timeout", self.connect_timeout)] {
            if !(Duration::from_millis(100)..=MAX_TIMEOUT).contains(&value) {
                refuse(&mut errors, field, format!("must be 100ms to 1h, got {}", units::format_duration(value)));
            }
        }
        if !(1..=MAX_IN_FLIGHT).contains(&self.max_in_flight) {
            refuse(&mut errors, "max_in_flight", format!("must be 1 to {MAX_IN_FLIGHT}, got {}", self.max_in_flight));
        }
        if !(1..=MAX_MESSAGE_BYTES).contains(&self.max_message_bytes) {
            let problem = format!("must be 1B to 512MiB, got {} bytes", self.max_message_bytes);
            refuse(&mut errors, "max_message_bytes", problem);
        }
        match (endpoint, keys, authorization, own) {
            (Ok(endpoint), Ok(keys), Ok(authorization), Ok(own)) if errors.is_empty() => {
                let fixed = fixed_headers(authorization, own);
                let (format, max_message_bytes) = (self.format.clone(), self.max_message_bytes);
                Ok((Rules { endpoint, format, max_message_bytes, fixed }, keys))
            }
            _ => Err(errors),
        }
    }

    /// Checks how to connect.
    pub(crate) fn check_connecting(&self) -> Result<(Reach, Files), Vec<ConfigError>> {
        let mut errors = Vec::new();
        let reach = match self.private_addresses {
            PrivateAddresses::Refuse => Reach::Public,
            PrivateAddresses::Allow => Reach::Anywhere,
        };
        let files = [&self.ca_file, &self.cert_file, &self.key_file];
        let mut narrowed = reach;
        // A URL that can't be read is told by `check_requests`.
        if let Ok(endpoint) = Endpoint::parse(&self.url) {
            if !endpoint.is_https() {
                if files.iter().any(|file| file.is_some()) {
                    let problem = "must be https:// when ca_file, cert_file or key_file is set";
                    refuse(&mut errors, "url", problem.to_owned());
                }
                if self.plain_http == PlainHttp::Loopback {
                    let is_local = endpoint.host().eq_ignore_ascii_case("localhost")
                        || endpoint.address().is_some_and(guard::is_loopback);
                    if !is_local {
                        let problem = "must be https:// unless the host is localhost; plain_http = \"anywhere\" \
                                       allows it, unencrypted";
                        refuse(&mut errors, "url", problem.to_owned());
                    } else if reach == Reach::Anywhere {
                        narrowed = Reach::Loopback;
                    }
                }
            }
            if let Some(what) = endpoint.address().and_then(|address| reach.refuses(address)) {
                refuse(&mut errors, "url", format!("is at {what}, which private_addresses = \"refuse\" excludes"));
            }
        }
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            _ => {
                refuse(&mut errors, "cert_file", "goes with key_file: set both or none".to_owned());
                None
            }
        };
        if errors.is_empty() { Ok((narrowed, Files { ca: self.ca_file.clone(), identity })) } else { Err(errors) }
    }

    fn keys(&self) -> Result<Option<Keys>, String> {
        match (self.signing, self.secret.is_empty()) {
            (Signing::None, true) => Ok(None),
            (Signing::None, false) => Err("is not used with signing = \"none\"".to_owned()),
            (Signing::Standard, true) => {
                Err("is missing; set it, or signing = \"none\" for an endpoint that needs no signature".to_owned())
            }
            (Signing::Standard, false) => Keys::parse(&self.secret).map(Some),
        }
    }

    fn own_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, text) in &self.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is no header name"))?;
            if parsed == hyper::header::AUTHORIZATION {
                return Err(format!("`{name}` stands in the field `authorization`"));
            }
            if is_set_here(parsed.as_str()) {
                return Err(format!("`{name}` is set by the publisher"));
            }
            // Gateways (CGI, WSGI) give both forms to an application under one name.
            let dashed = parsed.as_str().replace('_', "-");
            if dashed == "authorization" || is_set_here(&dashed) {
                return Err(format!("`{name}` is the same as `{dashed}` to many receivers, which the publisher sets"));
            }
            if headers.contains_key(&parsed) {
                return Err(format!("`{name}` stands there twice"));
            }
            headers.insert(parsed, header_value(text).map_err(|problem| format!("the value of `{name}` {problem}"))?);
        }
        Ok(headers)
    }
}

fn is_set_here(name: &str) -> bool {
    let is_own = [CONTENT_TYPE, CONTENT_LENGTH].iter().any(|own| own == name) || PLAIN_HEADERS.contains(&name);
    is_own || (is_control(name) && name != USER_AGENT.as_str())
}

fn header_value(text: &str) -> Result<HeaderValue, &'static str> {
    let mut value = HeaderValue::from_str(text.trim()).ok().filter(|value| !value.is_empty() && value.to_str().is_ok());
    if let Some(value) = &mut value {
        value.set_sensitive(true);
    }
    value.ok_or("must be printable ASCII, and not empty")
}

fn refuse(errors: &mut Vec<ConfigError>, field: &'static str, problem: String) {
    errors.push(ConfigError { field, problem });
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
