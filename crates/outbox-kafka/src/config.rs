//! What can be set about the publisher, with the reason for each default.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use outbox_core::wire::Format;
use outbox_core::{TopicTemplate, units};
use serde::Deserialize;

use crate::error::ConfigError;
use crate::topic;

/// Where a broker listens when nothing is said: this machine, the usual port.
pub const DEFAULT_BROKER: &str = "localhost:9092";
/// One topic for all events of an aggregate: Kafka keeps order within a partition of a topic, not across topics.
pub const DEFAULT_TOPIC: &str = "{aggregate_type}";
/// Replicas of a loaded cluster acknowledge within seconds; with three connect time-outs it stays below the relay's
/// 30 s.
pub const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(12);
/// A healthy broker answers within milliseconds; five seconds also cover a slow name server.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A broker's own default for `message.max.bytes` is 12 bytes more.
/// <https://kafka.apache.org/documentation/#brokerconfigs_message.max.bytes>
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// What is kept of `max_message_bytes` for the batch around a message and for the names of the event.
pub(crate) const RESERVED_BYTES: usize = 1024;

const MAX_BROKERS: usize = 100;
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// A message is held in memory up to three times: by the relay, in the client's buffer and in a request.
const MAX_MESSAGE_BYTES: usize = 256 * 1024 * 1024;

/// How batches are compressed. A broker stores them as they come, unless its topic says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// Not at all. The default: it costs the relay nothing.
    #[default]
    None,
    /// Smallest of the four, and the most work.
    Gzip,
    /// Little work, little gain.
    Snappy,
    /// Like Snappy, usually a little smaller.
    Lz4,
}

/// How the publisher proves who it is, beside or without a client certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SaslMechanism {
    /// Not by SASL. The default.
    #[default]
    None,
    /// The password as it is: only over TLS does nobody on the way see it.
    Plain,
    /// A challenge; the password itself never travels.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// The same with a longer hash.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// How to reach the cluster and where events go. Durations and sizes are texts with units when deserialized.
///
/// Acknowledgement by all in-sync replicas and the idempotent producer are fixed: nothing less is a confirm.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KafkaConfig {
    /// Brokers to find the cluster by, each `host:port`: a list, or one text with commas. One that answers is enough;
    /// the others are learned from it. 1 to 100. Default [`DEFAULT_BROKER`].
    #[serde(deserialize_with = "units::texts")]
    pub brokers: Vec<String>,
    /// Template of the topic. Its own text may hold `a-z A-Z 0-9 . _ -`; rendered it has at most 249 bytes. Topics must
    /// exist: the publisher never creates any. Default [`DEFAULT_TOPIC`].
    pub topic: String,
    /// How long a queued event waits for the answer of all in-sync replicas before it counts as unconfirmed, retries
    /// inside included. Low: copies while the cluster is slow. High: a lost answer is noticed late. At least
    /// `connect_timeout`. Default [`DEFAULT_CONFIRM_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub confirm_timeout: Duration,
    /// How long a connection to a broker may take to open, and how long topics may take to be found. Default
    /// [`DEFAULT_CONNECT_TIMEOUT`].
    #[serde(deserialize_with = "units::duration")]
    pub connect_timeout: Duration,
    /// The largest message with its key, headers and the batch around it, before compression; a larger event is
    /// rejected before sending. 1 KiB of it is kept for names, so the largest payload is this less 1 KiB. Must not
    /// exceed the topic's `max.message.bytes` (`message.max.bytes` of the broker). 2 KiB to 256 MiB. Default
    /// [`DEFAULT_MAX_MESSAGE_BYTES`].
    #[serde(deserialize_with = "units::bytes")]
    pub max_message_bytes: usize,
    /// How batches are compressed: `none`, `gzip`, `snappy` or `lz4`. Default `none`.
    pub compression: Compression,
    /// Whether connections use TLS. Always verified: authority and host name. Default `false`.
    pub tls: bool,
    /// PEM file of authorities to trust beside the system's. Needs `tls`. Default none.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate and its chain; goes with `key_file`. Needs `tls`. Default none.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's private key, not encrypted; goes with `cert_file`. Default none.
    pub key_file: Option<PathBuf>,
    /// `none`, `plain`, `scram-sha-256` or `scram-sha-512`. Default `none`.
    pub sasl: SaslMechanism,
    /// The user of `sasl`. Default none.
    pub username: Option<String>,
    /// The password of `sasl`. Default none.
    pub password: Option<String>,
    /// How events are written. Not a key of this table: a route sets it. Default [`Format::Plain`].
    #[serde(skip)]
    pub format: Format,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            brokers: vec![DEFAULT_BROKER.to_owned()],
            topic: DEFAULT_TOPIC.to_owned(),
            confirm_timeout: DEFAULT_CONFIRM_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            compression: Compression::default(),
            tls: false,
            ca_file: None,
            cert_file: None,
            key_file: None,
            sasl: SaslMechanism::default(),
            username: None,
            password: None,
            format: Format::default(),
        }
    }
}

/// Shows everything but the password, the user and where keys lie.
impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("compression", &self.compression)
            .field("tls", &self.tls)
            .field("sasl", &self.sasl)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl KafkaConfig {
    /// The defaults for a cluster, found by `host:port` pairs with commas between them.
    pub fn new(brokers: impl AsRef<str>) -> Self {
        Self { brokers: units::split(brokers.as_ref()), ..Self::default() }
    }

    /// Sets the topic's template.
    #[must_use]
    pub fn with_topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Sets how long a queued event waits for its answer.
    #[must_use]
    pub const fn with_confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout;
        self
    }

    /// Sets how long a connection may take to open.
    #[must_use]
    pub const fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the largest message.
    #[must_use]
    pub const fn with_max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets how batches are compressed.
    #[must_use]
    pub const fn with_compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Uses TLS, trusting the system's authorities.
    #[must_use]
    pub const fn with_tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Uses TLS, trusting the authorities of a PEM file beside the system's.
    #[must_use]
    pub fn with_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self.with_tls()
    }

    /// Uses TLS with a client certificate (PEM) and its private key (PEM).
    #[must_use]
    pub fn with_client_certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.cert_file = Some(cert.into());
        self.key_file = Some(key.into());
        self.with_tls()
    }

    /// Logs in by SASL.
    #[must_use]
    pub fn with_sasl(
        mut self,
        mechanism: SaslMechanism,
        username: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.sasl = mechanism;
        self.username = Some(username.into());
        self.password = Some(password.into());
        self
    }

    /// Sets how events are written.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The largest payload that surely fits, names of the usual length given.
    pub(crate) const fn max_payload_bytes(&self) -> usize {
        self.max_message_bytes.saturating_sub(RESERVED_BYTES)
    }

    /// Checks what concerns publishing and leaves out how to connect.
    pub(crate) fn check_publishing(&self) -> Result<TopicTemplate, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut need = |ok: bool, field: &'static str, problem: String| {
            if !ok {
                errors.push(ConfigError { field, problem });
            }
        };
        for (field, value) in [("confirm_timeout", self.confirm_timeout), ("connect_timeout", self.connect_timeout)] {
            let ok = (Duration::from_millis(100)..=MAX_TIMEOUT).contains(&value);
            need(ok, field, format!("must be 100ms to 1h, got {}", units::format_duration(value)));
        }
        let (confirm, connect) = (self.confirm_timeout, self.connect_timeout);
        need(
            confirm >= connect,
            "confirm_timeout",
            format!("must be at least connect_timeout ({})", units::format_duration(connect)),
        );
        need(
            (2 * RESERVED_BYTES..=MAX_MESSAGE_BYTES).contains(&self.max_message_bytes),
            "max_message_bytes",
            format!("must be 2KiB to 256MiB, got {} bytes", self.max_message_bytes),
        );
        let template = topic::parse(&self.topic);
        if let Err(problem) = &template {
            need(false, "topic", problem.clone());
        }
        match template {
            Ok(template) if errors.is_empty() => Ok(template),
            _ => Err(errors),
        }
    }

    /// Checks how to connect. No error text shows a value that might hold a secret.
    pub(crate) fn check_connecting(&self) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut need = |ok: bool, field: &'static str, problem: String| {
            if !ok {
                errors.push(ConfigError { field, problem });
            }
        };
        let count = self.brokers.len();
        need((1..=MAX_BROKERS).contains(&count), "brokers", format!("must be 1 to {MAX_BROKERS} brokers, got {count}"));
        for (at, broker) in self.brokers.iter().enumerate() {
            need(is_host_and_port(broker), "brokers", format!("number {} must look like host:port", at + 1));
        }
        for (field, file) in [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)]
        {
            need(file.is_none() || self.tls, field, "needs `tls = true`".to_owned());
            let readable = file.as_ref().is_none_or(|file| file.to_str().is_some());
            need(readable, field, "must be a path in UTF-8".to_owned());
        }
        let both = self.cert_file.is_some() == self.key_file.is_some();
        need(both, "cert_file", "goes with key_file: set both or none".to_owned());
        let wanted = self.sasl != SaslMechanism::None;
        for (field, value) in [("username", &self.username), ("password", &self.password)] {
            let given = value.as_ref().is_some_and(|value| !value.is_empty());
            need(given || !wanted, field, "is needed by `sasl`".to_owned());
            need(value.is_none() || wanted, field, "needs `sasl` to name a mechanism".to_owned());
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

fn is_host_and_port(broker: &str) -> bool {
    let Some((host, port)) = broker.rsplit_once(':') else { return false };
    let named = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let literal = literal.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    (named || literal) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
