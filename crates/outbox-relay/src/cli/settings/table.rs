//! A broker's table with every value that its keys have.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::path::Path;
use super::quantity::{format_duration, format_size};
use super::{Problem, Value};
use crate::cli::brokers::{Broker, State};
use crate::cli::failure::{Failure, with_causes};

/// One of the tables `[route.<broker>]`: each key with its value or default; required ones are there.
pub(crate) struct Table {
    broker: &'static Broker,
    path: Path,
    values: BTreeMap<&'static str, Value>,
}

impl Table {
    pub(super) fn new(broker: &'static Broker, path: Path, values: BTreeMap<&'static str, Value>) -> Self {
        Self { broker, path, values }
    }

    /// Its place, for messages: `route[0].rabbitmq`.
    pub(crate) fn path(&self) -> String {
        self.path.to_string()
    }

    /// The broker's name.
    pub(crate) fn name(&self) -> &'static str {
        self.broker.name
    }

    pub(crate) const fn state(&self) -> State {
        self.broker.state
    }

    /// The publisher's config, whose fields have the names of the keys.
    ///
    /// # Errors
    /// Names the table: the keys were read before, so only a slip in the broker's list of keys comes here.
    #[cfg_attr(
        not(any(feature = "rabbitmq", feature = "nats", feature = "sqs", feature = "kafka", feature = "webhook")),
        expect(dead_code, reason = "stdout has no config")
    )]
    pub(crate) fn config<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let written = self.values.iter().map(|(name, value)| Ok(((*name).to_owned(), written(value)?)));
        let map = written.collect::<Result<serde_json::Map<_, _>, &str>>();
        let config = map.map_err(str::to_owned).and_then(|map| {
            serde_json::from_value(serde_json::Value::Object(map)).map_err(|error| with_causes(&error))
        });
        config.map_err(|problem| Failure::Config(vec![Problem::new(self.path(), problem)]))
    }

    /// A duration; nothing when it is absent.
    pub(crate) fn duration(&self, name: &str) -> Duration {
        debug_assert!(self.broker.keys.iter().any(|key| key.name == name), "{} has no key {name}", self.path);
        match self.values.get(name) {
            Some(Value::Duration(duration)) => *duration,
            _ => Duration::ZERO,
        }
    }
}

/// A value as a config file would have it.
fn written(value: &Value) -> Result<serde_json::Value, &'static str> {
    Ok(match value {
        Value::Text(text) => text.as_str().into(),
        Value::Number(number) => (*number).into(),
        Value::Switch(switch) => (*switch).into(),
        Value::Duration(duration) => format_duration(*duration).into(),
        Value::Size(bytes) => format_size(*bytes).into(),
        Value::Address(_) | Value::Patterns(_) => return Err("has a key of a kind that no broker knows"),
    })
}

/// Without its values: they may hold secrets.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("path", &self.path()).finish_non_exhaustive()
    }
}
