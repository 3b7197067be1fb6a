//! The brokers that a route can lead to, one file each: its keys, its checks between keys, its publisher.
//!
//! A broker is added in its file and in [`ALL`], and gets a feature of its name in `Cargo.toml`.

mod kafka;
mod nats;
mod rabbitmq;
mod sqs;
mod stdout;
mod webhook;

use std::pin::Pin;
use std::sync::Arc;

use outbox_core::{PublishError, Publisher};

use super::failure::Failure;
use super::settings::{Key, RouteSettings, Table};

/// Every broker, in the order of the reference page.
pub(crate) const ALL: &[Broker] =
    &[stdout::BROKER, rabbitmq::BROKER, nats::BROKER, sqs::BROKER, kafka::BROKER, webhook::BROKER];

/// A broker as the configuration knows it.
#[derive(Debug)]
pub(crate) struct Broker {
    /// Its table is `[route.<name>]`, its feature has the same name.
    pub(crate) name: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes the reference page"))]
    pub(crate) about: &'static str,
    pub(crate) keys: &'static [Key],
    pub(crate) state: State,
}

/// A publisher, or why there is none.
pub(crate) type Made = Result<Arc<dyn Publisher>, Failure>;

/// What a closer look at a destination found.
pub(crate) type Examined = Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send>>;

/// Whether a route can lead there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum State {
    /// It can.
    Here {
        /// What is wrong between keys that are each in order: a key of the table, and the problem.
        check: fn(&Table, &RouteSettings) -> Vec<(&'static str, String)>,
        /// Makes the publisher. Checks its configuration; what has a connection makes it later, by itself.
        connect: fn(&Table, &RouteSettings) -> Made,
        /// Looks closer than the publisher's check, for `check --connect`; `None` where that tells enough.
        examine: Option<fn(&Table, &RouteSettings) -> Examined>,
    },
    /// This binary was built without its feature.
    #[cfg_attr(
        all(feature = "rabbitmq", feature = "nats", feature = "sqs", feature = "kafka", feature = "webhook"),
        expect(dead_code, reason = "every broker that there is has been built in")
    )]
    Absent,
}

/// The broker of a name.
pub(crate) fn find(name: &str) -> Option<&'static Broker> {
    ALL.iter().find(|broker| broker.name == name)
}

/// The brokers in this binary.
pub(crate) fn compiled_in() -> Vec<&'static str> {
    ALL.iter().filter(|broker| matches!(broker.state, State::Here { .. })).map(|broker| broker.name).collect()
}

/// Makes the publishers of these routes, in their order.
///
/// # Errors
/// Everything that is wrong with their configuration, or the first that failed otherwise.
pub(crate) fn connect(routes: &[RouteSettings]) -> Result<Vec<Arc<dyn Publisher>>, Failure> {
    let (mut publishers, mut problems) = (Vec::new(), Vec::new());
    for route in routes {
        let made = match route.broker.state() {
            State::Here { connect, .. } => connect(&route.broker, route),
            // The configuration was refused before.
            State::Absent => Err(Failure::Failed(format!("{} is not here", route.broker.path()))),
        };
        match made {
            Ok(publisher) => publishers.push(publisher),
            Err(Failure::Config(own)) => problems.extend(own),
            Err(other) => return Err(other),
        }
    }
    if problems.is_empty() { Ok(publishers) } else { Err(Failure::Config(problems)) }
}
