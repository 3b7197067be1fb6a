//! The shared server of a test run and a fresh database per test.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Options, Postgres};
use crate::process::run;
use crate::{Result, ServiceError, require_or_skip};

/// The address of a running server on which the user may create databases.
pub const URL_VARIABLE: &str = "OUTBOX_TEST_PG_URL";

/// PostgreSQL cuts names after 63 bytes; the unique ending takes up to 24 of them.
const NAME_LIMIT: usize = 36;

/// The address of the shared server: [`URL_VARIABLE`], else one started for this process at the first call. Never stop
/// or reconfigure it.
///
/// # Errors
/// When the variable is not set and no server can be started here.
pub fn shared() -> Result<String> {
    static OWN: OnceLock<Result<Postgres>> = OnceLock::new();
    if let Ok(url) = std::env::var(URL_VARIABLE) {
        return Ok(url);
    }
    // A static is never dropped: the server's guard ends it with this process.
    OWN.get_or_init(|| Postgres::start(Options::default())).as_ref().map(Postgres::url).map_err(Clone::clone)
}

/// A database of one test. Dropped with its sessions when the test passes, kept for inspection when it panics (on a
/// server that outlives the test).
#[derive(Debug)]
pub struct TestDb {
    /// The address of the database, for sqlx, psql and libpq.
    pub url: String,
    /// The name of the database.
    pub name: String,
    server_url: String,
}

/// Creates an empty database with a unique name that starts with `name` on the [`shared`] server. Blocks for about
/// 0.1 s.
///
/// # Errors
/// When there is no server, or it refuses to create a database.
pub fn test_database(name: &str) -> Result<TestDb> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let server_url = shared()?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut stem = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    stem.truncate(NAME_LIMIT);
    // Pids come again while kept databases stay: the time makes the name unique.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = now.map_or(0, |since| since.as_micros() % 1_000_000_000_000);
    let name = format!("{stem}_{micros:x}_{:x}_{number}", std::process::id());
    psql(&super::binaries::any_psql(), &server_url, &format!("CREATE DATABASE \"{name}\""))?;
    Ok(TestDb { url: with_database(&server_url, &name)?, name, server_url })
}

/// [`test_database`] for a test that skips visibly without PostgreSQL, or fails where it is required.
pub fn test_database_or_skip(name: &str) -> Option<TestDb> {
    require_or_skip("pg", test_database(name))
}

impl TestDb {
    /// Runs SQL in this database with `psql`, as a producer without a driver would, and returns its bare output.
    ///
    /// # Errors
    /// When the server is away or refuses a statement.
    pub fn psql(&self, sql: &str) -> Result<String> {
        psql(&super::binaries::any_psql(), &self.url, sql)
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for inspection: database {}", self.name);
            return;
        }
        let sql = format!("DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)", self.name);
        if let Err(error) = psql(&super::binaries::any_psql(), &self.server_url, &sql) {
            eprintln!("database {} could not be dropped: {error}", self.name);
        }
    }
}

/// Runs SQL with `psql`: no driver is needed here, and tests see what a foreign producer sees.
pub(super) fn psql(program: &Path, url: &str, sql: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]);
    let output = run(command.env("PGCONNECT_TIMEOUT", "10").current_dir("/"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// The same address with another database.
fn with_database(url: &str, database: &str) -> Result<String> {
    let wrong = || ServiceError::new(format!("{URL_VARIABLE} must look like postgres://user@host:port/database"));
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (rest, query) = rest.split_once('?').map_or((rest, String::new()), |(rest, query)| (rest, format!("?{query}")));
    let authority = rest.split('/').next().filter(|authority| !authority.is_empty()).ok_or_else(wrong)?;
    Ok(format!("{scheme}://{authority}/{database}{query}"))
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_is_replaced_in_every_form_of_url() {
        let cases = [
            ("postgres://u:p@h:5432/a?sslmode=require", Some("postgres://u:p@h:5432/x?sslmode=require")),
            ("postgres://h", Some("postgres://h/x")),
            ("postgresql://u@h/", Some("postgresql://u@h/x")),
            ("host=h dbname=a", None),
        ];
        for (url, expected) in cases {
            assert_eq!(with_database(url, "x").ok().as_deref(), expected, "{url}");
        }
    }
}
