//! NATS JetStream.

use super::{Broker, State};
use crate::cli::settings::keys::{Default, Key, Kind, Place, key};

const NATS: Place = Place::Table("route.nats");

pub(super) const BROKER: Broker =
    Broker { name: "nats", about: "NATS JetStream (feature `nats`).", keys: KEYS, state: STATE };

#[cfg(feature = "nats")]
const STATE: State = State::Here { check: publisher::check, connect: publisher::connect, examine: None };
#[cfg(not(feature = "nats"))]
const STATE: State = State::Absent;

const KEYS: &[Key] = &[
    key(
        NATS,
        "url",
        // Not as a URL that is shown without its password: a user alone is a token, and there may be several servers.
        Kind::Secret,
        Default::Required("nats://localhost:4222"),
        "NATS, as `nats://user:password@host:4222` or `tls://…`; several servers of one cluster with commas between them.",
    ),
    key(
        NATS,
        "topic",
        Kind::Text,
        Default::Is("{aggregate_type}.{event_type}"),
        "Subject: text with `{event_type}`, `{aggregate_type}`, `{aggregate_id}`, `{header:NAME}`. A stream must take it.",
    ),
    key(
        NATS,
        "expected_stream",
        Kind::Text,
        Default::Absent("any stream"),
        "The only stream that may take the events.",
    ),
    key(
        NATS,
        "creds_file",
        Kind::Path,
        Default::Absent("none"),
        "File with a user's JWT and seed, read again at each connect.",
    ),
    key(NATS, "user", Kind::Text, Default::Absent("none"), "User; goes with `password` or `password_file`."),
    key(NATS, "password", Kind::Secret, Default::Absent("none"), "Its password."),
    key(
        NATS,
        "password_file",
        Kind::Path,
        Default::Absent("none"),
        "File that holds the password, read again at each connect.",
    ),
    key(NATS, "token", Kind::Secret, Default::Absent("none"), "Token instead of a user."),
    key(
        NATS,
        "token_file",
        Kind::Path,
        Default::Absent("none"),
        "File that holds the token, read again at each connect.",
    ),
    key(
        NATS,
        "ca_file",
        Kind::Path,
        Default::Absent("only the system's"),
        "PEM file of authorities to trust beside the system's (`tls://`).",
    ),
    key(
        NATS,
        "cert_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client certificate and its chain; goes with `key_file`.",
    ),
    key(
        NATS,
        "key_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client's private key; goes with `cert_file`.",
    ),
    key(
        NATS,
        "confirm_timeout",
        Kind::Duration,
        Default::Is("10s"),
        "How long a sent event waits for the stream's acknowledgement before it counts as unconfirmed. Low: copies while the server is slow.",
    ),
    key(
        NATS,
        "connect_timeout",
        Kind::Duration,
        Default::Is("5s"),
        "How long a connection may take to open, all servers together.",
    ),
    key(
        NATS,
        "max_message_bytes",
        Kind::Size,
        Default::Is("1MiB"),
        "The largest body that is sent; a larger event becomes a dead letter. Headers and body together must also fit the server's `max_payload`.",
    ),
    key(
        NATS,
        "max_in_flight",
        Kind::Number,
        Default::Is("1000"),
        "Events that may wait for an answer at once, 1 to 65536.",
    ),
];

#[cfg(feature = "nats")]
mod publisher {
    use std::sync::Arc;

    use outbox_core::Publisher;
    use outbox_nats::{ConfigError, NatsConfig, NatsPublisher, QUESTION_TIMEOUT};

    use crate::cli::failure::Failure;
    use crate::cli::settings::{Problem, RouteSettings, Table, format_duration};

    /// The engine would end each call before the publisher can say which of its events were confirmed.
    pub(super) fn check(table: &Table, route: &RouteSettings) -> Vec<(&'static str, String)> {
        let patience = table.duration("confirm_timeout").saturating_mul(2);
        let patience = patience.saturating_add(table.duration("connect_timeout")).saturating_add(QUESTION_TIMEOUT);
        if patience < route.config.publish_timeout {
            return Vec::new();
        }
        let (ours, theirs) = (format_duration(patience), format_duration(route.config.publish_timeout));
        vec![(
            "confirm_timeout",
            format!(
                "must, twice and with connect_timeout and {QUESTION_TIMEOUT:?} to ask for the stream, be shorter than publish_timeout ({theirs}), got {ours} in all"
            ),
        )]
    }

    pub(super) fn connect(table: &Table, route: &RouteSettings) -> Result<Arc<dyn Publisher>, Failure> {
        let mut config: NatsConfig = table.config()?;
        config.format = route.format.clone();
        let problem = |error: ConfigError| Problem::new(format!("{}.{}", table.path(), error.field), error.problem);
        let publisher = NatsPublisher::connect(config);
        let publisher = publisher.map_err(|errors| Failure::Config(errors.into_iter().map(problem).collect()))?;
        Ok(Arc::new(publisher))
    }
}
