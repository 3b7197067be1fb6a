//! Amazon SQS.

use super::{Broker, State};
use crate::cli::settings::keys::{Default, Key, Kind, Place, key};

const SQS: Place = Place::Table("route.sqs");

pub(super) const BROKER: Broker =
    Broker { name: "sqs", about: "Amazon SQS (feature `sqs`).", keys: KEYS, state: STATE };

#[cfg(feature = "sqs")]
const STATE: State = State::Here { check: publisher::check, connect: publisher::connect, examine: None };
#[cfg(not(feature = "sqs"))]
const STATE: State = State::Absent;

const KEYS: &[Key] = &[
    key(
        SQS,
        "queue_url",
        Kind::Text,
        Default::Required("https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo"),
        "URL of the queue, which must exist. A name that ends in `.fifo` is a FIFO queue: order per aggregate, no copies within five minutes.",
    ),
    key(SQS, "region", Kind::Text, Default::Absent("the one in `queue_url`"), "Region that requests are signed for."),
    key(
        SQS,
        "endpoint_url",
        Kind::Text,
        Default::Absent("SQS of the region"),
        "Where requests go: a VPC endpoint, or a server that speaks SQS.",
    ),
    key(
        SQS,
        "access_key_id",
        Kind::Text,
        Default::Absent(
            "credentials as the AWS tools find them: environment, profile, web identity, container, machine",
        ),
        "Access key; goes with `secret_access_key`.",
    ),
    key(SQS, "secret_access_key", Kind::Secret, Default::Absent("none"), "Its secret."),
    key(SQS, "session_token", Kind::Secret, Default::Absent("none"), "Session token of a temporary access key."),
    key(
        SQS,
        "ca_file",
        Kind::Path,
        Default::Absent("only the system's"),
        "PEM file of authorities to trust beside the system's.",
    ),
    key(
        SQS,
        "request_timeout",
        Kind::Duration,
        Default::Is("10s"),
        "How long a request may take in all before its events count as unconfirmed. Low: copies while SQS is slow.",
    ),
    key(
        SQS,
        "connect_timeout",
        Kind::Duration,
        Default::Is("3s"),
        "How long a connection with its TLS handshake may take, at most `request_timeout`.",
    ),
    key(
        SQS,
        "max_in_flight",
        Kind::Number,
        Default::Is("16"),
        "Requests under way at once, 1 to 256; each carries up to 10 events.",
    ),
    key(
        SQS,
        "max_message_bytes",
        Kind::Size,
        Default::Is("1MiB"),
        "The largest message, body and attributes together; a larger event becomes a dead letter. At most the queue's `MaximumMessageSize`.",
    ),
];

#[cfg(feature = "sqs")]
#[path = "sqs_credentials.rs"]
mod credentials;

#[cfg(feature = "sqs")]
mod publisher {
    use std::sync::Arc;

    use outbox_core::Publisher;
    use outbox_sqs::{ConfigError, SqsConfig, SqsPublisher};

    use super::credentials::AwsCredentials;
    use crate::cli::failure::Failure;
    use crate::cli::settings::{Problem, RouteSettings, Table, format_duration};

    /// The engine would end each call before the publisher can say which of its events were confirmed.
    pub(super) fn check(table: &Table, route: &RouteSettings) -> Vec<(&'static str, String)> {
        let patience = table.duration("request_timeout").saturating_mul(2);
        if patience < route.config.publish_timeout {
            return Vec::new();
        }
        let (ours, theirs) = (format_duration(patience), format_duration(route.config.publish_timeout));
        vec![(
            "request_timeout",
            format!(
                "must, twice, since a call also waits for its turn, be shorter than publish_timeout ({theirs}), got {ours} in all"
            ),
        )]
    }

    pub(super) fn connect(table: &Table, route: &RouteSettings) -> Result<Arc<dyn Publisher>, Failure> {
        let mut config: SqsConfig = table.config()?;
        config.format = route.format.clone();
        let problem = |error: ConfigError| Problem::new(format!("{}.{}", table.path(), error.field), error.problem);
        let publisher = match config.access_key_id {
            Some(_) => SqsPublisher::connect(config),
            None => SqsPublisher::connect_with(config, AwsCredentials::new()),
        };
        let publisher = publisher.map_err(|errors| Failure::Config(errors.into_iter().map(problem).collect()))?;
        Ok(Arc::new(publisher))
    }
}
