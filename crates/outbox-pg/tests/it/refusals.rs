//! What a relay refuses to work with, because it would lose or repeat events.

use std::time::Duration;

use outbox_core::{Selection, Store as _, StoreErrorKind};
use outbox_pg::{PgConfig, PgStore};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::database::Database;

const LEASE: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_second_route_name_waits_for_the_first() {
    let Some(database) = Database::migrated("refusals_routes").await else { return };
    let store = PgStore::new(&PgConfig::new(database.url()), "one").unwrap();
    let other = PgStore::new(&PgConfig::new(database.url()), "two").unwrap();
    let owned = store.acquire(&Selection::everything("orders"), LEASE).await.unwrap().owned().expect("free");
    assert_eq!(other.acquire(&Selection::everything("renamed"), LEASE).await.unwrap().owned(), None);
    assert_eq!(other.acquire(&Selection::everything("orders"), LEASE).await.unwrap().owned(), None);
    store.release(&owned).await.unwrap();
    assert!(other.acquire(&Selection::everything("renamed"), LEASE).await.unwrap().owned().is_some());
    assert_eq!(store.acquire(&Selection::everything("orders"), LEASE).await.unwrap().owned(), None);
}

#[tokio::test]
async fn ids_from_a_cache_and_hidden_rows_are_refused() {
    let Some(database) = Database::migrated("refusals_reader").await else { return };
    let mut admin = PgConnection::connect(database.url()).await.unwrap();
    let store = PgStore::new(&PgConfig::new(database.url()), "one").unwrap();
    let owned = store.acquire(&Selection::everything("orders"), LEASE).await.unwrap().owned().expect("free");
    assert!(store.open_lane(&owned).await.is_ok());

    admin.execute("ALTER SEQUENCE outbox.events_id_seq CACHE 10").await.unwrap();
    let error = store.open_lane(&owned).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unprepared);
    assert!(error.to_string().contains("CACHE 1"), "{error}");
    admin.execute("ALTER SEQUENCE outbox.events_id_seq CACHE 1").await.unwrap();

    let relay = format!("relay_{}", database.name());
    let grants = format!(
        "CREATE ROLE \"{relay}\" LOGIN; GRANT USAGE ON SCHEMA outbox TO \"{relay}\";
         GRANT SELECT ON outbox.events TO \"{relay}\"; ALTER TABLE outbox.events ENABLE ROW LEVEL SECURITY"
    );
    admin.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(grants))).await.unwrap();
    let url = database.url().replacen("postgres@", &format!("{relay}@"), 1);
    let hidden = PgStore::new(&PgConfig::new(url), "two").unwrap();
    let error = hidden.open_lane(&owned).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unprepared);
    assert!(error.to_string().contains("row-level security"), "{error}");
    let drop = format!("DROP OWNED BY \"{relay}\"; DROP ROLE \"{relay}\"");
    admin.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(drop))).await.unwrap();
}

/// Without that row nothing would keep two relays from claiming the events under two names at the same moment.
#[tokio::test]
async fn ownership_without_the_row_that_decides_it_is_refused() {
    let Some(database) = Database::migrated("refusals_row").await else { return };
    let mut admin = PgConnection::connect(database.url()).await.unwrap();
    let store = PgStore::new(&PgConfig::new(database.url()), "one").unwrap();
    admin.execute("DELETE FROM outbox.config_in_force").await.unwrap();
    let error = store.acquire(&Selection::everything("orders"), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unprepared);
    assert!(error.to_string().contains("INSERT INTO config_in_force DEFAULT VALUES"), "{error}");
    admin.execute("SET search_path TO outbox; INSERT INTO config_in_force DEFAULT VALUES").await.unwrap();
    assert!(store.acquire(&Selection::everything("orders"), LEASE).await.unwrap().owned().is_some());
}

/// PostgreSQL's detail of a refusal holds the row: "Failing row contains (…)".
#[tokio::test]
async fn a_refusal_shows_no_row() {
    let Some(database) = Database::migrated("refusals_detail").await else { return };
    let mut admin = PgConnection::connect(database.url()).await.unwrap();
    admin.execute("ALTER TABLE outbox.relays ADD CONSTRAINT house_rule CHECK (version = '')").await.unwrap();
    let store = PgStore::new(&PgConfig::new(database.url()), "hunter2").unwrap();
    let error = store.acquire(&Selection::everything("orders"), LEASE).await.unwrap_err();
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        shown.push_str(&format!(" {source} {source:?}"));
        cause = source.source();
    }
    assert!(shown.contains("house_rule") && !shown.contains("hunter2"), "{shown}");
}
