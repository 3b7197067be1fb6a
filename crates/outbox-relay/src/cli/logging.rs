//! Log lines on stderr.

use std::io::stderr;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::settings::{Log, LogFormat};

/// The crates whose lines obey `log.level`. Those of drivers are shown from `warn` on only: their finer lines may
/// hold addresses and statements.
const OURS: &[&str] = &[
    "outbox_core",
    "outbox_kafka",
    "outbox_nats",
    "outbox_pg",
    "outbox_rabbitmq",
    "outbox_relay",
    "outbox_sqs",
    "outbox_webhook",
];

/// Clients that log each error that they also return, an ordinary close among them, or one line for each refused event.
/// What they return reaches the log with its meaning, from us.
///
/// The driver of PostgreSQL shows the value of a parameter of the URL that it does not know, such as a misspelt password.
const SILENT: &[&str] = &["lapin", "async_nats", "krafka", "sqlx_postgres::options"];

/// Starts logging; a second call in one process changes nothing.
pub(crate) fn start(log: Log) {
    let drivers = LevelFilter::from_level(log.level.min(Level::WARN));
    let ours = OURS.iter().map(|target| (*target, LevelFilter::from_level(log.level)));
    let filter = Targets::new().with_default(drivers).with_targets(ours);
    let filter = filter.with_targets(SILENT.iter().map(|target| (*target, LevelFilter::OFF)));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let started = match log.format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    // An application that embeds this has a logger of its own; ours is then not needed.
    drop(started);
}
