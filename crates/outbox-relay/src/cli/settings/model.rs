//! From values to the typed model, with the checks between keys.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_core::wire::{DEBEZIUM_TOPIC, Format};
use outbox_core::{Filter, InvalidRoutes, Pattern, Routes};
use outbox_pg::{PgConfig, SchemaName};

use super::key_table::KEYS;
use super::keys::{self, Field, Key, Place, Value};
use super::layers::Layers;
use super::path::Path;
use super::problem::{Origin, Problem};
use super::resolve::Values;
use super::table::Table;
use super::{DEFAULT_FILE, Database, Log, LogFormat, Needs, RouteSettings, Settings, Wakeup, refusal, show};
use crate::cli::brokers::{self, State};
use crate::cli::failure::Failure;
use crate::{OnDead, Ordering, RouteConfig};

/// How often a relay reads that the doorbell has not rung.
const FALLBACK: Duration = Duration::from_secs(2);

pub(super) struct Reader<'a> {
    pub(super) values: &'a Values,
    pub(super) layers: &'a Layers,
    pub(super) has_file: bool,
    /// The brokers that a route can lead to.
    pub(super) compiled_in: &'a [&'a str],
}

impl Reader<'_> {
    /// Fills the model. Whatever has no usable value gets its default; its problem is in the list.
    pub(super) fn build(&self, needs: Needs, problems: &mut Vec<Problem>) -> Option<Settings> {
        let routes = self.routes(needs.route, problems);
        let all = self.all_routes(&routes, problems);
        let database = self.database(needs.database, all.as_ref(), problems);
        Some(Settings {
            database: database?,
            name: self.text(&relay("name"))?,
            wakeup: match self.text(&relay("wakeup"))?.as_str() {
                "poll" => Wakeup::Poll,
                _ => Wakeup::Doorbell {
                    fallback: match self.value(&relay("poll_interval")) {
                        Some(Value::Duration(fallback)) => fallback,
                        _ => FALLBACK,
                    },
                },
            },
            admin: match self.value(&Path::new(None, "admin.listen"))? {
                Value::Address(address) => address,
                _ => None,
            },
            log: Log {
                format: match self.text(&Path::new(None, "log.format"))?.as_str() {
                    "json" => LogFormat::Json,
                    _ => LogFormat::Text,
                },
                level: self.text(&Path::new(None, "log.level"))?.parse().ok()?,
            },
            routes,
            shown: show::all(self.values, self.layers),
        })
    }

    fn database(&self, needed: bool, routes: Option<&Routes>, problems: &mut Vec<Problem>) -> Option<Database> {
        let path = |name: &str| Path::new(None, format!("database.{name}"));
        let url = self.text(&path("url"));
        if needed && url.is_none() && !self.is_set(&path("url")) {
            problems.push(self.missing(&path("url"), "postgres://relay@localhost/app"));
        }
        let schema = SchemaName::new(self.text(&path("schema"))?);
        if let Err(error) = &schema {
            problems.push(self.problem(&path("schema"), error.to_string()));
        }
        let connections = match self.value(&path("max_connections")) {
            Some(Value::Number(number)) => Some(u32::try_from(number).unwrap_or(u32::MAX)),
            _ => None,
        };
        // Checked also when there is no URL, and beside a wrong one.
        let mut counted = PgConfig::new("postgres://localhost");
        counted.max_connections = connections;
        let counts = counted.connect_options().err();
        let counts = counts.or_else(|| routes.and_then(|routes| counted.check_routes(routes).err()));
        let mut pg = PgConfig::new(url.as_deref().unwrap_or("postgres://localhost"));
        pg.listen_url = self.text(&path("listen_url"));
        let listening = pg.listen_url.as_ref().and_then(|_| pg.listen_options().err());
        for error in counts.into_iter().chain(pg.connect_options().err()).chain(listening) {
            problems.push(self.problem(&path(error.field), error.problem));
        }
        let schema = schema.ok()?;
        pg.max_connections = connections;
        pg = pg.with_schema(schema.clone());
        if let Some(file) = self.text(&path("ca_file")) {
            pg = pg.with_ca_file(file);
        }
        Some(Database { schema, pg: url.map(|_| pg) })
    }

    fn routes(&self, needed: bool, problems: &mut Vec<Problem>) -> Vec<RouteSettings> {
        if self.layers.routes.is_empty() {
            // What stands in `[relay]` is checked all the same.
            self.config(None, problems);
            if needed {
                problems.push(self.missing(&Path::new(None, "route"), "a `[[route]]` with a table `[route.stdout]`"));
            }
        }
        let mut routes = Vec::new();
        for place in self.layers.routes.iter().copied().take(outbox_core::MAX_ROUTES + 1) {
            let config = self.config(Some(place), problems);
            let format = self.format(place, problems);
            let Some(broker) = self.broker(place, &format, problems) else { continue };
            let route = RouteSettings { place, config, format, broker };
            if route.broker.name() == "stdout" && route.format != Format::Plain {
                let problem = self.problem(&Path::of_route(place, "format"), "stdout knows no other than `plain`");
                problems.push(problem.remedy("leave it out"));
            }
            if let State::Here { check, connect, .. } = route.broker.state() {
                for (name, problem) in check(&route.broker, &route) {
                    let path = Path::of_route(place, &format!("{}.{name}", route.broker.name()));
                    problems.push(self.problem(&path, problem));
                }
                // What a publisher says of its own configuration is told with all the rest. It connects to nothing yet,
                // and any other failure comes again when it is made to be used.
                if let Err(Failure::Config(own)) = connect(&route.broker, &route) {
                    problems.extend(own.into_iter().map(|problem| self.placed(problem)));
                }
            }
            routes.push(route);
        }
        let mut to_stdout = routes.iter().filter(|route| route.broker.name() == "stdout");
        if let Some(first) = to_stdout.next() {
            for route in to_stdout {
                let problem = format!("route[{}] leads there too, and their lines would mix", first.place);
                problems.push(Problem::new(route.broker.path(), problem).remedy("keep one of them"));
            }
        }
        routes
    }

    /// All routes together, if nothing is wrong with what they match.
    fn all_routes(&self, routes: &[RouteSettings], problems: &mut Vec<Problem>) -> Option<Routes> {
        // A filter that could not be read is no filter that matches everything, nor is a route without a broker none.
        let unread = |path: &Path| path.key.starts_with("route.match.") && !self.values.contains_key(path);
        if self.layers.routes.is_empty()
            || routes.len() < self.layers.routes.len().min(outbox_core::MAX_ROUTES + 1)
            || self.layers.values.keys().any(unread)
        {
            return None;
        }
        let filters = routes.iter().map(|route| (&route.config.name, route.config.filter.clone()));
        let errors = match Routes::new(filters) {
            Ok(routes) => return Some(routes),
            Err(errors) => errors,
        };
        for error in errors {
            let place = error.route().and_then(|at| routes.get(at)).map(|route| route.place);
            let path = |key: &str| place.map_or_else(|| Path::new(None, "route"), |place| Path::of_route(place, key));
            let (path, remedy) = match &error {
                InvalidRoutes::Name { earlier, .. } => {
                    let earlier = routes.get(*earlier).map_or(*earlier, |route| route.place);
                    (path("name"), format!("give it another name than route[{earlier}]"))
                }
                InvalidRoutes::Unreachable { .. } => (
                    self.set_match(place).unwrap_or_else(|| path("match")),
                    "narrow what stands before it, or put it first".to_owned(),
                ),
                InvalidRoutes::Patterns { .. } => {
                    (self.set_match(place).unwrap_or_else(|| path("match")), "use `*`".to_owned())
                }
                _ => (path("match"), "lead several kinds of events into one route".to_owned()),
            };
            problems.push(self.problem(&path, error.to_string()).remedy(remedy));
        }
        None
    }

    /// The first key of a route's match that is set.
    fn set_match(&self, place: Option<usize>) -> Option<Path> {
        let own = |path: &&Path| path.route == place && path.key.starts_with("route.match.");
        self.values.keys().find(own).cloned()
    }

    /// A route's numbers, or those of `[relay]`: `[[route]]` over `[relay]` over the defaults, then checked together.
    fn config(&self, place: Option<usize>, problems: &mut Vec<Problem>) -> RouteConfig {
        let name = self.text(&Path::new(place, "route.name")).unwrap_or_default();
        let mut config = RouteConfig::new(name);
        config.filter = self.filter(place);
        if self.routed(place, "ordering").as_deref() == Some("none") {
            config.ordering = Ordering::None;
        }
        if self.routed(place, "on_dead").as_deref() == Some("block") {
            config.on_dead = OnDead::Block;
        }
        let mut wrong = Vec::new();
        for key in KEYS {
            let (keys::Default::Of(field) | keys::Default::Depends(field, _)) = key.default else { continue };
            let paths = places(key, place);
            let Some((path, (value, _))) = paths.iter().rev().find_map(|path| self.values.get_key_value(path)) else {
                continue;
            };
            if let Err(problem) = set_field(&mut config, field, value) {
                wrong.push(self.problem(path, problem));
            }
        }
        for error in config.validate().err().into_iter().flatten() {
            let is_own = |key: &&Key| key.name == error.field && key.place != Place::Table("database");
            let paths = KEYS.iter().find(is_own).map(|key| places(key, place)).unwrap_or_default();
            let set = paths.iter().rev().find(|path| self.values.contains_key(*path)).or(paths.first());
            let path = set.cloned().unwrap_or_else(|| relay(error.field));
            let path = if error.field == "name" { Path::new(place, "route.name") } else { path };
            wrong.push(self.problem(&path, error.problem));
        }
        for problem in wrong {
            // What stands in `[relay]` is said once, not for each route.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        config
    }

    fn filter(&self, place: Option<usize>) -> Filter {
        let patterns = |name: &str| -> Vec<Pattern> {
            match self.values.get(&Path::new(place, format!("route.match.{name}"))) {
                Some((Value::Patterns(patterns), _)) => patterns.clone(),
                _ => Vec::new(),
            }
        };
        let mut filter = Filter::default();
        filter.aggregate_type = patterns("aggregate_type");
        filter.event_type = patterns("event_type");
        filter
    }

    fn format(&self, place: usize, problems: &mut Vec<Problem>) -> Format {
        let path = |name: &str| Path::of_route(place, name);
        // What is not among the choices was refused by name.
        let format: Format = self.text(&path("format")).and_then(|text| text.parse().ok()).unwrap_or_default();
        let source = self.text(&path("cloudevents_source")).unwrap_or_default();
        if self.is_set(&path("cloudevents_source")) && !matches!(format, Format::CloudEvents(_)) {
            let problem = self.problem(&path("cloudevents_source"), "is of no use without CloudEvents");
            problems.push(problem.remedy("set `format = \"cloudevents\"`, or leave it out"));
        }
        format.clone().with_source(&source).unwrap_or_else(|error| {
            problems.push(self.problem(&path("cloudevents_source"), error.to_string()));
            format
        })
    }

    fn broker(&self, place: usize, format: &Format, problems: &mut Vec<Problem>) -> Option<Table> {
        let of_route = self.layers.brokers.keys().filter(|(route, _)| *route == place);
        let named: Vec<&str> = of_route.map(|(_, name)| name.as_str()).collect();
        let route = Path::new(Some(place), "route").to_string();
        let name = match named.as_slice() {
            [] => {
                let tables: Vec<String> = self.compiled_in.iter().map(|name| format!("`[route.{name}]`")).collect();
                let problem = Problem::new(route, "names no broker");
                problems.push(problem.remedy(format!("add one of the tables {}", refusal::joined(&tables))));
                return None;
            }
            [name] => *name,
            several => {
                let problem = format!("leads to {} at once", refusal::list(several));
                problems.push(Problem::new(route, problem).remedy("keep exactly one of these tables"));
                return None;
            }
        };
        let broker = brokers::find(name)?; // an unknown one was refused by name
        let (mut values, mut complete) = (BTreeMap::new(), true);
        for key in broker.keys {
            let path = Path::of_route(place, &format!("{name}.{}", key.name));
            if let (keys::Default::Required(example), false) = (key.default, self.is_set(&path)) {
                problems.push(self.missing(&path, example));
            }
            let value = match key.name {
                // Where Debezium's router sends events; its consumers listen there.
                "topic" if *format == Format::Debezium && !self.is_set(&path) => {
                    Some(Value::Text(DEBEZIUM_TOPIC.to_owned()))
                }
                _ => self.value(&path),
            };
            match value {
                Some(value) => drop(values.insert(key.name, value)),
                None => complete &= !matches!(key.default, keys::Default::Required(_)),
            }
        }
        complete.then(|| Table::new(broker, Path::of_route(place, name), values))
    }

    fn missing(&self, path: &Path, example: &str) -> Problem {
        let problem = Problem::new(path.to_string(), "is missing");
        let variable = if path.key == "route" { "OUTBOX__ROUTE__0__STDOUT={}".to_owned() } else { path.variable() };
        match self.has_file {
            true => problem.remedy(format!("for example {example}")),
            false => problem.remedy(format!(
                "there is no `{DEFAULT_FILE}` here; name a file with --config, or set {variable} (for example {example})"
            )),
        }
    }

    /// Whether the path or its `_file` form was set, even to something unusable.
    fn is_set(&self, path: &Path) -> bool {
        let file = path.beside(format!("{}_file", path.key));
        self.layers.values.contains_key(path) || self.layers.values.contains_key(&file)
    }

    /// The same problem with the place where its key was set.
    fn placed(&self, problem: Problem) -> Problem {
        let path = Path::parse(&problem.key);
        let table = path.key.rsplit_once('.').map(|(table, _)| path.beside(table));
        let file = path.beside(format!("{}_file", path.key));
        let set = [&path, &file].into_iter().find_map(|path| self.layers.values.get(path)).map(|found| &found.origin);
        // What is missing is told at its table.
        let broker = table.and_then(|table| Some((table.route?, table.key.strip_prefix("route.")?.to_owned())));
        let set = set.or_else(|| self.layers.brokers.get(&broker?));
        set.map_or(problem.clone(), |origin| problem.at(origin))
    }

    fn problem(&self, path: &Path, problem: impl Into<String>) -> Problem {
        let origin = self.values.get(path).map_or(&Origin::Default, |(_, origin)| origin);
        Problem::new(path.to_string(), problem).at(origin)
    }

    fn value(&self, path: &Path) -> Option<Value> {
        if let Some((value, _)) = self.values.get(path) {
            return Some(value.clone());
        }
        let (key, _) = keys::find(&path.key)?;
        key.parse(&key.default_text()?).ok()
    }

    fn text(&self, path: &Path) -> Option<String> {
        match self.value(path)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A text of a `[[route]]`, or of `[relay]`.
    fn routed(&self, place: Option<usize>, name: &str) -> Option<String> {
        let set = |path: Path| self.values.contains_key(&path).then(|| self.text(&path)).flatten();
        set(Path::new(place, format!("route.{name}"))).or_else(|| set(relay(name)))
    }
}

fn relay(name: &str) -> Path {
    Path::new(None, format!("relay.{name}"))
}

/// Where a key may stand for this route, the place that wins last.
fn places(key: &Key, route: Option<usize>) -> Vec<Path> {
    let path = |key: String| Path::new(route.filter(|_| key.starts_with("route.")), key);
    key.paths().into_iter().map(path).collect()
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
