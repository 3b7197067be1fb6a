//! The table of all keys: the one source of what is accepted, shown and documented.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::quantity::{format_duration, format_size, parse_duration, parse_size};
use crate::RouteConfig;

/// Where a key may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this table only.
    Table(&'static str),
    /// In `[relay]`, and in a `[[route]]` that overrides it.
    RelayOrRoute,
}

/// How a value is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// A URL that may hold a password. Can also be given as `<key>_file`, the path of a file that holds it.
    SecretUrl,
    /// The path of a file.
    Path,
    /// A whole number.
    Number,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A loopback address and port, or `off`.
    Loopback,
    /// A number with a unit of time.
    Duration,
    /// A number with a unit of size.
    Size,
}

/// Which field of [`RouteConfig`] a key sets, so that its default stands in one place only.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field {
    Attempts(fn(&mut RouteConfig) -> &mut u32),
    Count(fn(&mut RouteConfig) -> &mut usize),
    Size(fn(&mut RouteConfig) -> &mut usize),
    Duration(fn(&mut RouteConfig) -> &mut Duration),
}

/// What a key has when nobody sets it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Default {
    /// The value of the field in [`RouteConfig::new`].
    Of(Field),
    /// This value, as it would be written.
    Is(&'static str),
    /// Nothing: the key is optional, with what happens then.
    Absent(
        #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes the reference page"))]
        &'static str,
    ),
    /// It must be set.
    Required,
}

/// One key of the configuration.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) place: Place,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Default,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes the reference page"))]
    pub(crate) doc: &'static str,
}

/// A value that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    Duration(Duration),
    Size(usize),
    /// `None` is `off`.
    Address(Option<SocketAddr>),
}

impl Key {
    /// The paths at which it may stand, the first one being its own.
    pub(crate) fn paths(&self) -> Vec<String> {
        match self.place {
            Place::Table(table) => vec![format!("{table}.{}", self.name)],
            Place::RelayOrRoute => vec![format!("relay.{}", self.name), format!("route.{}", self.name)],
        }
    }

    pub(crate) const fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::SecretUrl)
    }

    /// Reads a value; `Err` says what is wrong without repeating a secret.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        match self.kind {
            Kind::Text | Kind::Path => Ok(Value::Text(text.to_owned())),
            Kind::SecretUrl if text.contains("://") => Ok(Value::Text(text.to_owned())),
            Kind::SecretUrl => Err("is not a URL".to_owned()),
            Kind::Number => {
                let number = text.replace('_', "").parse().map(Value::Number);
                number.map_err(|_| format!("`{text}` is not a whole number from 0 on"))
            }
            Kind::Choice(words) => match words.contains(&text) {
                true => Ok(Value::Text(text.to_owned())),
                false => Err(format!("`{text}` is not one of {}", super::brokers::list(words))),
            },
            Kind::Duration => parse_duration(text).map(Value::Duration),
            Kind::Size => parse_size(text).map(Value::Size),
            Kind::Loopback => parse_loopback(text).map(Value::Address),
        }
    }

    /// The default as it would be written; `None` when there is none.
    pub(crate) fn default_text(&self) -> Option<String> {
        let mut defaults = RouteConfig::new("default");
        match self.default {
            Default::Of(Field::Attempts(field)) => Some(field(&mut defaults).to_string()),
            Default::Of(Field::Count(field)) => Some(field(&mut defaults).to_string()),
            Default::Of(Field::Size(field)) => Some(format_size(*field(&mut defaults))),
            Default::Of(Field::Duration(field)) => Some(format_duration(*field(&mut defaults))),
            Default::Is(text) => Some(text.to_owned()),
            Default::Absent(_) | Default::Required => None,
        }
    }
}

fn parse_loopback(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let address: SocketAddr =
        numeric.as_deref().unwrap_or(text).parse().map_err(|_| {
            format!("`{text}` is not an IP address with a port, for example `127.0.0.1:9464`, nor `off`")
        })?;
    let loopback = match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    };
    if loopback {
        return Ok(Some(address));
    }
    Err(format!("`{text}` can be reached from other machines, which needs a token, and tokens come in a later version"))
}

const fn key(place: Place, name: &'static str, kind: Kind, default: Default, doc: &'static str) -> Key {
    Key { place, name, kind, default, doc }
}

const DATABASE: Place = Place::Table("database");
const RELAY: Place = Place::Table("relay");
const BOTH: Place = Place::RelayOrRoute;
const RABBITMQ: Place = Place::Table("route.rabbitmq");

/// Every key, in the order of the reference page.
pub(crate) const KEYS: &[Key] = &[
    key(DATABASE, "url", Kind::SecretUrl, Default::Required, "PostgreSQL, as `postgres://user@host/database`."),
    key(
        DATABASE,
        "schema",
        Kind::Text,
        Default::Is("outbox"),
        "Schema of the outbox tables. Any name of up to 63 bytes; it is always quoted.",
    ),
    key(
        DATABASE,
        "max_connections",
        Kind::Number,
        Default::Is("4"),
        "Most connections the process opens. Low: reads and settles wait for each other. High: connections that others need.",
    ),
    key(
        DATABASE,
        "ca_file",
        Kind::Path,
        Default::Absent("the system's authorities"),
        "PEM file of the authorities that may sign the server's certificate.",
    ),
    key(
        RELAY,
        "name",
        Kind::Text,
        Default::Is("outbox-relay"),
        "A label for logs and the table `relays`. Ownership never depends on it.",
    ),
    key(
        BOTH,
        "ordering",
        Kind::Choice(&["aggregate", "none"]),
        Default::Is("aggregate"),
        "`aggregate`: first deliveries of one aggregate are in order. `none`: no event waits for another.",
    ),
    key(
        BOTH,
        "on_dead",
        Kind::Choice(&["continue"]),
        Default::Is("continue"),
        "After a dead letter the aggregate goes on.",
    ),
    key(
        BOTH,
        "max_attempts",
        Kind::Number,
        Default::Of(Field::Attempts(|c| &mut c.max_attempts)),
        "Charged attempts before an event becomes a dead letter. Outages are never charged. Low: a passing fault kills events. High: a poisoned aggregate stays behind its head for long.",
    ),
    key(
        BOTH,
        "retry_initial",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.retry_initial)),
        "Bound of the first delay after a charged attempt; doubles with each further one, with full jitter.",
    ),
    key(BOTH, "retry_max", Kind::Duration, Default::Of(Field::Duration(|c| &mut c.retry_max)), "Largest such bound."),
    key(
        BOTH,
        "publish_timeout",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.publish_timeout)),
        "How long the broker may take before its silence counts as unconfirmed. Low: copies under load. High: lost answers are noticed late.",
    ),
    key(
        BOTH,
        "probe_max",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.probe_max)),
        "Largest pause between two probes of a broker that is away.",
    ),
    key(
        BOTH,
        "window",
        Kind::Number,
        Default::Of(Field::Count(|c| &mut c.window)),
        "Events handed to the broker and not yet deleted: also the bound of copies after a crash. Low: throughput falls with latency.",
    ),
    key(BOTH, "window_bytes", Kind::Size, Default::Of(Field::Size(|c| &mut c.window_bytes)), "The same in bytes."),
    key(
        BOTH,
        "batch_size",
        Kind::Number,
        Default::Of(Field::Count(|c| &mut c.batch_size)),
        "Events in one read and in one publish call.",
    ),
    key(
        BOTH,
        "max_batch_bytes",
        Kind::Size,
        Default::Of(Field::Size(|c| &mut c.max_batch_bytes)),
        "Bytes in one read and in one publish call; one larger event passes alone.",
    ),
    key(
        BOTH,
        "queue_events",
        Kind::Number,
        Default::Of(Field::Count(|c| &mut c.queue_events)),
        "Events in memory that wait for their aggregate. What does not fit is read again later.",
    ),
    key(BOTH, "queue_bytes", Kind::Size, Default::Of(Field::Size(|c| &mut c.queue_bytes)), "The same in bytes."),
    key(RELAY, "wakeup", Kind::Choice(&["poll"]), Default::Is("poll"), "How an idle relay learns of new events."),
    key(
        RELAY,
        "poll_interval",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.poll_interval)),
        "How long an idle relay waits before it reads again: the latency when idle. Low: idle load on the database.",
    ),
    key(
        RELAY,
        "lease",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.lease)),
        "How long a route stays with a relay that no longer answers. Low: a slow database costs the route. High: the take-over after a crash is late.",
    ),
    key(
        RELAY,
        "full_sweep_interval",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.full_sweep_interval)),
        "How often the whole table is compared with memory, as a safety net.",
    ),
    key(
        RELAY,
        "shutdown_grace",
        Kind::Duration,
        Default::Of(Field::Duration(|c| &mut c.shutdown_grace)),
        "How long a shutdown waits for the broker's answers. What is unconfirmed then may be sent again by the next run.",
    ),
    key(
        Place::Table("history"),
        "keep",
        Kind::Choice(&["off"]),
        Default::Is("off"),
        "Published events are deleted at once.",
    ),
    key(
        Place::Table("admin"),
        "listen",
        Kind::Loopback,
        Default::Is("127.0.0.1:9464"),
        "Address of `/livez` and `/readyz`, or `off`. Only loopback addresses; port 0 picks a free one, which is logged.",
    ),
    key(
        Place::Table("log"),
        "format",
        Kind::Choice(&["text", "json"]),
        Default::Is("text"),
        "How log lines are written to stderr.",
    ),
    key(
        Place::Table("log"),
        "level",
        Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        Default::Is("info"),
        "The least important lines that are written.",
    ),
    key(
        Place::Table("route"),
        "name",
        Kind::Text,
        Default::Is("default"),
        "Name of the route: who owns what in the database, and the field `route` of logs. 1 to 63 bytes. A renamed route waits for the lease of the old name.",
    ),
    key(
        Place::Table("route"),
        "format",
        Kind::Choice(&["plain"]),
        Default::Is("plain"),
        "Body = payload bytes, everything else in headers.",
    ),
    key(
        RABBITMQ,
        "url",
        Kind::SecretUrl,
        Default::Required,
        "RabbitMQ, as `amqp://user:password@host/vhost` or `amqps://…`.",
    ),
    key(
        RABBITMQ,
        "exchange",
        Kind::Text,
        Default::Required,
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
        Default::Is("4"),
        "Channels that publish side by side, 1 to 64. One: a slow queue holds up all others. Many: memory in the broker.",
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

/// Keys that a later version brings, with everything below them: the path and why it is refused.
const LATER_KEYS: &[(&str, &str)] = &[
    ("database.listen_url", "the doorbell, which needs it, comes in a later version"),
    ("history.partition", "keeping published events comes in a later version"),
    ("admin.token_file", "tokens come in a later version; until then the probes answer on loopback only"),
    ("route.match", "choosing events by type comes in a later version; the one route takes all events"),
    ("route.unroutable", "this version always pauses an unroutable topic; the choice comes in a later version"),
    ("route.unroutable_after", "this version always pauses an unroutable topic; the choice comes in a later version"),
];

/// Values that a later version brings.
const LATER_VALUES: &[(&str, &str, &str)] = &[
    ("relay.wakeup", "doorbell", "the doorbell comes in a later version; use \"poll\""),
    ("relay.on_dead", "block", "blocking an aggregate after a dead letter comes in a later version; use \"continue\""),
    ("history.keep", "*", "keeping published events comes in a later version; use \"off\""),
    ("route.format", "cloudevents", "CloudEvents come in a later version; use \"plain\""),
    ("route.format", "debezium", "the Debezium format comes in a later version; use \"plain\""),
];

/// Why a path is refused that a later version will know.
pub(crate) fn later_key(path: &str) -> Option<&'static str> {
    let below = |known: &str| path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    LATER_KEYS.iter().find(|(known, _)| below(known)).map(|(_, why)| *why)
}

/// Why a value is refused that a later version will know.
pub(crate) fn later_value(key: &Key, text: &str) -> Option<&'static str> {
    let Kind::Choice(words) = key.kind else { return None };
    if words.contains(&text) {
        return None;
    }
    let own = key.paths().swap_remove(0);
    let meant = |(path, value, _): &&(&str, &str, &str)| *path == own && (*value == text || *value == "*");
    LATER_VALUES.iter().find(meant).map(|(_, _, why)| *why)
}

/// The key at a path, and whether the path is its `_file` form.
pub(crate) fn find(path: &str) -> Option<(&'static Key, bool)> {
    let at = |path: &str| KEYS.iter().find(|key| key.paths().iter().any(|known| known == path));
    if let Some(key) = at(path) {
        return Some((key, false));
    }
    let key = at(path.strip_suffix("_file")?)?;
    key.is_secret().then_some((key, true))
}
