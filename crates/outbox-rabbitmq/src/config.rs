//! What can be set about the publisher, with the reason for each default.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use outbox_core::wire::Format;
use outbox_core::{TopicSyntax, TopicTemplate, units};
use serde::Deserialize;

use crate::error::ConfigError;

/// Where a broker listens when nothing is said: this machine, the usual port, the virtual host `/`.
pub const DEFAULT_URL: &str = "amqp://localhost:5672/%2f";
/// Two tokens, so that consumers can bind by aggregate type, by event type or by both.
pub const DEFAULT_TOPIC: &str = "{aggregate_type}.{event_type}";
/// One for each call that the relay makes at once, so that no event waits for the confirms of another call: with four,
/// half of the wait was for a channel (`docs/performance.md`). They are opened as they are needed; each is one process
/// in the broker.
pub const DEFAULT_CHANNELS: u16 = 16;
/// A loaded quorum queue confirms within seconds; with three connect time-outs it stays below the relay's 30 s.
pub const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(12);
/// A healthy broker greets within milliseconds; five seconds also cover a slow name server.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A dead peer is noticed after two of them; every connection costs two small packets in each.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(10);
/// RabbitMQ 4's own default for `max_message_size`; older brokers take 128 MiB.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// The longest routing key: AMQP 0-9-1 carries it as a short string.
pub(crate) const MAX_SHORT_STRING_BYTES: usize = 255;
const MAX_CHANNELS: u16 = 64;
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// RabbitMQ refuses a larger `max_message_size`.
const MAX_MESSAGE_BYTES: usize = 512 * 1024 * 1024;

const ROUTING_KEY: TopicSyntax =
    TopicSyntax { separator: Some('.'), wildcards: &['*', '#'], max_bytes: MAX_SHORT_STRING_BYTES };

/// How to reach the broker and where events go. Durations and sizes are texts with units when deserialized.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RabbitMqConfig {
    /// `amqp://user:password@host:port/vhost`, or `amqps://` with feature `tls`. The virtual host is URL-encoded:
    /// `%2f` is `/`. Default [`DEFAULT_URL`].
    pub url: String,
    /// The exchange. It must exist: the publisher never declares topology. `""` is the default exchange, whose
    /// routing key is a queue's name. Default `""`.
    pub exchange: String,
    /// Template of the routing key, at most 255 bytes when rendered. Default [`DEFAULT_TOPIC`].
    pub topic: String,
    /// Channels that publish side by side, 1 to 64, opened as they are needed. Few: an event waits for the confirms of
    /// those before it. Many: memory in the broker. Default [`DEFAULT_CHANNELS`].
    pub channels: u16,
    /// How long a sent event waits for the broker's confirm before it counts as unconfirmed. Low: copies while the
    /// broker is slow. High: a lost answer is noticed late. Default [`DEFAULT_CONFIRM_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub confirm_timeout: Duration,
    /// How long a connection with its handshake, or a channel, may take to open. Default
    /// [`DEFAULT_CONNECT_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub connect_timeout: Duration,
    /// The AMQP heartbeat, whole seconds from 1 to 3600; a silent peer is given up after two of them. Default
    /// [`DEFAULT_HEARTBEAT`].
    #[serde(deserialize_with = "units::duration")]
    pub heartbeat: Duration,
    /// The largest body that is sent; a larger event is rejected before sending. Must not exceed the broker's
    /// `max_message_size`. Default [`DEFAULT_MAX_MESSAGE_BYTES`].
    #[serde(deserialize_with = "units::bytes")]
    pub max_message_bytes: usize,
    /// How events are written. Not a key of this table: a route sets it. Default [`Format::Plain`].
    #[serde(skip)]
    pub format: Format,
    /// PEM file of authorities to trust beside the system's. Needs feature `tls` and `amqps://`. Default none.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate and its chain; goes with `key_file`. Default none.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's private key (PKCS#8); goes with `cert_file`. Default none.
    pub key_file: Option<PathBuf>,
}

impl Default for RabbitMqConfig {
    fn default() -> Self {
        Self {
            url: DEFAULT_URL.to_owned(),
            exchange: String::new(),
            topic: DEFAULT_TOPIC.to_owned(),
            channels: DEFAULT_CHANNELS,
            confirm_timeout: DEFAULT_CONFIRM_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            heartbeat: DEFAULT_HEARTBEAT,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            format: Format::default(),
            ca_file: None,
            cert_file: None,
            key_file: None,
        }
    }
}

/// Shows everything but the URL, which holds the password.
impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqConfig")
            .field("exchange", &self.exchange)
            .field("topic", &self.topic)
            .field("channels", &self.channels)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl RabbitMqConfig {
    /// The defaults for one broker and exchange.
    pub fn new(url: impl Into<String>, exchange: impl Into<String>) -> Self {
        Self { url: url.into(), exchange: exchange.into(), ..Self::default() }
    }

    /// Sets the routing key's template.
    #[must_use]
    pub fn with_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Sets the number of channels.
    #[must_use]
    pub const fn with_channels(mut self, channels: u16) -> Self {
        self.channels = channels;
        self
    }

    /// Sets how long a sent event waits for its confirm.
    #[must_use]
    pub const fn with_confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// Sets how long a connection or a channel may take to open.
    #[must_use]
    pub const fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the AMQP heartbeat.
    #[must_use]
    pub const fn with_heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// Sets the largest body.
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

    /// Trusts the authorities of a PEM file beside the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Authenticates by a client certificate (PEM) and its private key (PEM, PKCS#8).
    #[must_use]
    pub fn with_client_certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.cert_file = Some(cert.into());
        self.key_file = Some(key.into());
        self
    }

    /// Checks what concerns publishing and leaves out how to connect.
    pub(crate) fn check_publishing(&self) -> Result<TopicTemplate, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut need = |ok: bool, field: &'static str, problem: String| {
            if !ok {
                errors.push(ConfigError { field, problem });
            }
        };
        need(
            self.exchange.len() <= MAX_SHORT_STRING_BYTES,
            "exchange",
            format!("must be at most {MAX_SHORT_STRING_BYTES} bytes, got {}", self.exchange.len()),
        );
        need(
            (1..=MAX_CHANNELS).contains(&self.channels),
            "channels",
            format!("must be 1 to {MAX_CHANNELS}, got {}", self.channels),
        );
        for (field, value) in [("confirm_timeout", self.confirm_timeout), ("connect_timeout", self.connect_timeout)] {
            let ok = (Duration::from_millis(100)..=MAX_TIMEOUT).contains(&value);
            need(ok, field, format!("must be 100ms to 1h, got {}", units::format_duration(value)));
        }
        need(
            (1..=MAX_MESSAGE_BYTES).contains(&self.max_message_bytes),
            "max_message_bytes",
            format!("must be 1B to 512MiB, got {} bytes", self.max_message_bytes),
        );
        let topic = TopicTemplate::parse(&self.topic, ROUTING_KEY);
        if let Err(error) = &topic {
            need(false, "topic", error.to_string());
        }
        match topic {
            Ok(topic) if errors.is_empty() => Ok(topic),
            _ => Err(errors),
        }
    }

    /// Checks how to connect. No error text shows the URL.
    pub(crate) fn check_connecting(&self) -> Result<AMQPUri, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut refuse = |field: &'static str, problem: &str| {
            errors.push(ConfigError { field, problem: problem.to_owned() });
        };
        if !outbox_core::is_percent_encoded(&self.url) {
            refuse("url", "has a `%` that is not followed by two hexadecimal digits; write `%25` for the sign itself");
        }
        let uri = self.url.parse::<AMQPUri>();
        match &uri {
            Ok(uri) => {
                let tls = uri.scheme == AMQPScheme::AMQPS;
                if tls && !cfg!(feature = "tls") {
                    refuse("url", "amqps:// is not compiled in; enable feature `tls` of outbox-rabbitmq");
                }
                if !tls && (self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some()) {
                    refuse("url", "must be amqps:// when ca_file, cert_file or key_file is set");
                }
                if uri.query.heartbeat.is_some() || uri.query.connection_timeout.is_some() {
                    refuse("url", "must not set heartbeat or connection_timeout; use the fields of these names");
                }
                // The parser takes `[::1]` for a missing host and would quietly connect to localhost.
                if self.url.contains("//[") || self.url.contains("@[") {
                    refuse("url", "must name the host or its IPv4 address, an IPv6 literal is not supported");
                }
            }
            Err(_) => refuse("url", "must look like amqp://user:password@host:port/vhost"),
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            refuse("cert_file", "goes with key_file: set both or none");
        }
        let whole = self.heartbeat.subsec_nanos() == 0;
        let heartbeat = u16::try_from(self.heartbeat.as_secs()).ok().filter(|s| whole && (1..=3600).contains(s));
        if heartbeat.is_none() {
            refuse("heartbeat", "must be whole seconds from 1s to 1h");
        }
        match uri {
            Ok(mut uri) if errors.is_empty() => {
                uri.query.heartbeat = heartbeat;
                Ok(uri)
            }
            _ => Err(errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(config: &RabbitMqConfig) -> Vec<String> {
        let mut errors = config.check_publishing().err().unwrap_or_default();
        errors.extend(config.check_connecting().err().unwrap_or_default());
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(problems(&RabbitMqConfig::default()), [""; 0]);
    }

    #[test]
    fn each_problem_is_named_with_its_field_and_without_the_url() {
        let secret = "amqp://relay:hunter2@broker:5672/%2f";
        let check = |config: RabbitMqConfig, expected: &[&str]| {
            let found = problems(&config);
            assert_eq!(found, expected);
            assert!(found.iter().all(|text| !text.contains("hunter2")));
            assert!(!format!("{config:?}").contains("hunter2"));
        };
        check(
            RabbitMqConfig::new("http://relay:hunter2@broker", "x"),
            &["url: must look like amqp://user:password@host:port/vhost"],
        );
        check(
            RabbitMqConfig::new("not a url hunter2", "x"),
            &["url: must look like amqp://user:password@host:port/vhost"],
        );
        check(
            RabbitMqConfig::new("amqp://relay:hunter2@[::1]:5672/%2f", "x"),
            &["url: must name the host or its IPv4 address, an IPv6 literal is not supported"],
        );
        check(
            RabbitMqConfig::new("amqp://relay:hunter2%zz@broker:5672/%2f", "x"),
            &["url: has a `%` that is not followed by two hexadecimal digits; write `%25` for the sign itself"],
        );
        check(
            RabbitMqConfig::new(format!("{secret}?heartbeat=5"), "x"),
            &["url: must not set heartbeat or connection_timeout; use the fields of these names"],
        );
        check(
            RabbitMqConfig::new(secret, "x").with_client_certificate("c.pem", "k.pem"),
            &["url: must be amqps:// when ca_file, cert_file or key_file is set"],
        );
        check(
            RabbitMqConfig::new(secret, "x".repeat(256))
                .with_topic("orders.#")
                .with_channels(0)
                .with_confirm_timeout(Duration::ZERO)
                .with_heartbeat(Duration::from_millis(1500))
                .with_max_message_bytes(0),
            &[
                "exchange: must be at most 255 bytes, got 256",
                "channels: must be 1 to 64, got 0",
                "confirm_timeout: must be 100ms to 1h, got 0s",
                "max_message_bytes: must be 1B to 512MiB, got 0 bytes",
                "topic: topic template `orders.#` contains '#', which is reserved for subscribers or unprintable",
                "heartbeat: must be whole seconds from 1s to 1h",
            ],
        );
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn amqps_names_the_missing_feature() {
        assert_eq!(
            problems(&RabbitMqConfig::new("amqps://broker", "x")),
            ["url: amqps:// is not compiled in; enable feature `tls` of outbox-rabbitmq"]
        );
    }

    #[test]
    fn it_reads_units_and_refuses_unknown_keys() {
        let read = |json: &str| serde_json::from_str::<RabbitMqConfig>(json);
        let config = read(r#"{"exchange":"orders","confirm_timeout":"2s","max_message_bytes":"64KiB"}"#).unwrap();
        assert_eq!((config.confirm_timeout, config.max_message_bytes), (Duration::from_secs(2), 65_536));
        assert_eq!(config.topic, DEFAULT_TOPIC);
        assert!(read(r#"{"exhange":"orders"}"#).unwrap_err().to_string().contains("unknown field `exhange`"));
        assert!(read(r#"{"confirm_timeout":2}"#).unwrap_err().to_string().contains("a duration with its unit"));
    }
}
