//! RabbitMQ.

use super::{Broker, State};
use crate::cli::settings::keys::{Default, Key, Kind, Place, key};

const RABBITMQ: Place = Place::Table("route.rabbitmq");

pub(super) const BROKER: Broker =
    Broker { name: "rabbitmq", about: "RabbitMQ (feature `rabbitmq`).", keys: KEYS, state: STATE };

#[cfg(feature = "rabbitmq")]
const STATE: State = State::Here { check: publisher::check, connect: publisher::connect, examine: None };
#[cfg(not(feature = "rabbitmq"))]
const STATE: State = State::Absent;

const KEYS: &[Key] = &[
    key(
        RABBITMQ,
        "url",
        Kind::SecretUrl,
        Default::Required("amqp://localhost"),
        "RabbitMQ, as `amqp://user:password@host/vhost` or `amqps://…`.",
    ),
    key(
        RABBITMQ,
        "exchange",
        Kind::Text,
        Default::Required("orders"),
        "Exchange to publish to; it must exist. `\"\"` is the default exchange, which routes to the queue that the topic names.",
    ),
    key(
        RABBITMQ,
        "topic",
        Kind::Text,
        Default::Is("{aggregate_type}.{event_type}"),
        "Routing key: text with `{event_type}`, `{aggregate_type}`, `{aggregate_id}`, `{header:NAME}`.",
    ),
    key(
        RABBITMQ,
        "ca_file",
        Kind::Path,
        Default::Absent("only the system's"),
        "PEM file of authorities to trust beside the system's (`amqps`).",
    ),
    key(
        RABBITMQ,
        "cert_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client certificate and its chain; goes with `key_file`.",
    ),
    key(
        RABBITMQ,
        "key_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client's private key (PKCS#8); goes with `cert_file`.",
    ),
    key(
        RABBITMQ,
        "channels",
        Kind::Number,
        Default::Is("16"),
        "Channels that publish side by side, 1 to 64, opened as they are needed. Few: an event waits for the confirms of those before it. Many: memory in the broker.",
    ),
    key(
        RABBITMQ,
        "confirm_timeout",
        Kind::Duration,
        Default::Is("12s"),
        "How long a sent event waits for the broker's confirm before it counts as unconfirmed. Low: copies while the broker is slow.",
    ),
    key(
        RABBITMQ,
        "connect_timeout",
        Kind::Duration,
        Default::Is("5s"),
        "How long a connection with its handshake, or a channel, may take to open.",
    ),
    key(
        RABBITMQ,
        "heartbeat",
        Kind::Duration,
        Default::Is("10s"),
        "AMQP heartbeat in whole seconds; a silent peer is given up after two of them.",
    ),
    key(
        RABBITMQ,
        "max_message_bytes",
        Kind::Size,
        Default::Is("16MiB"),
        "The largest body that is sent; a larger event becomes a dead letter. At most the broker's `max_message_size`.",
    ),
];

#[cfg(feature = "rabbitmq")]
mod publisher {
    use std::sync::Arc;

    use outbox_core::Publisher;
    use outbox_rabbitmq::{ConfigError, RabbitMqConfig, RabbitMqPublisher};

    use crate::cli::failure::Failure;
    use crate::cli::settings::{Problem, RouteSettings, Table, format_duration};

    /// The engine would end each call before the publisher can say which of its events were confirmed.
    pub(super) fn check(table: &Table, route: &RouteSettings) -> Vec<(&'static str, String)> {
        let connects = table.duration("connect_timeout").saturating_mul(3);
        let patience = table.duration("confirm_timeout").saturating_add(connects);
        if patience < route.config.publish_timeout {
            return Vec::new();
        }
        let (ours, theirs) = (format_duration(patience), format_duration(route.config.publish_timeout));
        let must = "must, with three times connect_timeout, be shorter than publish_timeout";
        vec![("confirm_timeout", format!("{must} ({theirs}), got {ours} in all"))]
    }

    pub(super) fn connect(table: &Table, route: &RouteSettings) -> Result<Arc<dyn Publisher>, Failure> {
        let mut config: RabbitMqConfig = table.config()?;
        config.format = route.format.clone();
        let problem = |error: ConfigError| Problem::new(format!("{}.{}", table.path(), error.field), error.problem);
        let publisher = RabbitMqPublisher::connect(config);
        let publisher = publisher.map_err(|errors| Failure::Config(errors.into_iter().map(problem).collect()))?;
        Ok(Arc::new(publisher))
    }
}
