//! `migrate up`, `migrate status` and `migrate sql`.

use outbox_pg::migrate::{self, MigrationStatus};
use serde::Serialize;

use super::args::Output;
use super::failure::Failure;
use super::output::{Items, print};
use super::settings::Settings;

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Migration {
    version: i64,
    state: &'static str,
}

#[derive(Debug, Serialize)]
struct Sql {
    sql: String,
}

pub(crate) async fn up(settings: &Settings, no_doorbell: bool, output: Output) -> Result<(), Failure> {
    let mut connection = super::database::connect(settings).await?;
    let schema = &settings.database.schema;
    let applied = migrate::up(&mut connection, schema).await.map_err(|error| Failure::failed(&error))?;
    let changed =
        migrate::doorbell(&mut connection, schema, !no_doorbell).await.map_err(|error| Failure::failed(&error))?;
    let mut text = match applied.len() {
        0 => format!("schema {schema} is up to date"),
        count => format!("schema {schema}: {count} applied"),
    };
    if changed {
        text.push_str(if no_doorbell { "; the doorbell is taken away" } else { "; the doorbell is back" });
    }
    let items = applied.into_iter().map(|version| Migration { version, state: "applied" }).collect();
    print(output, &text, &Items { items })
}

pub(crate) async fn status(settings: &Settings, output: Output) -> Result<(), Failure> {
    let mut connection = super::database::connect(settings).await?;
    let schema = &settings.database.schema;
    let asked = async { migrate::status(&mut connection, schema).await.map_err(|error| Failure::failed(&error)) };
    let status = super::database::answer(asked).await?;
    let items = list(&status);
    let text: String = items.iter().map(|item| format!("{} {}\n", item.version, item.state)).collect();
    print(output, &text, &Items { items })?;
    if status.is_current() {
        return Ok(());
    }
    Err(Failure::Failed(format!("schema {schema} lacks {} migrations: run `migrate up`", status.pending.len())))
}

pub(crate) fn sql(settings: &Settings, roles: bool, no_doorbell: bool, output: Output) -> Result<(), Failure> {
    let schema = &settings.database.schema;
    let mut sql = migrate::sql(schema);
    if no_doorbell {
        sql.push('\n');
        sql.push_str(&migrate::no_doorbell_sql(schema));
    }
    if roles {
        sql.push('\n');
        sql.push_str(&migrate::roles_sql(schema));
    }
    let text = sql.clone();
    print(output, &text, &Sql { sql })
}

/// Every migration that either side knows, oldest first.
fn list(status: &MigrationStatus) -> Vec<Migration> {
    let state = |version: i64| if status.unknown.contains(&version) { "unknown" } else { "applied" };
    let applied = status.applied.iter().map(|&version| Migration { version, state: state(version) });
    let pending = status.pending.iter().map(|&version| Migration { version, state: "pending" });
    let mut all: Vec<Migration> = applied.chain(pending).collect();
    all.sort_by_key(|migration| migration.version);
    all
}
