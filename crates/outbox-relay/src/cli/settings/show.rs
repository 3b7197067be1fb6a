//! Every key with its value in force and where it came from.

use serde::Serialize;

use super::key_table::{self, KEYS};
use super::keys::{Key, Kind, Place, Value};
use super::layers::Layers;
use super::path::Path;
use super::problem::Origin;
use super::quantity::{format_duration, format_size};
use super::resolve::Values;
use super::secret::SecretUrl;
use crate::cli::brokers;

/// One line of `check --show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Shown {
    pub(crate) key: String,
    /// As it would be written in the file; secrets hidden.
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// All keys that have a value. A key of `[relay]` stands under a route too where that overrides it, and the keys of a
/// broker only where its table is used.
pub(crate) fn all(values: &Values, layers: &Layers) -> Vec<Shown> {
    let mut shown = Vec::new();
    let of_routes = |key: &&Key| matches!(key.place, Place::Table(table) if table.starts_with("route"));
    for key in KEYS.iter().filter(|key| !of_routes(key)) {
        shown.extend(line(key, Path::new(None, key.paths().swap_remove(0)), values, true));
    }
    for route in &layers.routes {
        let path = |key: String| Path::new(Some(*route), key);
        for key in key_table::all() {
            match key.place {
                Place::RelayOrRoute => shown.extend(line(key, path(format!("route.{}", key.name)), values, false)),
                Place::Table(table) if !is_anothers(table, *route, layers) => {
                    shown.extend(line(key, path(format!("{table}.{}", key.name)), values, true));
                }
                Place::Table(_) => {}
            }
        }
        for ((_, name), origin) in layers.brokers.iter().filter(|((place, _), _)| place == route) {
            if brokers::find(name).is_some_and(|broker| broker.keys.is_empty()) {
                let key = Path::of_route(*route, name).to_string();
                shown.push(Shown { key, value: "{}".to_owned(), origin: origin.clone() });
            }
        }
    }
    shown
}

/// Whether a table is none of a route's: another table, or that of a broker to which it does not lead.
fn is_anothers(table: &str, route: usize, layers: &Layers) -> bool {
    match table.strip_prefix("route.") {
        None => table != "route",
        Some("match") => false,
        Some(broker) => !layers.brokers.contains_key(&(route, broker.to_owned())),
    }
}

fn line(key: &Key, path: Path, values: &Values, with_default: bool) -> Option<Shown> {
    let (value, origin) = match values.get(&path) {
        Some((value, origin)) => (text(key, value), origin.clone()),
        None => (key.default_text().filter(|_| with_default)?, Origin::Default),
    };
    Some(Shown { key: path.to_string(), value, origin })
}

fn text(key: &Key, value: &Value) -> String {
    match value {
        Value::Text(_) if matches!(key.kind, Kind::Secret) => "***".to_owned(),
        Value::Text(text) if key.is_secret() => SecretUrl::new(text.clone()).to_string(),
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Switch(switch) => switch.to_string(),
        Value::Duration(duration) => format_duration(*duration),
        Value::Size(bytes) => format_size(*bytes),
        Value::Address(Some(address)) => address.to_string(),
        Value::Address(None) => "off".to_owned(),
        Value::Patterns(patterns) => format!("{patterns:?}"),
    }
}
