//! The configuration: one TOML file < environment < `--set`, read into one typed model.

mod key_table;
pub(crate) mod keys;
mod layers;
mod model;
mod path;
mod problem;
mod quantity;
#[cfg(test)]
mod reference;
mod refusal;
mod resolve;
mod secret;
mod show;
mod table;

use std::ffi::OsString;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use outbox_core::wire::Format;
use outbox_pg::{PgConfig, SchemaName};

pub(crate) use self::keys::{Key, Value};
pub(crate) use self::problem::Problem;
pub(crate) use self::quantity::format_duration;
pub(crate) use self::refusal::joined;
pub(crate) use self::show::Shown;
pub(crate) use self::table::Table;

use self::layers::Layers;
use self::model::Reader;
use self::resolve::resolve;
use super::brokers;
use crate::RouteConfig;

/// The file that is read when `--config` names none, if it exists.
pub(crate) const DEFAULT_FILE: &str = "outbox.toml";

/// The largest config file; a larger one is a mistake.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Where the configuration comes from.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// `--config`.
    pub(crate) file: Option<PathBuf>,
    /// All variables of the process.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// `--set`.
    pub(crate) flags: Vec<String>,
}

/// What a command can't do without.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) database: bool,
    pub(crate) route: bool,
}

/// The configuration, complete and checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) database: Database,
    /// The relay's label.
    pub(crate) name: String,
    pub(crate) wakeup: Wakeup,
    /// Where the probes listen; `None` is off.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) log: Log,
    /// The routes in their order; none when no `[[route]]` is set and the command needs none.
    pub(crate) routes: Vec<RouteSettings>,
    /// Every key with its value in force and where it came from, secrets hidden.
    pub(crate) shown: Vec<Shown>,
}

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) schema: SchemaName,
    /// How to connect; `None` when no URL is set and the command needs none.
    pub(crate) pg: Option<PgConfig>,
}

/// How an idle relay learns of new events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// A commit rings.
    Doorbell {
        /// How often it reads without having been rung.
        fallback: Duration,
    },
    /// It reads every `poll_interval` of its routes.
    Poll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: tracing::Level,
}

/// One `[[route]]`.
#[derive(Debug)]
pub(crate) struct RouteSettings {
    /// Its place, counted from 0.
    pub(crate) place: usize,
    /// Its name, filter and numbers.
    pub(crate) config: RouteConfig,
    /// What consumers see.
    pub(crate) format: Format,
    /// Where it leads.
    pub(crate) broker: Table,
}

/// Reads everything and checks everything.
///
/// # Errors
/// All problems that there are, not only the first.
pub(crate) fn load(inputs: &Inputs, needs: Needs) -> Result<Settings, Vec<Problem>> {
    load_with(inputs, needs, &brokers::compiled_in())
}

fn load_with(inputs: &Inputs, needs: Needs, compiled_in: &[&str]) -> Result<Settings, Vec<Problem>> {
    let mut layers = Layers::default();
    let has_file = match read_file(inputs.file.as_deref()) {
        Ok(Some((path, text))) => {
            layers.add_file(&path, &text);
            true
        }
        Ok(None) => false,
        Err(problem) => {
            layers.problems.push(problem);
            layers.is_torn = true;
            true
        }
    };
    layers.add_env(inputs.env.iter().cloned());
    layers.add_flags(&inputs.flags);
    layers.check_numbers();
    let (values, problems) = resolve(&layers, compiled_in);
    let mut problems: Vec<Problem> = layers.problems.iter().cloned().chain(problems).collect();
    if layers.is_torn {
        return Err(problems);
    }
    let reader = Reader { values: &values, layers: &layers, has_file, compiled_in };
    let settings = reader.build(needs, &mut problems);
    match settings {
        Some(settings) if problems.is_empty() => Ok(settings),
        _ => Err(problems),
    }
}

fn read_file(explicit: Option<&std::path::Path>) -> Result<Option<(String, String)>, Problem> {
    let path = explicit.unwrap_or(std::path::Path::new(DEFAULT_FILE));
    let name = path.display().to_string();
    let unreadable =
        |error: &dyn std::fmt::Display| Problem::new("--config", format!("`{name}` can't be read: {error}"));
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && explicit.is_none() => return Ok(None),
        Err(error) => return Err(unreadable(&error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| unreadable(&error))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(unreadable(&format!("it holds more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(Some((name, text)))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
