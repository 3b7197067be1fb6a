//! Every key with its value in force and where it came from.

use std::collections::BTreeMap;

use serde::Serialize;

use super::key_table::KEYS;
use super::keys::{Key, Value};
use super::problem::Origin;
use super::quantity::{format_duration, format_size};
use super::resolve::Values;
use super::secret::SecretUrl;

/// One line of `check --show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Shown {
    pub(crate) key: String,
    /// As it would be written in the file; secrets hidden.
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// All keys that have a value. A key of `[relay]` stands under `route` too where a route overrides it, and the keys
/// of a broker only where its table is used.
pub(crate) fn all(values: &Values, brokers: &BTreeMap<String, Origin>) -> Vec<Shown> {
    let mut shown = Vec::new();
    for key in KEYS {
        for (index, path) in key.paths().into_iter().enumerate() {
            let broker = path.strip_prefix("route.").and_then(|rest| rest.split_once('.'));
            if broker.is_some_and(|(name, _)| !brokers.contains_key(name)) {
                continue;
            }
            match values.get(&path) {
                Some((value, origin)) => {
                    shown.push(Shown { key: path, value: text(key, value), origin: origin.clone() });
                }
                None if index == 0 => {
                    if let Some(value) = key.default_text() {
                        shown.push(Shown { key: path, value, origin: Origin::Default });
                    }
                }
                None => {}
            }
        }
    }
    if let Some(origin) = brokers.get("stdout") {
        shown.push(Shown { key: "route.stdout".to_owned(), value: "{}".to_owned(), origin: origin.clone() });
    }
    shown
}

fn text(key: &Key, value: &Value) -> String {
    match value {
        Value::Text(text) if key.is_secret() => SecretUrl::new(text.clone()).to_string(),
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Duration(duration) => format_duration(*duration),
        Value::Size(bytes) => format_size(*bytes),
        Value::Address(Some(address)) => address.to_string(),
        Value::Address(None) => "off".to_owned(),
    }
}
