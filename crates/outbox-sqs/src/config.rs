//! What can be set about the publisher, with the reason for each default.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use outbox_core::units;
use outbox_core::wire::Format;
use serde::Deserialize;

use crate::error::ConfigError;

/// SQS answers within tens of milliseconds; with as long a wait for a free slot it stays below the relay's 30 s.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP and TLS take three round trips; three seconds also cover a slow name server.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// 160 events under way: at 20 ms a request 8 000 events a second. Each request in flight is one connection.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 16;
/// What SQS takes at most, of one message as of one batch:
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html>.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// The least that a queue's `MaximumMessageSize` can be set to.
const MIN_MESSAGE_BYTES: usize = 1024;
const MAX_IN_FLIGHT: usize = 256;
const MIN_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// SQS names a queue by its URL; an account number and 80 characters of name are far below this.
const MAX_URL_BYTES: usize = 2048;
/// What the URL of a FIFO queue ends with, by the rules of SQS.
const FIFO_SUFFIX: &str = ".fifo";
const AWS_DOMAINS: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];

/// Which queue, how to reach it, and how much is sent at once. Durations and sizes are texts with units when
/// deserialized.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SqsConfig {
    /// The URL of the queue, as `GetQueueUrl` gives it. The queue must exist: the publisher never makes one. A FIFO
    /// queue is known by the ending `.fifo`. Required.
    pub queue_url: String,
    /// The AWS region that requests are signed for. Default: the one in `queue_url`, when that is a URL of AWS.
    pub region: Option<String>,
    /// Where requests go, `https://` or `http://`: a VPC endpoint, or a server that speaks SQS. Default: SQS of the
    /// region for a `queue_url` of AWS, else the host of `queue_url`.
    pub endpoint_url: Option<String>,
    /// The access key; goes with `secret_access_key`. Default none: then a provider of credentials is needed
    /// ([`SqsPublisher::connect_with`](crate::SqsPublisher::connect_with)).
    pub access_key_id: Option<String>,
    /// The secret of `access_key_id`. Never shown.
    pub secret_access_key: Option<String>,
    /// The session token of a temporary access key. Never shown. Default none.
    pub session_token: Option<String>,
    /// PEM file of authorities to trust beside the system's; read once, when the publisher is made. Default none.
    pub ca_file: Option<PathBuf>,
    /// How long a request may take from connecting to the end of its answer, 100 ms to 1 h; events that are still
    /// without an answer then are unconfirmed. A call also waits this long for a free slot. Low: copies while SQS is
    /// slow. High: a lost answer is noticed late. Default [`DEFAULT_REQUEST_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub request_timeout: Duration,
    /// How long a connection with its TLS handshake may take, at most `request_timeout`. Default
    /// [`DEFAULT_CONNECT_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub connect_timeout: Duration,
    /// Requests under way at once, over all calls, 1 to 256; a request carries up to 10 events. Low: slow. High: more
    /// connections, and throttling by SQS. Default [`DEFAULT_MAX_IN_FLIGHT`].
    pub max_in_flight: usize,
    /// The largest message, body and attributes together, and the largest sum of a batch; 1 KiB to 1 MiB. A larger
    /// event is rejected before sending. Must not exceed the queue's `MaximumMessageSize`. Default
    /// [`DEFAULT_MAX_MESSAGE_BYTES`].
    #[serde(deserialize_with = "units::bytes")]
    pub max_message_bytes: usize,
    /// How events are written. Not read from this table, since it belongs to the route. Default plain.
    #[serde(skip)]
    pub format: Format,
}

impl Default for SqsConfig {
    fn default() -> Self {
        Self {
            queue_url: String::new(),
            region: None,
            endpoint_url: None,
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            ca_file: None,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            format: Format::default(),
        }
    }
}

/// Shows everything but the access key and its secrets.
impl fmt::Debug for SqsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No valid URL holds a password; one that is not yet checked may.
        let shown = |url: &str| if url.contains('@') { "(not shown)".to_owned() } else { url.to_owned() };
        f.debug_struct("SqsConfig")
            .field("queue_url", &shown(&self.queue_url))
            .field("region", &self.region)
            .field("endpoint_url", &self.endpoint_url.as_deref().map(shown))
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl SqsConfig {
    /// The defaults for one queue.
    pub fn new(queue_url: impl Into<String>) -> Self {
        Self { queue_url: queue_url.into(), ..Self::default() }
    }

    /// Sets the region.
    #[must_use]
    pub fn with_region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Sets where requests go.
    #[must_use]
    pub fn with_endpoint_url(mut self, url: impl Into<String>) -> Self {
        self.endpoint_url = Some(url.into());
        self
    }

    /// Sets a long-lived access key and its secret.
    #[must_use]
    pub fn with_access_key(mut self, id: impl Into<String>, secret: impl Into<String>) -> Self {
        self.access_key_id = Some(id.into());
        self.secret_access_key = Some(secret.into());
        self
    }

    /// Sets the session token of a temporary access key.
    #[must_use]
    pub fn with_session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// Trusts the authorities of a PEM file beside the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Sets how long a request may take.
    #[must_use]
    pub const fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets how long a connection may take to open.
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

    /// Sets the largest message.
    #[must_use]
    pub const fn with_max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets how events are written.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Whether the queue is a FIFO queue.
    pub(crate) fn is_fifo(&self) -> bool {
        self.queue_url.ends_with(FIFO_SUFFIX)
    }

    /// Checks what concerns publishing and leaves out how to connect.
    pub(crate) fn check_publishing(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut need = |ok: bool, field: &'static str, problem: String| {
            if !ok {
                errors.push(ConfigError { field, problem });
            }
        };
        if self.queue_url.contains(['{', '}']) {
            need(false, "queue_url", "must be one URL: use a route for each queue instead of a template".to_owned());
        } else if self.queue_url.len() > MAX_URL_BYTES {
            let problem = format!("must be at most {MAX_URL_BYTES} bytes, got {}", self.queue_url.len());
            need(false, "queue_url", problem);
        } else {
            let queue = Url::parse(&self.queue_url).filter(|url| !url.last_segment.is_empty());
            let example = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders";
            need(queue.is_some(), "queue_url", format!("must be the URL of a queue such as {example}"));
        }
        for (field, value) in [("request_timeout", self.request_timeout), ("connect_timeout", self.connect_timeout)] {
            let ok = (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&value);
            need(ok, field, format!("must be 100ms to 1h, got {}", units::format_duration(value)));
        }
        let (connect, request) = (self.connect_timeout, self.request_timeout);
        need(
            connect <= request,
            "connect_timeout",
            format!(
                "must not exceed request_timeout ({}), got {}",
                units::format_duration(request),
                units::format_duration(connect)
            ),
        );
        need(
            (1..=MAX_IN_FLIGHT).contains(&self.max_in_flight),
            "max_in_flight",
            format!("must be 1 to {MAX_IN_FLIGHT}, got {}", self.max_in_flight),
        );
        need(
            (MIN_MESSAGE_BYTES..=DEFAULT_MAX_MESSAGE_BYTES).contains(&self.max_message_bytes),
            "max_message_bytes",
            format!("must be 1KiB to 1MiB, got {} bytes", self.max_message_bytes),
        );
        errors
    }

    /// Checks how to connect. No error text shows a key.
    pub(crate) fn check_connecting(&self) -> Result<Destination, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut refuse = |field: &'static str, problem: String| errors.push(ConfigError { field, problem });
        let queue = Url::parse(&self.queue_url);
        let found = queue.as_ref().and_then(Url::aws_region);
        let region = match (self.region.as_deref(), found) {
            (Some(""), _) => {
                refuse("region", "must not be empty".to_owned());
                None
            }
            (Some(given), Some(found)) if given != found => {
                refuse("region", format!("must be that of queue_url, `{found}`, got `{given}`"));
                None
            }
            // A URL that can't be read is told by `check_publishing`.
            (None, None) if queue.as_ref().is_none_or(|url| url.last_segment.is_empty()) => None,
            (None, None) => {
                refuse("region", "must be set, for queue_url does not tell it".to_owned());
                None
            }
            (given, found) => given.or(found).map(str::to_owned),
        };
        let endpoint = match &self.endpoint_url {
            Some(url) if Url::parse(url).is_none() => {
                let problem = "must look like https://host:port, without user, password or blanks";
                refuse("endpoint_url", problem.to_owned());
                None
            }
            Some(url) => Some(url.clone()),
            None => queue.as_ref().filter(|url| !url.is_aws()).map(Url::origin),
        };
        let plain = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
        if plain && self.ca_file.is_some() {
            refuse("ca_file", "must not be set for an http:// endpoint".to_owned());
        }
        if self.access_key_id.is_some() != self.secret_access_key.is_some() {
            refuse("access_key_id", "goes with secret_access_key: set both or none".to_owned());
        }
        if self.session_token.is_some() && self.access_key_id.is_none() {
            refuse("session_token", "goes with access_key_id and secret_access_key".to_owned());
        }
        match region {
            Some(region) if errors.is_empty() => Ok(Destination { region, endpoint, plain }),
            _ => Err(errors),
        }
    }
}

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) region: String,
    /// Absent: what the SDK knows for the region.
    pub(crate) endpoint: Option<String>,
    /// Without TLS.
    pub(crate) plain: bool,
}

/// The parts of a URL that matter here.
struct Url<'a> {
    scheme: &'a str,
    authority: &'a str,
    last_segment: &'a str,
}

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let blank = |c: char| c.is_whitespace() || c.is_control();
        let strange =
            authority.is_empty() || authority.contains('@') || url.contains(blank) || url.contains(['?', '#']);
        let last_segment = path.rsplit('/').next().unwrap_or_default();
        (!strange && ["http", "https"].contains(&scheme)).then_some(Self { scheme, authority, last_segment })
    }

    fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    fn is_aws(&self) -> bool {
        AWS_DOMAINS.iter().any(|domain| self.authority.ends_with(domain))
    }

    /// The region in `sqs.eu-west-1.amazonaws.com`, also behind `sqs-fips` and in VPC endpoints.
    fn aws_region(&self) -> Option<&'a str> {
        let mut labels = self.authority.split('.').skip_while(|label| !label.starts_with("sqs"));
        labels.next().filter(|_| self.is_aws())?;
        labels.next()
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
