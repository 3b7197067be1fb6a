//! From values to the typed model, with the checks between keys.

use std::path::PathBuf;

use outbox_pg::{PgConfig, SchemaName};

use super::key_table::KEYS;
use super::keys::{self, Field, Key, Place, Value};
use super::layers::{Layers, env_name};
use super::problem::{Origin, Problem};
use super::quantity::format_duration;
use super::resolve::Values;
use super::{Broker, DEFAULT_FILE, Database, Log, LogFormat, Needs, RabbitMq, SecretUrl, Settings, brokers, show};
use crate::{Ordering, RouteConfig};

pub(super) struct Reader<'a> {
    pub(super) values: &'a Values,
    pub(super) layers: &'a Layers,
    pub(super) has_file: bool,
}

impl Reader<'_> {
    /// Fills the model. Whatever has no usable value gets its default; its problem is in the list.
    pub(super) fn build(&self, needs: Needs, problems: &mut Vec<Problem>) -> Option<Settings> {
        let route = self.route_config(problems);
        let broker = self.broker(needs.route, problems);
        if let Some(Broker::RabbitMq(table)) = &broker {
            // The engine would end each call before the publisher can say which of its events were confirmed.
            let patience = table.confirm_timeout.saturating_add(table.connect_timeout.saturating_mul(3));
            if patience >= route.publish_timeout {
                let (ours, theirs) = (format_duration(patience), format_duration(route.publish_timeout));
                let problem = format!(
                    "must, with three times connect_timeout, be shorter than publish_timeout ({theirs}), got {ours} in all"
                );
                problems.push(self.problem("route.rabbitmq.confirm_timeout", problem));
            }
        }
        let database = self.database(needs.database, problems);
        Some(Settings {
            database: database?,
            name: self.text("relay.name")?,
            admin: match self.value("admin.listen")? {
                Value::Address(address) => address,
                _ => None,
            },
            log: Log {
                format: if self.text("log.format")? == "json" { LogFormat::Json } else { LogFormat::Text },
                level: self.text("log.level")?.parse().ok()?,
            },
            route,
            broker,
            shown: show::all(self.values, &self.layers.brokers),
        })
    }

    fn database(&self, needed: bool, problems: &mut Vec<Problem>) -> Option<Database> {
        let url = self.text("database.url");
        if needed && url.is_none() && !self.is_set("database.url") {
            problems.push(self.missing("database.url", "postgres://relay@localhost/app"));
        }
        let schema = SchemaName::new(self.text("database.schema")?);
        if let Err(error) = &schema {
            problems.push(self.problem("database.schema", error.to_string()));
        }
        let connections = self.number("database.max_connections")?;
        let connections = u32::try_from(connections).unwrap_or(u32::MAX);
        // Checked also when there is no URL, and beside a wrong one.
        let mut pg = PgConfig::new("postgres://localhost").with_max_connections(connections);
        let mut checked = vec![pg.connect_options().err()];
        pg = pg.with_max_connections(outbox_pg::DEFAULT_MAX_CONNECTIONS);
        if let Some(url) = &url {
            pg.url.clone_from(url);
            checked.push(pg.connect_options().err());
        }
        for error in checked.into_iter().flatten() {
            problems.push(self.problem(&format!("database.{}", error.field), error.problem));
        }
        let schema = schema.ok()?;
        pg = pg.with_max_connections(connections).with_schema(schema.clone());
        if let Some(file) = self.text("database.ca_file") {
            pg = pg.with_ca_file(file);
        }
        Some(Database { schema, pg: url.map(|_| pg) })
    }

    /// The route's numbers: `[[route]]` over `[relay]` over the defaults, then checked together.
    fn route_config(&self, problems: &mut Vec<Problem>) -> RouteConfig {
        let name = self.text("route.name").unwrap_or_default();
        let mut config = RouteConfig::new(name);
        if self.routed("ordering").as_deref() == Some("none") {
            config.ordering = Ordering::None;
        }
        for key in KEYS {
            let keys::Default::Of(field) = key.default else { continue };
            let paths = key.paths();
            let Some((path, (value, _))) = paths.iter().rev().find_map(|path| self.values.get_key_value(path)) else {
                continue;
            };
            if let Err(problem) = set_field(&mut config, field, value) {
                problems.push(self.problem(path, problem));
            }
        }
        for error in config.validate().err().into_iter().flatten() {
            let is_own = |key: &&Key| key.name == error.field && key.place != Place::Table("database");
            let paths = KEYS.iter().find(is_own).map(Key::paths).unwrap_or_default();
            let set = paths.iter().rev().find(|path| self.values.contains_key(*path)).or(paths.first());
            let path = set.cloned().unwrap_or_else(|| format!("relay.{}", error.field));
            let path = if error.field == "name" { "route.name".to_owned() } else { path };
            problems.push(self.problem(&path, error.problem));
        }
        config
    }

    fn broker(&self, needed: bool, problems: &mut Vec<Problem>) -> Option<Broker> {
        let brokers: Vec<&str> = self.layers.brokers.keys().map(String::as_str).collect();
        match brokers.as_slice() {
            [] => {
                if self.layers.has_route {
                    let problem = Problem::new("route", "names no broker");
                    problems.push(problem.remedy("add one of the tables `[route.stdout]` and `[route.rabbitmq]`"));
                } else if needed {
                    problems.push(self.missing("route", "a `[[route]]` with a table `[route.stdout]`"));
                }
                None
            }
            ["stdout"] => Some(Broker::Stdout),
            ["rabbitmq"] => {
                let mut need = |path: &str, example: &str| {
                    if !self.is_set(path) {
                        problems.push(self.missing(path, example));
                    }
                };
                need("route.rabbitmq.url", "amqp://localhost");
                need("route.rabbitmq.exchange", "orders");
                self.rabbitmq().map(|table| Broker::RabbitMq(Box::new(table)))
            }
            [_] => None, // refused by name
            several => {
                let problem = format!("leads to {} at once", brokers::list(several));
                problems.push(Problem::new("route", problem).remedy("keep exactly one of these tables"));
                None
            }
        }
    }

    fn rabbitmq(&self) -> Option<RabbitMq> {
        let path = |name: &str| format!("route.rabbitmq.{name}");
        let file = |name: &str| self.text(&path(name)).map(PathBuf::from);
        let duration = |name: &str| match self.value(&path(name))? {
            Value::Duration(duration) => Some(duration),
            _ => None,
        };
        Some(RabbitMq {
            url: self.secret(&path("url"))?,
            exchange: self.text(&path("exchange"))?,
            topic: self.text(&path("topic"))?,
            ca_file: file("ca_file"),
            cert_file: file("cert_file"),
            key_file: file("key_file"),
            channels: self.number(&path("channels"))?,
            confirm_timeout: duration("confirm_timeout")?,
            connect_timeout: duration("connect_timeout")?,
            heartbeat: duration("heartbeat")?,
            max_message_bytes: match self.value(&path("max_message_bytes"))? {
                Value::Size(bytes) => bytes,
                _ => return None,
            },
        })
    }

    fn missing(&self, path: &str, example: &str) -> Problem {
        let problem = Problem::new(path, "is missing");
        let variable = if path == "route" { "OUTBOX__ROUTE__0__STDOUT={}".to_owned() } else { env_name(path) };
        match self.has_file {
            true => problem.remedy(format!("for example {example}")),
            false => problem.remedy(format!(
                "there is no `{DEFAULT_FILE}` here; name a file with --config, or set {variable} (for example {example})"
            )),
        }
    }

    /// Whether the path or its `_file` form was set, even to something unusable.
    fn is_set(&self, path: &str) -> bool {
        let file = format!("{path}_file");
        self.layers.values.contains_key(path) || self.layers.values.contains_key(&file)
    }

    fn problem(&self, path: &str, problem: impl Into<String>) -> Problem {
        let origin = self.values.get(path).map_or(&Origin::Default, |(_, origin)| origin);
        Problem::new(path, problem).at(origin)
    }

    fn value(&self, path: &str) -> Option<Value> {
        if let Some((value, _)) = self.values.get(path) {
            return Some(value.clone());
        }
        let (key, _) = keys::find(path)?;
        key.parse(&key.default_text()?).ok()
    }

    fn text(&self, path: &str) -> Option<String> {
        match self.value(path)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self, path: &str) -> Option<u64> {
        match self.value(path)? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    fn secret(&self, path: &str) -> Option<SecretUrl> {
        self.text(path).map(SecretUrl::new)
    }

    /// A text of `[[route]]`, or of `[relay]`.
    fn routed(&self, name: &str) -> Option<String> {
        let set = |path: String| self.values.contains_key(&path).then(|| self.text(&path)).flatten();
        set(format!("route.{name}")).or_else(|| set(format!("relay.{name}")))
    }
}

fn set_field(config: &mut RouteConfig, field: Field, value: &Value) -> Result<(), String> {
    match (field, value) {
        (Field::Attempts(field), Value::Number(number)) => {
            *field(config) =
                u32::try_from(*number).map_err(|_| format!("must be at most {}, got {number}", u32::MAX))?;
        }
        (Field::Count(field), Value::Number(number)) => {
            *field(config) = usize::try_from(*number).map_err(|_| format!("must be smaller, got {number}"))?;
        }
        (Field::Size(field), Value::Size(bytes)) => *field(config) = *bytes,
        (Field::Duration(field), Value::Duration(duration)) => *field(config) = *duration,
        // The table of keys pairs each field with its kind; a test reads every default back through both.
        _ => return Err("has a value of the wrong kind".to_owned()),
    }
    Ok(())
}
