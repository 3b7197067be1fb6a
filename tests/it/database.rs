//! A migrated database, on the shared server or on one of its own.

use outbox_pg::{SchemaName, migrate};
use outbox_testkit::services::postgres::{Options, Postgres, TestDb, test_database_or_skip};
use outbox_testkit::services::require_or_skip;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::task::block_in_place;

/// Where the rows live.
#[derive(Debug)]
enum Place {
    Shared(TestDb),
    Own(Postgres),
}

/// A database with the outbox's tables, gone with the value.
#[derive(Debug)]
pub(crate) struct Database {
    place: Place,
}

impl Database {
    /// A fresh database on the server that all tests share; `None` without one.
    pub(crate) async fn shared(name: &str) -> Option<Self> {
        let place = Place::Shared(block_in_place(|| test_database_or_skip(name))?);
        Some(Self { place }.migrated().await)
    }

    /// A server on which nobody else works: silent, and free to be stopped. `None` without binaries.
    pub(crate) async fn own() -> Option<Self> {
        Self::own_with(Options::default()).await
    }

    pub(crate) async fn own_with(options: Options) -> Option<Self> {
        let server = block_in_place(|| require_or_skip("pg", Postgres::start(options)))?;
        Some(Self { place: Place::Own(server) }.migrated().await)
    }

    async fn migrated(self) -> Self {
        migrate::up(&mut self.connect().await, &SchemaName::default()).await.unwrap();
        self
    }

    pub(crate) fn url(&self) -> String {
        match &self.place {
            Place::Shared(db) => db.url.clone(),
            Place::Own(server) => server.url(),
        }
    }

    /// The server of one's own.
    pub(crate) fn server(&mut self) -> &mut Postgres {
        match &mut self.place {
            Place::Own(server) => server,
            Place::Shared(_) => panic!("the shared server belongs to all tests"),
        }
    }

    /// Where its server listens: `host:port`.
    pub(crate) fn authority(&self) -> String {
        authority(&self.url()).to_owned()
    }

    /// From now on the rows are those of another server, to which this one's were replicated. Returns the old server.
    pub(crate) fn moves_to(&mut self, server: Postgres) -> Postgres {
        std::mem::replace(self.server(), server)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }

    /// Runs SQL with `psql`, as a producer without a driver would.
    pub(crate) fn psql(&self, sql: &str) -> String {
        let ran = block_in_place(|| match &self.place {
            Place::Shared(db) => db.psql(sql),
            Place::Own(server) => server.psql(sql),
        });
        ran.unwrap()
    }

    /// The one number that a query returns.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        number(&mut self.connect().await, sql).await
    }

    /// Rows of a table of the outbox.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM outbox.{table}")).await
    }
}

/// Host and port in a URL.
pub(crate) fn authority(url: &str) -> &str {
    let (_, rest) = url.split_once("://").expect("a URL");
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    rest[..end].rsplit('@').next().expect("rsplit gives one part at least")
}

/// The one number that a query returns.
pub(crate) async fn number(conn: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await.unwrap()
}

/// Runs statements without parameters.
pub(crate) async fn run(conn: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}
