//! A database for one test.

use outbox_core::{NewEvent, Payload};
use outbox_pg::{SchemaName, migrate};
use outbox_testkit::services::postgres::{TestDb, test_database_or_skip};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// An empty database that is dropped at the end of a test that passes.
pub(crate) struct Database(TestDb);

impl Database {
    /// `None` when there is no server and none is required.
    pub(crate) fn empty(name: &str) -> Option<Self> {
        test_database_or_skip(name).map(Self)
    }

    /// With the tables in schema `outbox`.
    pub(crate) async fn migrated(name: &str) -> Option<Self> {
        let database = Self::empty(name)?;
        migrate::up(&mut database.connect().await, &SchemaName::default()).await.unwrap();
        Some(database)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.0.url).await.unwrap()
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.url
    }

    /// The name, unique on the server: usable in the names of things that belong to the whole server.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }
}

/// Runs statements without parameters.
pub(crate) async fn run(conn: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
}

/// The one number that a query returns.
pub(crate) async fn number(conn: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await.unwrap()
}

/// Event types in the order of delivery.
pub(crate) async fn event_types(conn: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar("SELECT event_type FROM outbox.events ORDER BY id").fetch_all(conn).await.unwrap()
}

/// An event of order 1 with this event type.
pub(crate) fn event(event_type: &str) -> NewEvent {
    NewEvent::new("order", "1", event_type, Payload::raw_json("{}"))
}

/// SQLSTATE of a refusal.
pub(crate) fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned()).unwrap_or_default()
}
