//! A broker's table with every value that its keys have.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::path::Path;
use super::{SecretUrl, Value};
use crate::cli::brokers::{Broker, State};

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

    /// `None` for an optional key that was not set.
    fn value(&self, name: &str) -> Option<&Value> {
        debug_assert!(self.broker.keys.iter().any(|key| key.name == name), "{} has no key {name}", self.path);
        self.values.get(name)
    }

    /// A text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.optional_text(name).unwrap_or_default()
    }

    /// A text that may be absent.
    pub(crate) fn optional_text(&self, name: &str) -> Option<String> {
        match self.value(name)? {
            Value::Text(text) => Some(text.clone()),
            other => Self::wrong(name, other),
        }
    }

    /// A URL that may hold a password.
    pub(crate) fn secret(&self, name: &str) -> SecretUrl {
        SecretUrl::new(self.text(name))
    }

    /// The path of a file.
    pub(crate) fn file(&self, name: &str) -> Option<PathBuf> {
        self.optional_text(name).map(PathBuf::from)
    }

    /// A whole number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let number = self.value(name).and_then(|value| match value {
            Value::Number(number) => Some(*number),
            other => Self::wrong(name, other),
        });
        number.unwrap_or_default()
    }

    /// A duration.
    pub(crate) fn duration(&self, name: &str) -> Duration {
        let duration = self.value(name).and_then(|value| match value {
            Value::Duration(duration) => Some(*duration),
            other => Self::wrong(name, other),
        });
        duration.unwrap_or_default()
    }

    /// A number of bytes.
    pub(crate) fn size(&self, name: &str) -> usize {
        let size = self.value(name).and_then(|value| match value {
            Value::Size(bytes) => Some(*bytes),
            other => Self::wrong(name, other),
        });
        size.unwrap_or_default()
    }

    /// A key is asked for as what it is not: a slip that the broker's first test finds.
    fn wrong<T>(name: &str, _value: &Value) -> Option<T> {
        debug_assert!(false, "{name} is of another kind");
        None
    }
}

/// Without its values: they may hold secrets.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("path", &self.path()).finish_non_exhaustive()
    }
}
