//! Where the database is and how it is reached.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use outbox_core::Routes;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use thiserror::Error;

use crate::SchemaName;
use crate::session::{PER_ROUTE, SHARED};

/// What [`PgConfig::max_connections`] may be: a route needs three, as [`least_connections`] says; more than a hundred
/// are of no use to a relay and belong to others.
pub const MAX_CONNECTIONS: RangeInclusive<u32> = 3..=100;

/// The connections without which these routes could not be kept apart: for each route one for its lease and two so
/// that reads and settles don't wait for each other, and one for the reader that looks for events that no route takes,
/// where there could be any.
#[must_use]
pub fn least_connections(routes: &Routes) -> u32 {
    let each = u32::try_from(routes.len()).unwrap_or(u32::MAX).saturating_mul(PER_ROUTE);
    each.saturating_add(u32::from(!routes.take_all()))
}

/// How many connections are opened at most when [`PgConfig::max_connections`] is not set: those, and two more for
/// whichever route has much to do. 5 for one route.
#[must_use]
pub fn default_connections(routes: &Routes) -> u32 {
    least_connections(routes).saturating_add(SHARED)
}

/// The name under which the sessions stand in `pg_stat_activity`, unless the URL sets `application_name`.
const APPLICATION_NAME: &str = "outbox-relay";

/// Where the database is and how it is reached.
///
/// # Encryption
/// The certificate and the host name are verified whenever the server is not on this machine: `sslmode` `allow`,
/// `prefer` (the default) and `require` count as `verify-full` there. `sslmode=disable` in the URL turns encryption
/// off, `verify-ca` leaves out the host name.
#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PgConfig {
    /// As `postgres://user:password@host:port/database?sslmode=…`. What it leaves out comes from the variables `PG…`
    /// and the password file that libpq reads too. A secret: hidden in `Debug` and in errors. No default.
    pub url: String,
    /// Where the [`Doorbell`](crate::Doorbell) listens: a direct connection to the same database when `url` leads through
    /// a pooler in transaction mode. Hidden as `url` is. Default: `url`.
    pub listen_url: Option<String>,
    /// The schema of the outbox's tables. Default `outbox`.
    pub schema: SchemaName,
    /// The most connections that one process opens, at least [`least_connections`]. Low: reads, settles and retries
    /// wait for each other. High: connections that others need. 3 to 100; `None` is [`default_connections`]. Default
    /// `None`.
    pub max_connections: Option<u32>,
    /// PEM file of the authorities that may sign the server's certificate; turns verification on for this machine too.
    /// Default: the system's authorities.
    pub ca_file: Option<PathBuf>,
}

/// Why a configuration can't be used. Never holds the URL.
#[derive(Debug, Error)]
#[non_exhaustive]
#[error("{field}: {problem}")]
pub struct PgConfigError {
    /// The field of [`PgConfig`].
    pub field: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl PgConfig {
    /// The defaults for the database at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Chooses the schema of the outbox's tables.
    #[must_use]
    pub fn with_schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    /// Chooses where the doorbell listens.
    #[must_use]
    pub fn with_listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Chooses the most connections that one process opens, 3 to 100.
    #[must_use]
    pub const fn with_max_connections(mut self, max_connections: u32) -> Self {
        self.max_connections = Some(max_connections);
        self
    }

    /// Chooses the authorities that may sign the server's certificate.
    #[must_use]
    pub fn with_ca_file(mut self, ca_file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(ca_file.into());
        self
    }

    /// Checks that [`max_connections`](Self::max_connections) is enough for these routes.
    ///
    /// # Errors
    /// [`PgConfigError`] with the number that would do.
    pub fn check_routes(&self, routes: &Routes) -> Result<(), PgConfigError> {
        let (least, count) = (least_connections(routes), routes.len());
        let too_few = self.max_connections.filter(|connections| *connections < least);
        let left_over = if routes.take_all() { "" } else { ", one to look for events that no route takes" };
        too_few.map_or(Ok(()), |connections| {
            let plural = if count == 1 { "route" } else { "routes" };
            let problem =
                format!("must be at least {least} for {count} {plural} (three for each{left_over}), got {connections}");
            Err(PgConfigError { field: "max_connections", problem })
        })
    }

    /// Checks everything and makes what the driver needs. Connects to nothing.
    ///
    /// The result prints the password in its `Debug`: never log it.
    ///
    /// # Errors
    /// [`PgConfigError`] with the field that is wrong.
    pub fn connect_options(&self) -> Result<PgConnectOptions, PgConfigError> {
        if let Some(connections) = self.max_connections.filter(|connections| !MAX_CONNECTIONS.contains(connections)) {
            let (low, high) = (MAX_CONNECTIONS.start(), MAX_CONNECTIONS.end());
            let problem = format!("must be {low} to {high}, got {connections}");
            return Err(PgConfigError { field: "max_connections", problem });
        }
        self.options("url", &self.url)
    }

    /// As [`connect_options`](Self::connect_options), for the connection that listens.
    ///
    /// # Errors
    /// [`PgConfigError`] with the field that is wrong.
    pub fn listen_options(&self) -> Result<PgConnectOptions, PgConfigError> {
        match &self.listen_url {
            Some(url) => self.options("listen_url", url),
            None => self.options("url", &self.url),
        }
    }

    fn options(&self, field: &'static str, url: &str) -> Result<PgConnectOptions, PgConfigError> {
        let wrong = |why: &str| PgConfigError { field, problem: format!("{why}; {EXAMPLE}") };
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(wrong("does not begin with postgres://"));
        }
        if !outbox_core::is_percent_encoded(&self.url) {
            return Err(wrong("has a `%` that is not followed by two hexadecimal digits"));
        }
        if let Some(name) = unknown_parameter(&self.url) {
            let known = PARAMETERS.join(", ");
            let problem = format!("has the unknown parameter `{name}`; those are {known} and options[name]");
            return Err(PgConfigError { field: "url", problem });
        }
        // The driver's error can hold parts of the URL, and with them the password.
        let mut options = PgConnectOptions::from_str(url).map_err(|_| wrong("can't be read"))?;
        if !names_sslmode(url) {
            // Otherwise the variable PGSSLMODE, meant for other programs, could turn verification off.
            options = options.ssl_mode(PgSslMode::Prefer);
        }
        if options.get_application_name().is_none() {
            options = options.application_name(APPLICATION_NAME);
        }
        let here = options.get_socket().is_some() || is_loopback(options.get_host());
        let unverified = matches!(options.get_ssl_mode(), PgSslMode::Allow | PgSslMode::Prefer | PgSslMode::Require);
        if unverified && (!here || self.ca_file.is_some()) {
            options = options.ssl_mode(PgSslMode::VerifyFull);
        }
        if let Some(file) = &self.ca_file {
            options = options.ssl_root_cert(file);
        }
        // The driver would log the text of each statement that takes a second; what takes too long is told by us.
        Ok(options.disable_statement_logging())
    }
}

const EXAMPLE: &str = "it must look like postgres://user:password@host:5432/database, with special characters \
                       percent-encoded";

fn names_sslmode(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|pair| pair.starts_with("sslmode=") || pair.starts_with("ssl-mode="))
}

/// What the driver understands behind the `?` of a URL. Whatever else stands there it would pass over, and log with its
/// value, such as a misspelt password.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// The longest name that is repeated to the operator.
const MAX_SHOWN_NAME: usize = 40;

/// The name of the first parameter that the driver does not know. Of a pair without `=`, and of a name that is none, only
/// that it is there: it may be a piece of a password.
fn unknown_parameter(url: &str) -> Option<&str> {
    let query = url.split_once('#').map_or(url, |(url, _)| url).split_once('?')?.1;
    let is_option = |name: &str| name.strip_prefix("options[").is_some_and(|rest| rest.ends_with(']'));
    let is_name = |name: &str| {
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        letters && (1..=MAX_SHOWN_NAME).contains(&name.len())
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut names = pairs.map(|pair| pair.split_once('=').map_or("…", |(name, _)| name));
    let unknown = names.find(|name| !PARAMETERS.contains(name) && !is_option(name))?;
    Some(if is_name(unknown) { unknown } else { "…" })
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.starts_with('/') || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Default for PgConfig {
    fn default() -> Self {
        let (url, schema) = (String::new(), SchemaName::default());
        Self { url, listen_url: None, schema, max_connections: None, ca_file: None }
    }
}

/// Hides the URL: it holds the password.
impl fmt::Debug for PgConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgConfig")
            .field("schema", &self.schema)
            .field("max_connections", &self.max_connections)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_is_verified_beyond_this_machine() {
        let check = |url: &str, ca_file: Option<&str>, expected: &str| {
            let mut config = PgConfig::new(url);
            config.ca_file = ca_file.map(PathBuf::from);
            let options = config.connect_options().unwrap();
            assert_eq!(format!("{:?}", options.get_ssl_mode()), expected, "{url}");
        };
        check("postgres://u@localhost/a", None, "Prefer");
        check("postgres://u@127.0.0.1:1/a", None, "Prefer");
        check("postgres://u@[::1]/a", None, "Prefer");
        check("postgres://u@localhost/a?host=/run/postgresql", None, "Prefer");
        check("postgres://u@localhost/a", Some("ca.pem"), "VerifyFull");
        check("postgres://u@db.example/a", None, "VerifyFull");
        check("postgres://u@db.example/a?sslmode=require", None, "VerifyFull");
        check("postgres://u@db.example/a?sslmode=verify-ca", None, "VerifyCa");
        check("postgres://u@db.example/a?sslmode=disable", None, "Disable");
    }

    #[test]
    fn no_secret_is_shown() {
        let config = PgConfig::new("postgres://u:hunter2@h/a");
        assert!(!format!("{config:?}").contains("hunter2"));
        for url in
            ["postgres://u:hunter2@h:port/a", "mysql://u:hunter2@h/a", "hunter2", "postgres://u:hunter2@h/a?sslmode=x"]
        {
            let error = PgConfig::new(url).connect_options().unwrap_err();
            assert_eq!(error.field, "url");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let error = PgConfig::new("postgres://h/a").with_max_connections(2).connect_options().unwrap_err();
        assert_eq!(error.to_string(), "max_connections: must be 3 to 100, got 2");
    }

    #[test]
    fn an_unknown_parameter_is_refused_by_name_and_its_value_never_shown() {
        let problem = |query: &str| {
            let error = PgConfig::new(format!("postgres://u:geheim@h/a?{query}")).connect_options().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("geheim"), "{error}");
            error.to_string()
        };
        assert!(problem("pasword=geheim").starts_with("url: has the unknown parameter `pasword`; those are sslmode,"));
        assert!(problem("sslmode=disable&ssl=geheim").contains("`ssl`"));
        // A piece of a password with special characters of its own.
        assert!(problem("geheim").contains("`…`") && problem("geheim@h=1").contains("`…`"));
        for fits in ["", "sslmode=disable&host=/run", "options[search_path]=x&options=-c%20a=b", "user=a&password=b&"] {
            PgConfig::new(format!("postgres://h/a?{fits}")).connect_options().unwrap();
        }
        let stray = PgConfig::new("postgres://u:geheim%zz@h/a").connect_options().unwrap_err();
        assert!(stray.problem.starts_with("has a `%`") && !stray.problem.contains("geheim"), "{stray}");
    }

    #[test]
    fn each_route_has_connections_of_its_own() {
        let filter = |name: &str| outbox_core::Filter::default().aggregate_types([name]).unwrap();
        let one = Routes::everything("a");
        let some = Routes::new([("a", filter("x")), ("b", filter("y"))]).unwrap();
        let all = Routes::new([("a", filter("x")), ("b", outbox_core::Filter::default())]).unwrap();
        let counts = [&one, &all, &some].map(|routes| (least_connections(routes), default_connections(routes)));
        assert_eq!(counts, [(3, 5), (6, 8), (7, 9)]);
        let config = PgConfig::new("postgres://h/a");
        config.check_routes(&some).unwrap();
        config.clone().with_max_connections(3).check_routes(&one).unwrap();
        config.clone().with_max_connections(7).check_routes(&some).unwrap();
        let error = config.with_max_connections(6).check_routes(&some).unwrap_err();
        let expected =
            "must be at least 7 for 2 routes (three for each, one to look for events that no route takes), got 6";
        assert_eq!((error.field, error.problem.as_str()), ("max_connections", expected));
    }
}
