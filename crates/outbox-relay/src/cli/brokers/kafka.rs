//! Kafka.

use super::{Broker, State};
use crate::cli::settings::keys::{Default, Key, Kind, Place, key};

const KAFKA: Place = Place::Table("route.kafka");

pub(super) const BROKER: Broker =
    Broker { name: "kafka", about: "Apache Kafka (feature `kafka`).", keys: KEYS, state: STATE };

#[cfg(feature = "kafka")]
const STATE: State = State::Here { check: publisher::check, connect: publisher::connect, examine: None };
#[cfg(not(feature = "kafka"))]
const STATE: State = State::Absent;

const KEYS: &[Key] = &[
    key(
        KAFKA,
        "brokers",
        Kind::Text,
        Default::Required("localhost:9092"),
        "Brokers to find the cluster by, each `host:port`, with commas between them.",
    ),
    key(
        KAFKA,
        "topic",
        Kind::Text,
        Default::Is("{aggregate_type}"),
        "Topic: text with `{event_type}`, `{aggregate_type}`, `{aggregate_id}`, `{header:NAME}`. It must exist. Order holds within a topic.",
    ),
    key(KAFKA, "tls", Kind::Switch, Default::Is("false"), "Whether connections use TLS, always verified."),
    key(
        KAFKA,
        "ca_file",
        Kind::Path,
        Default::Absent("only the system's"),
        "PEM file of authorities to trust beside the system's (`tls`).",
    ),
    key(
        KAFKA,
        "cert_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client certificate and its chain; goes with `key_file`.",
    ),
    key(
        KAFKA,
        "key_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client's private key; goes with `cert_file`.",
    ),
    key(
        KAFKA,
        "sasl",
        Kind::Choice(&["none", "plain", "scram-sha-256", "scram-sha-512"]),
        Default::Is("none"),
        "How the relay proves who it is, beside or without a client certificate.",
    ),
    key(KAFKA, "username", Kind::Text, Default::Absent("none"), "User of `sasl`."),
    key(KAFKA, "password", Kind::Secret, Default::Absent("none"), "Password of `sasl`."),
    key(
        KAFKA,
        "compression",
        Kind::Choice(&["none", "gzip", "snappy", "lz4"]),
        Default::Is("none"),
        "How batches are compressed.",
    ),
    key(
        KAFKA,
        "confirm_timeout",
        Kind::Duration,
        Default::Is("12s"),
        "How long an event waits for the answer of all in-sync replicas before it counts as unconfirmed; at least `connect_timeout`.",
    ),
    key(
        KAFKA,
        "connect_timeout",
        Kind::Duration,
        Default::Is("5s"),
        "How long a connection may take to open, and topics to be found.",
    ),
    key(
        KAFKA,
        "max_message_bytes",
        Kind::Size,
        Default::Is("1MiB"),
        "The largest message with its key and headers; a larger event becomes a dead letter. At most the topic's `max.message.bytes`.",
    ),
];

#[cfg(feature = "kafka")]
mod publisher {
    use std::sync::Arc;

    use outbox_core::Publisher;
    use outbox_kafka::{ConfigError, KafkaConfig, KafkaPublisher};

    use crate::cli::failure::Failure;
    use crate::cli::settings::{Problem, RouteSettings, Table, format_duration};

    /// The engine would end each call before the publisher can say which of its events were confirmed.
    pub(super) fn check(table: &Table, route: &RouteSettings) -> Vec<(&'static str, String)> {
        let patience =
            table.duration("confirm_timeout").saturating_add(table.duration("connect_timeout").saturating_mul(3));
        if patience < route.config.publish_timeout {
            return Vec::new();
        }
        let (ours, theirs) = (format_duration(patience), format_duration(route.config.publish_timeout));
        vec![(
            "confirm_timeout",
            format!(
                "must, with three times connect_timeout, be shorter than publish_timeout ({theirs}), got {ours} in all"
            ),
        )]
    }

    pub(super) fn connect(table: &Table, route: &RouteSettings) -> Result<Arc<dyn Publisher>, Failure> {
        let mut config: KafkaConfig = table.config()?;
        config.format = route.format.clone();
        let problem = |error: ConfigError| Problem::new(format!("{}.{}", table.path(), error.field), error.problem);
        let publisher = KafkaPublisher::connect(config);
        let publisher = publisher.map_err(|errors| Failure::Config(errors.into_iter().map(problem).collect()))?;
        Ok(Arc::new(publisher))
    }
}
