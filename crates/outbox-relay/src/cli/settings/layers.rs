//! What was set where: config file < environment < `--set`, flattened to paths such as `relay.window`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::key_table;
use super::keys::{Key, find, later_key};
use super::path::{Path, place};
use super::problem::{Origin, Problem};

/// The prefix of all variables that are read.
pub(crate) const ENV_PREFIX: &str = "OUTBOX__";

const TABLES: &[&str] = &["database", "relay", "history", "admin", "log", "route"];

/// Routes that a config may speak of. More than there may be, so that their number is told of and not their names.
const MOST_ROUTES: usize = 1000;

/// A value as it was found, before anyone knows what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Raw {
    /// Text in quotes, in the file.
    Quoted(String),
    /// A whole number, in the file.
    Integer(String),
    /// Text without a type: a variable or `--set`.
    Bare(String),
    /// `true` or `false`, in the file.
    Switch(bool),
    /// A table below a route, perhaps empty: in the file, or `{}` as a variable or `--set`.
    Table,
    /// A list of texts in quotes, in the file.
    List(Vec<String>),
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
    pub(crate) values: BTreeMap<Path, Found>,
    /// The tables of brokers, by the place of their `[[route]]`.
    pub(crate) brokers: BTreeMap<(usize, String), Origin>,
    /// The places of the routes that are spoken of.
    pub(crate) routes: BTreeSet<usize>,
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
                DeValue::Table(entries) => self.add_table(&Path::new(None, name), entries, &origin),
                DeValue::Array(routes) if name == "route" => {
                    for (place, route) in routes.iter().enumerate().take(MOST_ROUTES) {
                        let path = Path::new(Some(place), "route");
                        match route.get_ref() {
                            DeValue::Table(entries) => {
                                self.routes.insert(place);
                                self.add_table(&path, entries, &origin);
                            }
                            _ => self.problems.push(Problem::new(path.to_string(), "is no table").at(&at)),
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
            let mut path = Path::parse(path);
            if path.route.is_none() && path.key.starts_with("route.") {
                // Whoever has one route need not number it.
                if self.routes.len() > 1 {
                    let problem = Problem::new(path.to_string(), "does not say of which route").at(&Origin::Flag);
                    let below = path.key.trim_start_matches("route");
                    self.problems.push(problem.remedy(format!("write `route[0]{below}`, counted from 0")));
                    continue;
                }
                path.route = Some(0);
            }
            if matches!(find(&path.key), Some((key, false)) if key.is_secret()) {
                let problem =
                    Problem::new(path.to_string(), "may hold a secret, which all users of this machine would see");
                self.problems.push(problem.at(&Origin::Flag).remedy(format!("set `{path}_file` or a variable")));
                continue;
            }
            layer.push((path, Found { raw: bare(value.to_owned()), origin: Origin::Flag }));
        }
        self.add_layer(layer);
    }

    /// Says which routes are missing between those that are spoken of, by variables and flags.
    pub(crate) fn check_numbers(&mut self) {
        let missing = (0..).find(|place| !self.routes.contains(place)).unwrap_or_default();
        if let Some(next) = self.routes.range(missing..).next().copied() {
            let set = |path: &Path| path.route == Some(next);
            let origin = self.values.iter().find(|(path, _)| set(path)).map(|(_, found)| &found.origin);
            let origin =
                origin.or_else(|| self.brokers.iter().find(|((place, _), _)| *place == next).map(|(_, at)| at));
            let problem = Problem::new(format!("route[{next}]"), format!("is set, but there is no route[{missing}]"));
            let problem = origin.map_or(problem.clone(), |origin| problem.at(origin));
            self.problems.push(problem.remedy("routes are numbered from 0, without gaps, those of the file first"));
        }
    }

    /// Lays values over those that are there. A secret and its `_file` are one setting: each replaces the other
    /// of a lower layer, and contradicts it in the same one.
    fn add_layer(&mut self, layer: Vec<(Path, Found)>) {
        let paths: Vec<Path> = layer.iter().map(|(path, _)| path.clone()).collect();
        for (path, found) in layer {
            self.routes.extend(path.route);
            if let (Some(route), Some(broker)) = (path.route, broker_of(&path.key, &found.raw)) {
                // The table's own place is a better one than that of a key below it.
                let broker = (route, broker.to_owned());
                match found.raw {
                    Raw::Table => drop(self.brokers.insert(broker, found.origin.clone())),
                    _ => drop(self.brokers.entry(broker).or_insert_with(|| found.origin.clone())),
                }
            }
            if let Some((_, is_file)) = find(&path.key).filter(|(key, _)| key.is_secret()) {
                let twin = match path.key.strip_suffix("_file").filter(|_| is_file) {
                    Some(secret) => path.beside(secret),
                    None => path.beside(format!("{}_file", path.key)),
                };
                if !paths.contains(&twin) {
                    self.values.remove(&twin);
                } else if is_file {
                    let problem = format!("contradicts `{twin}`, which is set in the same place");
                    let problem = Problem::new(path.to_string(), problem).at(&found.origin);
                    self.problems.push(problem.remedy("keep one of them"));
                }
            }
            if found.raw != Raw::Table {
                self.values.insert(path, found);
            }
        }
    }

    fn add_table(&mut self, table: &Path, entries: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) {
        let mut layer = Vec::new();
        for (name, value) in entries {
            let path = table.beside(format!("{}.{}", table.key, name.get_ref()));
            let raw = match value.get_ref() {
                DeValue::Table(below) if path.key == "route.match" || broker_of(&path.key, &Raw::Table).is_some() => {
                    self.add_table(&path, below, origin);
                    Raw::Table
                }
                DeValue::String(text) => Raw::Quoted(text.clone().into_owned()),
                DeValue::Integer(number) if number.radix() == 10 => Raw::Integer(number.as_str().to_owned()),
                DeValue::Array(values) => texts(values),
                DeValue::Boolean(switch) => Raw::Switch(*switch),
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
        self.problems.push(match key_table::all().find(|key| key.name == name) {
            Some(key) => problem.remedy(format!("did you mean `{}`?", key.paths().swap_remove(0))),
            None => problem.nearest(name, key_table::all().map(|key| key.name)),
        });
    }
}

fn bare(text: String) -> Raw {
    if text.trim() == "{}" { Raw::Table } else { Raw::Bare(text) }
}

/// A list, if it holds nothing but texts.
fn texts(values: &DeArray<'_>) -> Raw {
    let text = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::String(text) => Some(text.clone().into_owned()),
        _ => None,
    };
    values.iter().map(text).collect::<Option<Vec<_>>>().map_or(Raw::Other("array"), Raw::List)
}

/// The broker that a value of a route speaks of: `route.<broker>` as a table, or anything below it.
fn broker_of<'a>(key: &'a str, raw: &Raw) -> Option<&'a str> {
    let rest = key.strip_prefix("route.")?;
    let (name, below) = rest.split_once('.').map_or((rest, None), |(name, below)| (name, Some(below)));
    let own = format!("route.{name}");
    let is_key = name == "match" || find(&own).is_some() || later_key(&own).is_some();
    let is_table = *raw == Raw::Table || below.is_some();
    (is_table && !is_key).then_some(name)
}

/// The path of a variable without its prefix: `RELAY__WINDOW` is `relay.window`, `ROUTE__0__NAME` is `route[0].name`.
fn env_path(rest: &str) -> Result<Path, Problem> {
    let parts: Vec<&str> = rest.split("__").collect();
    let plain = !rest.contains(|c: char| c.is_lowercase()) && parts.iter().all(|part| !part.is_empty());
    let number = |text: &str| place(text).filter(|number| *number < MOST_ROUTES);
    match parts.as_slice() {
        ["ROUTE", place, below @ ..] if plain && !below.is_empty() && number(place).is_some() => {
            Ok(Path::of_route(number(place).unwrap_or_default(), &below.join(".").to_lowercase()))
        }
        [table, _, ..] if plain && *table != "ROUTE" => Ok(Path::new(None, parts.join(".").to_lowercase())),
        _ => Err(unknown_variable(&format!("{ENV_PREFIX}{rest}"))),
    }
}

/// A variable with our prefix that sets nothing.
pub(crate) fn unknown_variable(name: &str) -> Problem {
    // The nearest one is of the same route.
    let route = name.strip_prefix(ENV_PREFIX).and_then(|rest| rest.strip_prefix("ROUTE__"));
    let number: Option<usize> = route.and_then(|rest| rest.split("__").next()).and_then(|text| text.parse().ok());
    let variable = |key: &String| Path::new(Some(number.unwrap_or(0)), key.clone()).variable();
    let known: Vec<String> = known_keys().iter().map(variable).collect();
    Problem::new(name, "unknown variable").nearest(name, known.iter().map(String::as_str))
}

/// Every key that may be set, with its table, `_file` forms included.
pub(crate) fn known_keys() -> Vec<String> {
    let with_file = |key: &Key| {
        let paths = key.paths();
        let files = paths.iter().filter(|_| key.is_secret()).map(|path| format!("{path}_file")).collect::<Vec<_>>();
        paths.into_iter().chain(files).collect::<Vec<_>>()
    };
    key_table::all().flat_map(with_file).collect()
}
