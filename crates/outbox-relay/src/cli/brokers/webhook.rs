//! Webhooks.

use super::{Broker, State};
use crate::cli::settings::keys::{Default, Key, Kind, Place, key};

const WEBHOOK: Place = Place::Table("route.webhook");

pub(super) const BROKER: Broker =
    Broker { name: "webhook", about: "Signed HTTP POST (feature `webhook`).", keys: KEYS, state: STATE };

#[cfg(feature = "webhook")]
const STATE: State =
    State::Here { check: publisher::check, connect: publisher::connect, examine: Some(publisher::examine) };
#[cfg(not(feature = "webhook"))]
const STATE: State = State::Absent;

const KEYS: &[Key] = &[
    key(
        WEBHOOK,
        "url",
        Kind::Secret,
        Default::Required("https://example.com/hooks"),
        "Where events are posted. The path may hold `{event_type}`, `{aggregate_type}`, `{aggregate_id}`, `{header:NAME}`. Never shown, since a path can be a secret.",
    ),
    key(
        WEBHOOK,
        "secret",
        Kind::Secret,
        Default::Absent("none, which `signing = \"none\"` must confirm"),
        "Secrets of Standard Webhooks (`whsec_…`), with spaces between them; requests carry a signature by each.",
    ),
    key(
        WEBHOOK,
        "signing",
        Kind::Choice(&["standard", "none"]),
        Default::Is("standard"),
        "Whether requests are signed as Standard Webhooks says.",
    ),
    key(WEBHOOK, "authorization", Kind::Secret, Default::Absent("none"), "Header `authorization` of each request."),
    key(
        WEBHOOK,
        "request_timeout",
        Kind::Duration,
        Default::Is("15s"),
        "How long a request may take before its event counts as unconfirmed. Low: copies while the endpoint is slow.",
    ),
    key(
        WEBHOOK,
        "connect_timeout",
        Kind::Duration,
        Default::Is("5s"),
        "How long a connection may take: resolving, connecting and TLS together.",
    ),
    key(
        WEBHOOK,
        "max_in_flight",
        Kind::Number,
        Default::Is("32"),
        "Requests under way at once, each on its own connection, 1 to 1024.",
    ),
    key(
        WEBHOOK,
        "max_message_bytes",
        Kind::Size,
        Default::Is("1MiB"),
        "The largest body that is sent; a larger event becomes a dead letter.",
    ),
    key(
        WEBHOOK,
        "private_addresses",
        Kind::Choice(&["allow", "refuse"]),
        Default::Is("allow"),
        "Whether connections may go to addresses that are not of the public Internet.",
    ),
    key(
        WEBHOOK,
        "plain_http",
        Kind::Choice(&["loopback", "anywhere"]),
        Default::Is("loopback"),
        "Where `http://` is accepted.",
    ),
    key(
        WEBHOOK,
        "ca_file",
        Kind::Path,
        Default::Absent("only the system's"),
        "PEM file of authorities to trust beside the system's.",
    ),
    key(
        WEBHOOK,
        "cert_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client certificate and its chain; goes with `key_file`.",
    ),
    key(
        WEBHOOK,
        "key_file",
        Kind::Path,
        Default::Absent("no client certificate"),
        "PEM file of the client's private key; goes with `cert_file`.",
    ),
];

#[cfg(feature = "webhook")]
mod publisher {
    use std::sync::Arc;

    use outbox_core::Publisher;
    use outbox_webhook::{ConfigError, TURN_PATIENCE, WebhookConfig, WebhookPublisher};

    use crate::cli::brokers::Examined;
    use crate::cli::failure::Failure;
    use crate::cli::settings::{Problem, RouteSettings, Table, format_duration};

    /// The engine would end each call before the publisher can say which of its events were confirmed.
    pub(super) fn check(table: &Table, route: &RouteSettings) -> Vec<(&'static str, String)> {
        let connects = table.duration("connect_timeout");
        let patience = table.duration("request_timeout").saturating_add(connects).saturating_add(TURN_PATIENCE);
        if patience < route.config.publish_timeout {
            return Vec::new();
        }
        let (ours, theirs) = (format_duration(patience), format_duration(route.config.publish_timeout));
        vec![(
            "request_timeout",
            format!(
                "must, with connect_timeout and {TURN_PATIENCE:?} for its turn, be shorter than publish_timeout ({theirs}), got {ours} in all"
            ),
        )]
    }

    pub(super) fn connect(table: &Table, route: &RouteSettings) -> Result<Arc<dyn Publisher>, Failure> {
        Ok(Arc::new(make(table, route)?))
    }

    pub(super) fn examine(table: &Table, route: &RouteSettings) -> Examined {
        let made = make(table, route);
        Box::pin(async move {
            match made {
                Ok(publisher) => publisher.examine().await,
                Err(_) => Ok(()), // the configuration was checked before
            }
        })
    }

    fn make(table: &Table, route: &RouteSettings) -> Result<WebhookPublisher, Failure> {
        let mut config: WebhookConfig = table.config()?;
        config.format = route.format.clone();
        let problem = |error: ConfigError| Problem::new(format!("{}.{}", table.path(), error.field), error.problem);
        let publisher = WebhookPublisher::connect(config);
        publisher.map_err(|errors| Failure::Config(errors.into_iter().map(problem).collect()))
    }
}
