//! From what was set to values: everything unknown, unreadable or not available here is a problem of its own.

use std::collections::BTreeMap;
use std::io::Read as _;

use crate::cli::brokers;

use super::key_table;
use super::keys::{Key, Kind, Place, Value, find, later_key, later_value};
use super::layers::{Layers, Raw, known_keys, unknown_variable};
use super::path::Path;
use super::problem::{Origin, Problem, nearest};
use super::refusal::refusal;

/// The largest file that holds one secret.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// The values of all keys that were set, by path.
pub(crate) type Values = BTreeMap<Path, (Value, Origin)>;

/// Reads every value and lists everything that is wrong on the way.
pub(crate) fn resolve(layers: &Layers, compiled_in: &[&str]) -> (Values, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut refused = Vec::new();
    for ((route, name), origin) in &layers.brokers {
        if let Some(problem) = refusal(&Path::of_route(*route, name), name, compiled_in) {
            problems.push(problem.at(origin));
            refused.push((*route, format!("route.{name}.")));
        }
    }
    let mut values = Values::new();
    for (path, found) in &layers.values {
        let below = |(route, broker): &(usize, String)| path.route == Some(*route) && path.key.starts_with(broker);
        if refused.iter().any(below) {
            continue; // said once for the whole table
        }
        if let Some(why) = later_key(&path.key) {
            problems.push(Problem::new(path.to_string(), why).at(&found.origin));
            continue;
        }
        let Some((key, is_file)) = find(&path.key) else {
            problems.push(unknown(path, &found.origin));
            continue;
        };
        let text = text(key, is_file, &found.raw);
        let text = text.and_then(|text| if is_file { read_secret(&text) } else { Ok(text) });
        let text = text.and_then(|text| match key.kind {
            Kind::Path => can_be_read(&text).map(|()| text),
            _ => Ok(text),
        });
        let value = text.and_then(|text| match later_value(key, &text) {
            Some(why) => Err((why.to_owned(), None)),
            None => key.parse(&text).map_err(|problem| {
                let near = match key.kind {
                    Kind::Choice(words) => nearest(&text, words.iter().copied()),
                    _ => None,
                };
                (problem, near.map(|near| format!("did you mean `{near}`?")))
            }),
        });
        match value {
            Ok(value) => {
                let own = path.key.strip_suffix("_file").filter(|_| is_file).unwrap_or(&path.key);
                values.insert(path.beside(own), (value, found.origin.clone()));
            }
            Err((problem, remedy)) => {
                let problem = Problem::new(path.to_string(), problem).at(&found.origin);
                problems.push(match remedy {
                    Some(remedy) => problem.remedy(remedy),
                    None => problem,
                });
            }
        }
    }
    (values, problems)
}

type Wrong = (String, Option<String>);

/// The text of a value, if its type fits the key.
fn text(key: &Key, is_file: bool, raw: &Raw) -> Result<String, Wrong> {
    let bare_number = matches!(key.kind, Kind::Number) && !is_file;
    let unit = matches!(key.kind, Kind::Duration | Kind::Size);
    if matches!(key.kind, Kind::Patterns) {
        return match raw {
            Raw::Bare(text) => Ok(text.clone()),
            Raw::List(texts) => serde_json::to_string(texts).map_err(|error| (error.to_string(), None)),
            _ => Err(("must be a list of texts".to_owned(), Some("for example [\"order.*\", \"paid\"]".to_owned()))),
        };
    }
    match raw {
        Raw::Bare(text) => Ok(text.clone()),
        Raw::Switch(switch) if matches!(key.kind, Kind::Switch) && !is_file => Ok(switch.to_string()),
        Raw::Switch(_) => Err(("must be text in quotes, not a value of type boolean".to_owned(), None)),
        Raw::Quoted(_) if matches!(key.kind, Kind::Switch) => {
            Err(("must be `true` or `false`, not text".to_owned(), Some("write it without quotes".to_owned())))
        }
        Raw::Quoted(text) if !bare_number => Ok(text.clone()),
        Raw::Integer(number) if bare_number || unit => Ok(number.clone()),
        Raw::Quoted(_) => Err(("must be a number, not text".to_owned(), Some("write it without quotes".to_owned()))),
        Raw::Integer(_) => Err(("must be text, not a number".to_owned(), Some("write it in quotes".to_owned()))),
        Raw::List(_) => Err(("must be one value, not a list".to_owned(), None)),
        Raw::Table => Err(("must be a value, not a table".to_owned(), None)),
        Raw::Other(kind) if bare_number => Err((format!("must be a whole number, not a value of type {kind}"), None)),
        Raw::Other(kind) => Err((format!("must be text in quotes, not a value of type {kind}"), None)),
    }
}

/// Whether a file is there and may be read. What is in it is read by whoever needs it, each time anew.
fn can_be_read(path: &str) -> Result<(), Wrong> {
    let wrong = |problem: String| (format!("`{path}` can't be read: {problem}"), None);
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    match file.metadata() {
        Ok(found) if found.is_dir() => Err(wrong("it is a directory".to_owned())),
        Ok(_) => Ok(()),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// The content of a secret's file, without the line break at its end.
fn read_secret(path: &str) -> Result<String, Wrong> {
    let wrong = |problem: String| (problem, None);
    let file = std::fs::File::open(path).map_err(|error| wrong(format!("`{path}` can't be read: {error}")))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| wrong(format!("`{path}` can't be read: {error}")))?;
    if bytes.len() as u64 > MAX_SECRET_BYTES {
        return Err(wrong(format!("`{path}` holds more than {MAX_SECRET_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong(format!("`{path}` is no UTF-8 text")))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err(wrong(format!("`{path}` is empty"))) } else { Ok(text.to_owned()) }
}

fn unknown(path: &Path, origin: &Origin) -> Problem {
    if let Origin::Env(name) = origin {
        return unknown_variable(name);
    }
    let (table, name) = path.key.rsplit_once('.').unwrap_or(("", &path.key));
    let problem = |text: &str| Problem::new(path.to_string(), text).at(origin);
    if path.key == "route.match" {
        return problem("is a table").remedy("write `match = { event_type = [\"order.*\"] }`");
    }
    if table == "route" && brokers::find(name).is_some() {
        return problem("is a table, not a value").remedy(format!("write `[route.{name}]`"));
    }
    let problem = problem("unknown key");
    if let (Some(route), Some(broker)) = (path.route, table.strip_prefix("route.").filter(|below| *below != "match")) {
        let in_route = Path::of_route(route, name);
        if find(&in_route.key).is_some() {
            return problem.remedy(format!("it belongs into `[[route]]`, above `[route.{broker}]`: set `{in_route}`"));
        }
    }
    if let Some(key) = key_table::all().find(|key| key.name == name) {
        let own = path.beside(key.paths().swap_remove(0));
        let where_else = match key.place {
            Place::Table("relay") if table == "route" => format!("it can't be set per route; set `{own}`"),
            _ => format!("did you mean `{own}`?"),
        };
        return problem.remedy(where_else);
    }
    let keys = known_keys();
    let in_table = |key: &&String| key.rsplit_once('.').is_some_and(|(known, _)| known == table);
    let near = nearest(name, keys.iter().filter(in_table).filter_map(|key| key.rsplit('.').next()));
    match near {
        Some(near) => problem.remedy(format!("did you mean `{}`?", path.beside(format!("{table}.{near}")))),
        None => problem.nearest(&path.key, keys.iter().map(String::as_str)),
    }
}
