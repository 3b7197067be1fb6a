//! What a key is: where it may stand, how its value is read, what a later version will know.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use outbox_core::Pattern;

use super::key_table;
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
    /// A password or the like. Can also be given as `<key>_file`, and is never shown.
    Secret,
    /// The path of a file.
    Path,
    /// `true` or `false`.
    Switch,
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
    /// A list of patterns. As a variable or flag: separated by commas, or a JSON array.
    Patterns,
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
    /// The value of the field in [`RouteConfig`], whose default depends on another key.
    Depends(
        Field,
        #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes the reference page"))]
        &'static str,
    ),
    /// This value, as it would be written.
    Is(&'static str),
    /// Nothing: the key is optional, with what happens then.
    Absent(
        #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes the reference page"))]
        &'static str,
    ),
    /// It must be set, for example to this.
    Required(&'static str),
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

/// A line of the table of keys.
pub(crate) const fn key(place: Place, name: &'static str, kind: Kind, default: Default, doc: &'static str) -> Key {
    Key { place, name, kind, default, doc }
}

/// A value that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    Switch(bool),
    Duration(Duration),
    Size(usize),
    /// `None` is `off`.
    Address(Option<SocketAddr>),
    Patterns(Vec<Pattern>),
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
        matches!(self.kind, Kind::SecretUrl | Kind::Secret)
    }

    /// Reads a value; `Err` says what is wrong without repeating a secret.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        match self.kind {
            Kind::Text | Kind::Secret | Kind::Path => Ok(Value::Text(text.to_owned())),
            Kind::Switch => {
                text.parse().map(Value::Switch).map_err(|_| format!("`{text}` is neither `true` nor `false`"))
            }
            Kind::SecretUrl if text.contains("://") => Ok(Value::Text(text.to_owned())),
            Kind::SecretUrl => Err("is not a URL".to_owned()),
            Kind::Number => {
                let number = text.replace('_', "").parse().map(Value::Number);
                number.map_err(|_| format!("`{text}` is not a whole number from 0 on"))
            }
            Kind::Choice(words) => match words.contains(&text) {
                true => Ok(Value::Text(text.to_owned())),
                false => Err(format!("`{text}` is not one of {}", super::refusal::list(words))),
            },
            Kind::Duration => parse_duration(text).map(Value::Duration),
            Kind::Size => parse_size(text).map(Value::Size),
            Kind::Loopback => parse_loopback(text).map(Value::Address),
            Kind::Patterns => parse_patterns(text).map(Value::Patterns),
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
            Default::Absent(_) | Default::Required(_) | Default::Depends(..) => None,
        }
    }
}

/// Reads `order.*,paid` and `["order.*", "paid"]`; the second for names with commas.
fn parse_patterns(text: &str) -> Result<Vec<Pattern>, String> {
    let texts: Vec<String> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|_| "is no list of texts such as [\"order.*\", \"paid\"]".to_owned())?
    } else {
        text.split(',').map(|pattern| pattern.trim().to_owned()).collect()
    };
    if texts.is_empty() {
        return Err("is an empty list, which matches nothing; leave the key out to match all".to_owned());
    }
    let pattern = |text: String| Pattern::new(text.as_str()).map_err(|error| format!("`{text}` {error}"));
    texts.into_iter().map(pattern).collect()
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

/// Keys that a later version brings, with everything below them: the path and why it is refused.
const LATER_KEYS: &[(&str, &str)] = &[
    ("history.partition", "keeping published events comes in a later version"),
    ("admin.token_file", "tokens come in a later version; until then the probes answer on loopback only"),
    ("route.unroutable", "this version always pauses an unroutable topic; the choice comes in a later version"),
    ("route.unroutable_after", "this version always pauses an unroutable topic; the choice comes in a later version"),
];

/// Values that a later version brings.
const LATER_VALUES: &[(&str, &str, &str)] =
    &[("history.keep", "*", "keeping published events comes in a later version; use \"off\"")];

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
    let at = |path: &str| key_table::all().find(|key| key.paths().iter().any(|known| known == path));
    if let Some(key) = at(path) {
        return Some((key, false));
    }
    let key = at(path.strip_suffix("_file")?)?;
    key.is_secret().then_some((key, true))
}
