//! The relay of the transactional outbox.
//!
//! The library is the engine: it knows only `dyn Store` and `dyn Publisher` and runs inside any tokio runtime.
//! The binary `outbox-relay` wires it to PostgreSQL and the brokers by a config file (feature `cli`).
//!
//! | feature | brings | default |
//! |---|---|---|
//! | `postgres` | re-export of `outbox-pg` | yes |
//! | `rabbitmq` | re-export of `outbox-rabbitmq` | no |
//! | `cli` | the binary: config file, commands, probes | no |

mod config;
mod engine;
mod health;
pub mod metrics;
mod stdout;
mod wakeup;

#[cfg(feature = "cli")]
pub mod cli;

pub use config::{ConfigError, OnDead, Ordering, RouteConfig};
pub use engine::{Relay, RelayBuilder, RelayHealth, Route, RouteError, RunError};
pub use health::{Counters, DestinationState, Gauges, RouteHealth, RouteStatus, Unrouted};
pub use outbox_core::{Filter, InvalidPattern, Pattern};
pub use stdout::StdoutPublisher;
pub use wakeup::PollWakeup;

#[cfg(feature = "postgres")]
pub use outbox_pg as postgres;
#[cfg(feature = "rabbitmq")]
pub use outbox_rabbitmq as rabbitmq;
