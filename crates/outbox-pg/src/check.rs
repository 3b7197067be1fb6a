//! Whether a database is fit to hold an outbox: facts asked from it, and what follows from them.

use std::fmt;

use sqlx::PgConnection;

use crate::SchemaName;
use crate::migrate::{self, MigrationStatus};

/// The server versions that are supported, by major number.
pub const SERVER_VERSIONS: std::ops::RangeInclusive<u32> = 14..=18;

/// What the database says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// For example 15.
    pub server_major: u32,
    /// The server replays another's changes.
    pub in_recovery: bool,
    /// This session's transactions are read only.
    pub read_only: bool,
    /// The setting `synchronous_commit` of this session.
    pub synchronous_commit: String,
    /// The database's encoding, for example `UTF8`.
    pub encoding: String,
    /// The setting `fsync`.
    pub fsync: bool,
    /// The role that asked, quoted where needed.
    pub role: String,
    /// The database.
    pub database: String,
    /// The schema, quoted.
    pub schema: String,
    /// The version of the tables; `None` when the role may not see it.
    pub migrations: Option<MigrationStatus>,
    /// What is known about the tables; `None` when they are not there.
    pub table: Option<TableFacts>,
    /// Rights that a relay needs and this role lacks.
    pub missing_rights: Vec<MissingRight>,
}

/// What the database says about the table `events` and its neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableFacts {
    /// Step of the sequence of ids; `None` when there is no such sequence.
    pub sequence_increment: Option<i64>,
    /// How many ids one session takes ahead.
    pub sequence_cache: Option<i64>,
    /// Tables whose row-level security applies to this role.
    pub row_security: Vec<String>,
    /// A logical subscription writes into `events`.
    pub is_subscriber: bool,
    /// Whether an insert rings for a sleeping relay.
    pub has_doorbell: bool,
}

/// A right that a relay needs and the role lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRight {
    /// The right, for example `SELECT`.
    pub right: String,
    /// `SCHEMA`, `TABLE` or `SEQUENCE`, and the quoted name.
    pub object: String,
    /// The statement that gives it.
    pub grant: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, with less than is promised.
    Warning,
    /// A relay can't or must not run.
    Error,
}

/// Something that an operator should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is and what to do, on one line.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}", self.text)
    }
}

/// Asks a database whether it is fit. Reads the catalog only, so it needs no rights but to connect.
///
/// # Errors
/// What the database said, for example that it is not PostgreSQL.
pub async fn facts(conn: &mut PgConnection, schema: &SchemaName) -> Result<Facts, sqlx::Error> {
    let server = sqlx::query_as(include_str!("sql/check_server.sql")).persistent(false);
    let (version, in_recovery, read_only, synchronous_commit, fsync, role, database, encoding): ServerRow =
        server.fetch_one(&mut *conn).await?;
    let table = sqlx::query_as(include_str!("sql/check_table.sql")).persistent(false).bind(schema.as_str());
    let table: Option<TableRow> = table.fetch_optional(&mut *conn).await?;
    let rights = sqlx::query_as(include_str!("sql/check_rights.sql")).persistent(false).bind(schema.as_str());
    let rights: Vec<(String, String, Option<String>)> = rights.fetch_all(&mut *conn).await?;
    let missing = |(right, kind, name): (String, String, Option<String>)| {
        let name = name.map_or_else(|| schema.quoted().to_owned(), |name| format!("{}.{name}", schema.quoted()));
        let object = format!("{kind} {name}");
        let grant = format!("GRANT {right} ON {object} TO {role};");
        MissingRight { right, object, grant }
    };
    let missing_rights: Vec<MissingRight> = rights.into_iter().map(missing).collect();
    // Only a role that may read the bookkeeping is asked for it: a refusal would fail the caller's transaction.
    let hidden = |right: &MissingRight| right.right == "USAGE" || right.object.ends_with("._sqlx_migrations");
    let visible = !missing_rights.iter().any(hidden);
    let migrations = if visible { Some(migrate::status(conn, schema).await?) } else { None };
    Ok(Facts {
        server_major: u32::try_from(version / 10_000).unwrap_or(0),
        in_recovery,
        read_only,
        synchronous_commit,
        encoding,
        fsync,
        role,
        database,
        schema: schema.quoted().to_owned(),
        migrations,
        table: table.map(|(sequence_increment, sequence_cache, row_security, is_subscriber, has_doorbell)| {
            TableFacts { sequence_increment, sequence_cache, row_security, is_subscriber, has_doorbell }
        }),
        missing_rights,
    })
}

type ServerRow = (i32, bool, bool, String, bool, String, String, String);
type TableRow = (Option<i64>, Option<i64>, Vec<String>, bool, bool);

impl Facts {
    /// What follows from the facts, the worst first. Empty means fit.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut add = |severity, text: String| found.push(Finding { severity, text });
        let (error, warning) = (Severity::Error, Severity::Warning);
        let (low, high) = (SERVER_VERSIONS.start(), SERVER_VERSIONS.end());
        let major = self.server_major;
        if major < *low {
            add(error, format!("PostgreSQL {major} is too old: {low} to {high} are supported"));
        } else if major > *high {
            add(warning, format!("PostgreSQL {major} is newer than this program was tested with ({low} to {high})"));
        }
        if self.in_recovery {
            add(error, "the server is a replica: connect to the primary".to_owned());
        } else if self.read_only {
            add(error, "transactions of this role are read only: see default_transaction_read_only".to_owned());
        }
        match &self.migrations {
            Some(status) if !status.is_current() => {
                add(error, format!("schema {} lacks migrations {:?}: run `migrate up`", self.schema, status.pending));
            }
            Some(status) if !status.unknown.is_empty() => {
                let unknown = &status.unknown;
                add(warning, format!("schema {} has migrations {unknown:?} of a newer program", self.schema));
            }
            _ => {}
        }
        for right in &self.missing_rights {
            add(error, format!("role {} lacks {} ON {}: {}", self.role, right.right, right.object, right.grant));
        }
        if let Some(table) = &self.table {
            self.table_findings(table, &mut add);
        }
        if self.synchronous_commit == "off" {
            let text = "synchronous_commit is off: a crash of the server loses commits that were already acknowledged \
                        and, when they were delivered, events without their data";
            add(warning, text.to_owned());
        }
        if self.encoding != "UTF8" {
            let encoding = &self.encoding;
            add(
                warning,
                format!(
                    "the database's encoding is {encoding}: a text without an equivalent in UTF-8 would stop the relay \
                     until its row is moved away; use a database with encoding UTF8"
                ),
            );
        }
        if !self.fsync {
            add(warning, "fsync is off: a loss of power can lose or damage everything".to_owned());
        }
        found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        found
    }

    fn table_findings(&self, table: &TableFacts, add: &mut impl FnMut(Severity, String)) {
        let schema = &self.schema;
        match (table.sequence_increment, table.sequence_cache) {
            (Some(1), Some(1)) => {}
            (Some(increment), Some(cache)) => add(
                Severity::Error,
                format!(
                    "the sequence of {schema}.events has INCREMENT {increment} and CACHE {cache}, so ids are not in \
                     the order of the inserts: ALTER SEQUENCE {schema}.events_id_seq INCREMENT 1 CACHE 1;"
                ),
            ),
            _ => add(Severity::Error, format!("{schema}.events has no sequence events_id_seq")),
        }
        for name in &table.row_security {
            let text = format!(
                "row-level security on {schema}.{name} may hide rows from role {}: give the role BYPASSRLS, or ALTER \
                 TABLE {schema}.{name} DISABLE ROW LEVEL SECURITY;",
                self.role
            );
            add(Severity::Error, text);
        }
        if table.is_subscriber {
            let text = format!(
                "{schema}.events is filled by a logical subscription, which does not write in the order of the ids: \
                 run the relay at the publisher"
            );
            add(Severity::Error, text);
        }
    }
}
