//! The table of all keys: the one source of what is accepted, shown and documented.

use super::keys::{Default, Field, Key, Kind, Place, key};
use crate::cli::brokers;

const DATABASE: Place = Place::Table("database");
const RELAY: Place = Place::Table("relay");
const BOTH: Place = Place::RelayOrRoute;
const ROUTE: Place = Place::Table("route");
const MATCH: Place = Place::Table("route.match");

/// Every key, those of the brokers last.
pub(crate) fn all() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().chain(brokers::ALL.iter().flat_map(|broker| broker.keys))
}

/// Every key that is no broker's, in the order of the reference page.
pub(crate) const KEYS: &[Key] = &[
    key(
        DATABASE,
        "url",
        Kind::SecretUrl,
        Default::Required("postgres://relay@localhost/app"),
        "PostgreSQL, as `postgres://user@host/database`.",
    ),
    key(
        DATABASE,
        "listen_url",
        Kind::SecretUrl,
        Default::Absent("`url`"),
        "Where the doorbell listens: a direct connection to the same database when `url` leads through a pooler in transaction mode.",
    ),
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
        Default::Absent("what the routes need, and 2: 5 for one route, 8 for two"),
        "Most connections the process opens, 3 to 100, and at least 3 for each route: one for its lease, two of its own for reads and settles; what is left is shared. One more is needed to look for events that no route takes, where there could be any. Low: reads, settles and retries wait for each other. High: connections that others need.",
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
        Kind::Choice(&["continue", "block"]),
        Default::Is("continue"),
        "What becomes of an event that is given up. `continue`: it becomes a dead letter and its aggregate goes on. `block`: it stays in its place and its aggregate waits for `outbox-relay blocked retry` or `skip`.",
    ),
    key(
        BOTH,
        "max_attempts",
        Kind::Number,
        Default::Of(Field::Attempts(|c| &mut c.max_attempts)),
        "Charged attempts before an event is given up. Outages are never charged. Low: a passing fault kills events. High: a poisoned aggregate stays behind its head for long.",
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
    key(
        RELAY,
        "wakeup",
        Kind::Choice(&["doorbell", "poll"]),
        Default::Is("doorbell"),
        "How an idle relay learns of new events. `doorbell`: it sleeps until a commit rings; until it can listen it polls every 50 ms. `poll`: it reads every `poll_interval`.",
    ),
    key(
        RELAY,
        "poll_interval",
        Kind::Duration,
        Default::Depends(Field::Duration(|c| &mut c.poll_interval), "2s with the doorbell, 50ms with `poll`"),
        "How long an idle relay waits before it reads again without having been rung: the latency with `poll`, a safety net with the doorbell. Low: idle load on the database. At least 10ms.",
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
        "The least important lines that are written: `debug` adds one for each read, batch and deletion, `trace` one for each event. Drivers are heard from `warn` on only.",
    ),
    key(
        ROUTE,
        "name",
        Kind::Text,
        Default::Is("default"),
        "Name of the route: who owns what in the database, and the field `route` of logs. 1 to 63 bytes, each name once.",
    ),
    key(
        MATCH,
        "aggregate_type",
        Kind::Patterns,
        Default::Absent("all"),
        "Patterns over aggregate types, such as `[\"order\", \"cart*\"]`: one of them must match. `*` stands for any run of characters, and nothing else is special; upper and lower case differ.",
    ),
    key(
        MATCH,
        "event_type",
        Kind::Patterns,
        Default::Absent("all"),
        "Patterns over event types; must match as well. Events of one aggregate that go to different routes are not ordered against each other: `check` warns.",
    ),
    key(
        ROUTE,
        "format",
        Kind::Choice(&outbox_core::wire::FORMATS),
        Default::Is("plain"),
        "What consumers see: `plain` (body = payload bytes, everything else in headers), CloudEvents 1.0 in binary or structured mode, or what Debezium's outbox event router emits. See [wire formats](wire.md).",
    ),
    key(
        ROUTE,
        "cloudevents_source",
        Kind::Text,
        Default::Is(outbox_core::wire::DEFAULT_SOURCE),
        "Attribute `source` of CloudEvents: a URI or a reference such as `/orders`, up to 255 bytes.",
    ),
];
