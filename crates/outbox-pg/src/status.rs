//! What the outbox holds and who works on it: a few cheap queries for people and gauges.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use thiserror::Error;
use uuid::Uuid;

use crate::SchemaName;
use crate::migrate::{self, MigrationStatus};

/// Up to here is counted, beyond it estimated or cut: a count of a backlog of millions would be load by itself.
pub const COUNT_LIMIT: u64 = 10_000;

/// A number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub rows: u64,
    /// Counted, not estimated and not cut off at [`COUNT_LIMIT`].
    pub exact: bool,
}

/// Events that are committed and not yet confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// How many; beyond [`COUNT_LIMIT`] the server's estimate.
    pub count: Count,
    /// The row of the first.
    pub first: Option<i64>,
    /// How long ago the transaction that wrote the first of them began, by the database's clock. `None` when there is
    /// none.
    pub oldest_age: Option<Duration>,
}

/// One owner's share of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteOwner {
    /// The route.
    pub route: String,
    /// The run of a relay that owns them; `None` for buckets that nobody owns.
    pub owner: Option<Uuid>,
    /// The relay's label, while its row is there.
    pub name: Option<String>,
    /// The relay's version, while its row is there.
    pub version: Option<String>,
    /// How many of the 64 buckets.
    pub buckets: u64,
    /// Time until its lease ends, by the database's clock; zero when it has ended, `None` without a relay.
    pub lease_left: Option<Duration>,
    /// The most owners in a row that ended without a release.
    pub deaths: u32,
}

/// What the outbox holds and who works on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The version of the tables.
    pub migrations: MigrationStatus,
    /// Who owns which route.
    pub owners: Vec<RouteOwner>,
    /// Events that are committed and not yet confirmed.
    pub pending: Pending,
    /// Events that have failed and wait for their next attempt.
    pub retries: Count,
    /// Events that wait for an operator.
    pub blocked: Count,
    /// Events that were given up.
    pub dead_letters: Count,
}

/// Why the status could not be told.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The schema lacks migrations, so the rest can't be asked.
    #[error("schema \"{schema}\" lacks migrations {pending:?}: run the migrations")]
    Unprepared {
        /// The schema.
        schema: String,
        /// What is missing.
        pending: Vec<i64>,
    },
    /// The role lacks a right.
    #[error("this role may not read {object}: {grant}")]
    Denied {
        /// The table.
        object: &'static str,
        /// The statement that would help.
        grant: String,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// The database refused or did not answer.
    #[error("the status could not be read")]
    Database(#[from] sqlx::Error),
}

/// Tells what the outbox holds. Reads at most some 10 000 rows of each table and takes no lock that others notice.
///
/// # Errors
/// [`StatusError`].
pub async fn status(conn: &mut PgConnection, schema: &SchemaName) -> Result<Status, StatusError> {
    let asked = migrate::status(conn, schema).await;
    let migrations = asked.map_err(|error| denied(error, schema, "_sqlx_migrations"))?;
    if !migrations.is_current() {
        return Err(StatusError::Unprepared { schema: schema.to_string(), pending: migrations.pending });
    }
    let owners = owners(conn, schema).await.map_err(|error| denied(error, schema, "buckets"))?;
    let pending = pending(conn, schema, 0).await.map_err(|error| denied(error, schema, "events"))?;
    let (retries, blocked) = retries(conn, schema).await.map_err(|error| denied(error, schema, "retries"))?;
    let dead_letters = dead_letters(conn, schema).await.map_err(|error| denied(error, schema, "dead_letters"))?;
    Ok(Status { migrations, owners, pending, retries, blocked, dead_letters })
}

/// Counts the events that are not yet confirmed, above an id: give a relay's `low` for a gauge, so that rows that are
/// long deleted but not yet vacuumed are not walked over; 0 for all.
///
/// # Errors
/// What the database said; that events is not there is `RowNotFound` or SQLSTATE 42P01.
pub async fn pending(conn: &mut PgConnection, schema: &SchemaName, above: i64) -> Result<Pending, sqlx::Error> {
    let query = sqlx::query_as(AssertSqlSafe(schema.sql(include_str!("sql/status_pending.sql")))).persistent(false);
    let (counted, estimated, first, oldest): (i64, i64, Option<i64>, Option<i64>) =
        query.bind(above).bind(COUNT_LIMIT.cast_signed()).bind(schema.as_str()).fetch_one(conn).await?;
    let counted = capped(counted);
    let rows = if counted.exact { counted.rows } else { unsigned(estimated) };
    Ok(Pending { count: Count { rows, exact: counted.exact }, first, oldest_age: oldest.map(micros) })
}

/// Counts the events that have failed and wait, and those of them that wait for an operator, up to [`COUNT_LIMIT`].
///
/// # Errors
/// What the database said.
pub async fn retries(conn: &mut PgConnection, schema: &SchemaName) -> Result<(Count, Count), sqlx::Error> {
    let query = sqlx::query_as(AssertSqlSafe(schema.sql(include_str!("sql/status_retries.sql")))).persistent(false);
    let (retries, blocked): (i64, i64) = query.bind(COUNT_LIMIT.cast_signed()).fetch_one(conn).await?;
    let retries = capped(retries);
    // When the rows were cut off, how many of them are blocked is cut off too.
    Ok((retries, Count { rows: capped(blocked).rows, exact: retries.exact }))
}

/// Counts the dead letters, up to [`COUNT_LIMIT`].
///
/// # Errors
/// What the database said.
pub async fn dead_letters(conn: &mut PgConnection, schema: &SchemaName) -> Result<Count, sqlx::Error> {
    let query = sqlx::query_scalar(AssertSqlSafe(schema.sql(include_str!("sql/status_dead.sql")))).persistent(false);
    Ok(capped(query.bind(COUNT_LIMIT.cast_signed()).fetch_one(conn).await?))
}

type OwnerRow = (String, Option<Uuid>, Option<String>, Option<String>, i64, Option<i64>, i32);

async fn owners(conn: &mut PgConnection, schema: &SchemaName) -> Result<Vec<RouteOwner>, sqlx::Error> {
    let query = sqlx::query_as(AssertSqlSafe(schema.sql(include_str!("sql/status_owners.sql")))).persistent(false);
    let rows: Vec<OwnerRow> = query.fetch_all(conn).await?;
    let owner = |(route, owner, name, version, buckets, lease_left, deaths): OwnerRow| RouteOwner {
        route,
        owner,
        name,
        version,
        buckets: unsigned(buckets),
        lease_left: lease_left.map(micros),
        deaths: u32::try_from(deaths).unwrap_or(0),
    };
    Ok(rows.into_iter().map(owner).collect())
}

fn denied(source: sqlx::Error, schema: &SchemaName, object: &'static str) -> StatusError {
    if source.as_database_error().and_then(|error| error.code()).as_deref() == Some("42501") {
        // tidy: a sentence for the operator, not a statement that is sent
        let grant =
            format!("GRANT outbox_reader TO it, or USAGE ON SCHEMA {0} and SELECT ON {0}.{object}", schema.quoted());
        StatusError::Denied { object, grant, source }
    } else {
        StatusError::Database(source)
    }
}

fn capped(rows: i64) -> Count {
    let rows = unsigned(rows);
    Count { rows: rows.min(COUNT_LIMIT), exact: rows <= COUNT_LIMIT }
}

fn micros(micros: i64) -> Duration {
    Duration::from_micros(unsigned(micros))
}

/// What is below zero (a lease that has ended) counts as zero.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
