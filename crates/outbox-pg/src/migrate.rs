//! Creates the outbox's tables, keeps them up to date, and takes them away again.
//!
//! All that is pending is applied in one transaction: it is there in whole or not at all. Any number of programs may
//! do it at once, also through a pooler: they queue up on a lock that ends with the transaction.
//!
//! The bookkeeping table `_sqlx_migrations` stands in the outbox's schema and is laid out as that of sqlx.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sqlx::migrate::{Migration, MigrationType};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, SqlSafeStr, Transaction};
use thiserror::Error;

use crate::SchemaName;

/// How long a runner waits for other runners: far longer than a migration takes.
const WAIT_FOR_RUNNERS: &str = "60s";

/// How long one statement waits for a table's lock. Producers queue up behind it, so it gives up soon.
const WAIT_FOR_TABLE: &str = "5s";

const BEGIN: &str = include_str!("sql/migrate_begin.sql");
const LOCK: &str = include_str!("sql/migrate_lock.sql");
const SETTINGS: &str = include_str!("sql/migrate_settings.sql");
const FOUND: &str = include_str!("sql/migrate_found.sql");
const CREATE_SCHEMA: &str = include_str!("sql/migrate_schema.sql");
const CREATE_TABLE: &str = include_str!("sql/migrate_table.sql");
const APPLIED: &str = include_str!("sql/migrate_applied.sql");
const RECORD: &str = include_str!("sql/migrate_record.sql");
const FORGET: &str = include_str!("sql/migrate_forget.sql");
const DOORBELL_READY: &str = include_str!("sql/doorbell_ready.sql");
const DOORBELL_ON: &str = include_str!("sql/doorbell_on.sql");
const DOORBELL_OFF: &str = include_str!("sql/doorbell_off.sql");
const ROLES: &str = include_str!("sql/roles.sql");

/// One step of the schema's life, with the texts that do and undo it.
struct Step {
    version: i64,
    name: &'static str,
    up: &'static str,
    down: &'static str,
}

/// All steps, oldest first. A test compares this list with the directory.
const STEPS: &[Step] = &[
    Step {
        version: 20_261_130_000_001,
        name: "outbox",
        up: include_str!("../migrations/20261130000001_outbox.up.sql"),
        down: include_str!("../migrations/20261130000001_outbox.down.sql"),
    },
    Step {
        version: 20_261_201_000_001,
        name: "doorbell",
        up: include_str!("../migrations/20261201000001_doorbell.up.sql"),
        down: include_str!("../migrations/20261201000001_doorbell.down.sql"),
    },
];

impl Step {
    /// The checksum that sqlx would keep for this step.
    fn checksum(&self) -> Vec<u8> {
        let up = self.up.into_sql_str();
        Migration::new(self.version, self.name.into(), MigrationType::ReversibleUp, up, false).checksum.into_owned()
    }
}

/// Which migrations a schema has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationStatus {
    /// Versions that are applied, oldest first.
    pub applied: Vec<i64>,
    /// Versions that this program knows and the schema lacks, oldest first.
    pub pending: Vec<i64>,
    /// Versions that the schema has and this program does not know: it is older than the schema.
    pub unknown: Vec<i64>,
}

impl MigrationStatus {
    /// Whether the schema has everything that this program needs.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Why the schema could not be changed. Nothing was changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The schema is newer than this program.
    #[error("the schema has migration {version}, which this program does not know: use a newer program")]
    Unknown {
        /// The version.
        version: i64,
    },
    /// An applied migration differs from the one that this program has.
    #[error("migration {version} was applied with another text than this program has")]
    Changed {
        /// The version.
        version: i64,
    },
    /// Another tool began this migration and did not finish it.
    #[error("migration {version} was begun by another tool and not finished: mend it and the table _sqlx_migrations")]
    Unfinished {
        /// The version.
        version: i64,
    },
    /// The connection is inside a transaction of the caller.
    #[error("the connection is already inside a transaction")]
    InTransaction,
    /// The schema is not there and could not be created.
    #[error(
        "schema \"{schema}\" could not be created; let an administrator create it, or grant CREATE on the database"
    )]
    CreateSchema {
        /// The schema.
        schema: String,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// A migration failed.
    #[error("migration {version} failed")]
    Step {
        /// The version.
        version: i64,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// Something else failed at the database.
    #[error("the migrations could not be run")]
    Database(#[from] sqlx::Error),
}

/// Applies all pending migrations, creating the schema if it is missing. Returns the versions that it applied.
///
/// Run again it does nothing. The connection must not be inside a transaction.
///
/// # Errors
/// [`MigrateError`]; nothing was changed.
///
/// # Cancel safety
/// Dropped half way, nothing was changed or, if the commit was already sent, everything. Close the connection then.
pub async fn up(conn: &mut PgConnection, schema: &SchemaName) -> Result<Vec<i64>, MigrateError> {
    let mut tx = begin(conn, schema).await?;
    let (has_schema, has_table) = found(&mut tx, schema).await?;
    if !has_schema {
        let created = sqlx::raw_sql(AssertSqlSafe(schema.sql(CREATE_SCHEMA))).execute(&mut *tx).await;
        created.map_err(|source| MigrateError::CreateSchema { schema: schema.to_string(), source })?;
    }
    if !has_table {
        sqlx::raw_sql(AssertSqlSafe(schema.sql(CREATE_TABLE))).execute(&mut *tx).await?;
    }
    let applied = applied(&mut tx, schema).await?;
    verify(&applied)?;
    let mut done = Vec::new();
    for step in STEPS.iter().filter(|step| !applied.contains_key(&step.version)) {
        let version = step.version;
        let ran = sqlx::raw_sql(step.up).execute(&mut *tx).await;
        ran.map_err(|source| MigrateError::Step { version, source })?;
        let record = sqlx::query(AssertSqlSafe(schema.sql(RECORD))).persistent(false);
        record.bind(version).bind(step.name).bind(step.checksum()).execute(&mut *tx).await?;
        done.push(version);
    }
    tx.commit().await?;
    Ok(done)
}

/// Takes back all migrations above `target`, newest first; 0 takes back everything. Returns what it took back.
///
/// **Events that are not delivered yet are deleted with their tables.** The schema itself stays.
///
/// # Errors
/// [`MigrateError`]; nothing was changed.
///
/// # Cancel safety
/// As [`up`].
pub async fn down(conn: &mut PgConnection, schema: &SchemaName, target: i64) -> Result<Vec<i64>, MigrateError> {
    let mut tx = begin(conn, schema).await?;
    let mut done = Vec::new();
    if found(&mut tx, schema).await?.1 {
        let applied = applied(&mut tx, schema).await?;
        verify(&applied)?;
        let above = |step: &&Step| step.version > target && applied.contains_key(&step.version);
        for step in STEPS.iter().rev().filter(above) {
            let version = step.version;
            let ran = sqlx::raw_sql(step.down).execute(&mut *tx).await;
            ran.map_err(|source| MigrateError::Step { version, source })?;
            let forget = sqlx::query(AssertSqlSafe(schema.sql(FORGET))).persistent(false);
            forget.bind(version).execute(&mut *tx).await?;
            done.push(version);
        }
    }
    tx.commit().await?;
    Ok(done)
}

/// Sees to it that the trigger of the doorbell is there, or that it is not. Tells whether it had to be changed.
///
/// Without it relays that want to be rung poll. A transaction that rings can't be prepared (`PREPARE TRANSACTION`).
///
/// # Errors
/// [`MigrateError`]; nothing was changed.
///
/// # Cancel safety
/// As [`up`].
pub async fn doorbell(conn: &mut PgConnection, schema: &SchemaName, wanted: bool) -> Result<bool, MigrateError> {
    let mut tx = begin(conn, schema).await?;
    let ready = sqlx::query_as(DOORBELL_READY).persistent(false).bind(schema.as_str());
    let ready: Option<(i64, bool)> = ready.fetch_optional(&mut *tx).await?;
    let change = ready.is_some_and(|(_, rings)| rings != wanted);
    if change {
        let sql = schema.sql(if wanted { DOORBELL_ON } else { DOORBELL_OFF });
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(change)
}

/// The statement that takes the doorbell away, for administrators who run [`sql`] themselves.
#[must_use]
pub fn no_doorbell_sql(schema: &SchemaName) -> String {
    schema.sql(DOORBELL_OFF).as_ref().to_owned()
}

/// Tells which migrations the schema has. Changes nothing and takes no lock.
///
/// # Errors
/// What the database said, for example that the bookkeeping table may not be read.
pub async fn status(conn: &mut PgConnection, schema: &SchemaName) -> Result<MigrationStatus, sqlx::Error> {
    let (_, has_table) = found(conn, schema).await?;
    let rows = if has_table { applied(conn, schema).await? } else { Applied::new() };
    let finished: Vec<i64> = rows.iter().filter(|(_, row)| row.success).map(|(version, _)| *version).collect();
    let known = |version: &i64| STEPS.iter().any(|step| step.version == *version);
    Ok(MigrationStatus {
        pending: STEPS.iter().map(|step| step.version).filter(|version| !finished.contains(version)).collect(),
        unknown: finished.iter().copied().filter(|version| !known(version)).collect(),
        applied: finished,
    })
}

/// The whole text of [`up`] for an empty database, for administrators who run SQL themselves.
///
/// Run a second time it fails at its first step and changes nothing.
#[must_use]
pub fn sql(schema: &SchemaName) -> String {
    let mut text = String::from("BEGIN;\n");
    // Writing to a String can't fail.
    let _ = writeln!(text, "CREATE SCHEMA IF NOT EXISTS {};", schema.quoted());
    let _ = writeln!(text, "SET LOCAL search_path TO {};", search_path(schema));
    let _ = writeln!(text, "{};", schema.sql(CREATE_TABLE).trim_end());
    for step in STEPS {
        let checksum = step.checksum().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        // tidy: this is text for a DBA to read and run, not a statement that is sent
        let _ = write!(
            text,
            "\n-- Migration {version} {name}\n\
             INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)\n  \
             VALUES ({version}, '{name}', true, decode('{checksum}', 'hex'), -1);\n{up}",
            version = step.version,
            name = step.name,
            up = step.up,
        );
    }
    text.push_str("COMMIT;\n");
    text
}

/// Statements that create the roles `outbox_producer`, `outbox_relay` and `outbox_reader` and give each the rights
/// that it needs and no more. To be run after the migrations, by an administrator.
#[must_use]
pub fn roles_sql(schema: &SchemaName) -> String {
    schema.sql(ROLES).as_ref().to_owned()
}

struct AppliedRow {
    checksum: Vec<u8>,
    success: bool,
}

type Applied = BTreeMap<i64, AppliedRow>;

async fn begin<'c>(conn: &'c mut PgConnection, schema: &SchemaName) -> Result<Transaction<'c, Postgres>, MigrateError> {
    let mut tx = conn.begin_with(BEGIN).await.map_err(|error| match error {
        sqlx::Error::InvalidSavePointStatement => MigrateError::InTransaction,
        other => MigrateError::Database(other),
    })?;
    let settings = |wait: &'static str| sqlx::query(SETTINGS).persistent(false).bind(search_path(schema)).bind(wait);
    settings(WAIT_FOR_RUNNERS).execute(&mut *tx).await?;
    sqlx::query(LOCK).persistent(false).bind(schema.as_str()).execute(&mut *tx).await?;
    settings(WAIT_FOR_TABLE).execute(&mut *tx).await?;
    Ok(tx)
}

fn search_path(schema: &SchemaName) -> String {
    format!("{}, pg_temp", schema.quoted())
}

async fn found(conn: &mut PgConnection, schema: &SchemaName) -> Result<(bool, bool), sqlx::Error> {
    sqlx::query_as(FOUND).persistent(false).bind(schema.as_str()).fetch_one(conn).await
}

async fn applied(conn: &mut PgConnection, schema: &SchemaName) -> Result<Applied, sqlx::Error> {
    let query = sqlx::query_as::<_, (i64, Vec<u8>, bool)>(AssertSqlSafe(schema.sql(APPLIED))).persistent(false);
    let rows = query.fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(version, checksum, success)| (version, AppliedRow { checksum, success })).collect())
}

fn verify(applied: &Applied) -> Result<(), MigrateError> {
    for (&version, row) in applied {
        let step = STEPS.iter().find(|step| step.version == version).ok_or(MigrateError::Unknown { version })?;
        if !row.success {
            return Err(MigrateError::Unfinished { version });
        }
        if row.checksum != step.checksum() {
            return Err(MigrateError::Changed { version });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_file_of_the_directory() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".sql"))
            .collect();
        files.sort();
        let listed: Vec<String> = STEPS
            .iter()
            .flat_map(|step| ["down", "up"].map(|way| format!("{}_{}.{way}.sql", step.version, step.name)))
            .collect();
        assert_eq!(files, listed);
        assert!(STEPS.is_sorted_by_key(|step| step.version));
    }
}
