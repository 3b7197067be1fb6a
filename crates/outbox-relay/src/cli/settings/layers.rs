//! What was set where: config file < environment < `--set`, flattened to paths such as `relay.window`.

use std::collections::BTreeMap;
use std::ffi::OsString;

use toml::de::{DeTable, DeValue};

use super::key_table::KEYS;
use super::keys::{Key, find, later_key};
use super::problem::{Origin, Problem};

/// The prefix of all variables that are read.
pub(crate) const ENV_PREFIX: &str = "OUTBOX__";

const TABLES: &[&str] = &["database", "relay", "history", "admin", "log", "route"];
const SEVERAL_ROUTES: &str = "several routes come in a later version; this one has exactly one `[[route]]`";

/// A value as it was found, before anyone knows what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Raw {
    /// Text in quotes, in the file.
    Quoted(String),
    /// A whole number, in the file.
    Integer(String),
    /// Text without a type: a variable or `--set`.
    Bare(String),
    /// A broker's table, perhaps empty: in the file, or `{}` as a variable or `--set`.
    Table,
    /// Anything else, by the name of its type.
    Other(&'static str),
}

#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) raw: Raw,
    pub(crate) origin: Origin,
}

/// All that was set, the highest layer of each key.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) values: BTreeMap<String, Found>,
    /// The tables of brokers below `[[route]]`.
    pub(crate) brokers: BTreeMap<String, Origin>,
    /// Whether there is a route at all.
    pub(crate) has_route: bool,
    /// The file could not be read as TOML: nobody knows what is missing.
    pub(crate) is_torn: bool,
    pub(crate) problems: Vec<Problem>,
}

impl Layers {
    /// Reads the text of a config file. No message repeats the text: it may hold a secret.
    pub(crate) fn add_file(&mut self, path: &str, text: &str) {
        let line = |offset: usize| text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1;
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let origin = Origin::File(path.to_owned(), error.span().map_or(1, |span| line(span.start)));
            self.problems.push(Problem::new("syntax", format!("is no TOML: {}", error.message())).at(&origin));
        }
        if !errors.is_empty() {
            self.is_torn = true;
            return;
        }
        let origin = |spanned: usize| Origin::File(path.to_owned(), line(spanned));
        for (table, content) in document.get_ref() {
            let (name, at) = (table.get_ref().as_ref(), origin(table.span().start));
            match content.get_ref() {
                _ if !TABLES.contains(&name) => self.unknown_table(name, content.get_ref(), &at),
                DeValue::Table(_) if name == "route" => {
                    self.problems.push(Problem::new("route", "is a list").at(&at).remedy("write `[[route]]`"));
                }
                DeValue::Table(entries) => self.add_table(name, entries, &origin),
                DeValue::Array(routes) if name == "route" => {
                    for (index, route) in routes.iter().enumerate() {
                        match route.get_ref() {
                            _ if index > 0 => {
                                let at = origin(route.span().start);
                                self.problems.push(Problem::new("route", SEVERAL_ROUTES).at(&at));
                            }
                            DeValue::Table(entries) => {
                                self.has_route = true;
                                self.add_table("route", entries, &origin);
                            }
                            _ => self.problems.push(Problem::new("route", "is no table").at(&at)),
                        }
                    }
                }
                _ => self.problems.push(Problem::new(name, "is a table, not a value").at(&at)),
            }
        }
    }

    /// Reads the environment: every variable that begins with [`ENV_PREFIX`], and no other.
    pub(crate) fn add_env(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut layer = Vec::new();
        for (name, value) in variables {
            let name = name.to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix(ENV_PREFIX) else { continue };
            let origin = Origin::Env(name.clone());
            let path = match env_path(rest) {
                Ok(path) => path,
                Err(problem) => {
                    self.problems.push(problem);
                    continue;
                }
            };
            match value.into_string() {
                Ok(text) if text.trim().is_empty() => {
                    let problem = Problem::new(name, "is set but empty");
                    self.problems.push(problem.remedy("give it a value or unset it"));
                }
                Ok(text) => layer.push((path, Found { raw: bare(text), origin })),
                Err(_) => self.problems.push(Problem::new(name, "is no valid UTF-8")),
            }
        }
        self.add_layer(layer);
    }

    /// Reads `--set KEY=VALUE`.
    pub(crate) fn add_flags(&mut self, flags: &[String]) {
        let mut layer = Vec::new();
        for flag in flags {
            let Some((path, value)) = flag.split_once('=') else {
                self.problems.push(Problem::new("--set", "needs KEY=VALUE").remedy("for example relay.window=500"));
                continue;
            };
            if matches!(find(path), Some((key, false)) if key.is_secret()) {
                let problem = Problem::new(path, "may hold a secret, which all users of this machine would see");
                self.problems.push(problem.at(&Origin::Flag).remedy(format!("set `{path}_file` or a variable")));
                continue;
            }
            layer.push((path.to_owned(), Found { raw: bare(value.to_owned()), origin: Origin::Flag }));
        }
        self.add_layer(layer);
    }

    /// Lays values over those that are there. A secret and its `_file` are one setting: each replaces the other
    /// of a lower layer, and contradicts it in the same one.
    fn add_layer(&mut self, layer: Vec<(String, Found)>) {
        let paths: Vec<String> = layer.iter().map(|(path, _)| path.clone()).collect();
        for (path, found) in layer {
            self.has_route |= path.starts_with("route.");
            if let Some(broker) = broker_of(&path, &found.raw) {
                // The table's own place is a better one than that of a key below it.
                match found.raw {
                    Raw::Table => drop(self.brokers.insert(broker.to_owned(), found.origin.clone())),
                    _ => drop(self.brokers.entry(broker.to_owned()).or_insert_with(|| found.origin.clone())),
                }
            }
            if let Some((_, is_file)) = find(&path).filter(|(key, _)| key.is_secret()) {
                let twin = match path.strip_suffix("_file").filter(|_| is_file) {
                    Some(secret) => secret.to_owned(),
                    None => format!("{path}_file"),
                };
                if !paths.contains(&twin) {
                    self.values.remove(&twin);
                } else if is_file {
                    let problem = format!("contradicts `{twin}`, which is set in the same place");
                    self.problems.push(Problem::new(&path, problem).at(&found.origin).remedy("keep one of them"));
                }
            }
            if found.raw != Raw::Table {
                self.values.insert(path, found);
            }
        }
    }

    fn add_table(&mut self, table: &str, entries: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) {
        let mut layer = Vec::new();
        for (name, value) in entries {
            let path = format!("{table}.{}", name.get_ref());
            let raw = match value.get_ref() {
                DeValue::Table(below) if broker_of(&path, &Raw::Table).is_some() => {
                    self.add_table(&path, below, origin);
                    Raw::Table
                }
                DeValue::String(text) => Raw::Quoted(text.clone().into_owned()),
                DeValue::Integer(number) if number.radix() == 10 => Raw::Integer(number.as_str().to_owned()),
                other => Raw::Other(other.type_str()),
            };
            layer.push((path, Found { raw, origin: origin(name.span().start) }));
        }
        self.add_layer(layer);
    }

    fn unknown_table(&mut self, name: &str, content: &DeValue<'_>, at: &Origin) {
        if matches!(content, DeValue::Table(_) | DeValue::Array(_)) {
            self.problems.push(Problem::new(name, "unknown table").at(at).nearest(name, TABLES.iter().copied()));
            return;
        }
        let problem = Problem::new(name, "stands outside of any table").at(at);
        self.problems.push(match KEYS.iter().find(|key| key.name == name) {
            Some(key) => problem.remedy(format!("did you mean `{}`?", key.paths().swap_remove(0))),
            None => problem.nearest(name, KEYS.iter().map(|key| key.name)),
        });
    }
}

fn bare(text: String) -> Raw {
    if text.trim() == "{}" { Raw::Table } else { Raw::Bare(text) }
}

/// The broker that a value speaks of: `route.<broker>` as a table, or anything below it.
fn broker_of<'a>(path: &'a str, raw: &Raw) -> Option<&'a str> {
    let rest = path.strip_prefix("route.")?;
    let (name, below) = rest.split_once('.').map_or((rest, None), |(name, below)| (name, Some(below)));
    let own = format!("route.{name}");
    let is_key = find(&own).is_some() || later_key(&own).is_some();
    let is_table = *raw == Raw::Table || below.is_some();
    (is_table && !is_key).then_some(name)
}

/// The path of a variable without its prefix: `RELAY__WINDOW` is `relay.window`, `ROUTE__0__NAME` is `route.name`.
fn env_path(rest: &str) -> Result<String, Problem> {
    let parts: Vec<&str> = rest.split("__").collect();
    let plain = !rest.contains(|c: char| c.is_lowercase()) && parts.iter().all(|part| !part.is_empty());
    match parts.as_slice() {
        ["ROUTE", "0", below @ ..] if plain && !below.is_empty() => {
            Ok(format!("route.{}", below.join(".").to_lowercase()))
        }
        ["ROUTE", number, ..] if number.parse::<u16>().is_ok_and(|number| number > 0) => {
            Err(Problem::new(format!("{ENV_PREFIX}{rest}"), SEVERAL_ROUTES))
        }
        [table, _, ..] if plain && *table != "ROUTE" => Ok(parts.join(".").to_lowercase()),
        _ => Err(unknown_variable(&format!("{ENV_PREFIX}{rest}"))),
    }
}

/// The variable that sets a path.
pub(crate) fn env_name(path: &str) -> String {
    let upper = path.to_uppercase().replace('.', "__");
    match upper.strip_prefix("ROUTE__") {
        Some(below) => format!("{ENV_PREFIX}ROUTE__0__{below}"),
        None => format!("{ENV_PREFIX}{upper}"),
    }
}

/// A variable with our prefix that sets nothing.
pub(crate) fn unknown_variable(name: &str) -> Problem {
    let known: Vec<String> = known_paths().iter().map(|path| env_name(path)).collect();
    Problem::new(name, "unknown variable").nearest(name, known.iter().map(String::as_str))
}

/// Every path that may be set, `_file` forms included.
pub(crate) fn known_paths() -> Vec<String> {
    let with_file = |key: &Key| {
        let paths = key.paths();
        let files = paths.iter().filter(|_| key.is_secret()).map(|path| format!("{path}_file")).collect::<Vec<_>>();
        paths.into_iter().chain(files).collect::<Vec<_>>()
    };
    KEYS.iter().flat_map(with_file).collect()
}
