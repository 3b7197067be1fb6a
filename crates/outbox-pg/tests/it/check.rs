//! What makes a database unfit is found and named.

use outbox_pg::SchemaName;
use outbox_pg::check::{Severity, facts};
use outbox_pg::migrate;

use crate::database::{Database, run};

/// Findings that hold for every server of the tests.
fn is_ours(text: &str) -> bool {
    !text.contains("fsync is off") && !text.contains("synchronous_commit is off")
}

async fn findings(conn: &mut sqlx::PgConnection) -> Vec<(Severity, String)> {
    let facts = facts(conn, &SchemaName::default()).await.unwrap();
    let found = facts.findings().into_iter().filter(|finding| is_ours(&finding.text));
    found.map(|finding| (finding.severity, finding.text)).collect()
}

#[track_caller]
fn only(found: &[(Severity, String)], severity: Severity, part: &str) {
    let [(found_severity, text)] = found else { panic!("not one finding: {found:?}") };
    assert!(*found_severity == severity && text.contains(part), "{found:?}");
}

#[tokio::test]
async fn a_fit_database_and_what_makes_it_unfit() {
    let Some(database) = Database::empty("check") else { return };
    let mut conn = database.connect().await;
    only(&findings(&mut conn).await, Severity::Error, "lacks migrations");
    migrate::up(&mut conn, &SchemaName::default()).await.unwrap();
    assert_eq!(findings(&mut conn).await, []);

    run(&mut conn, "ALTER SEQUENCE outbox.events_id_seq CACHE 50").await.unwrap();
    only(&findings(&mut conn).await, Severity::Error, "CACHE 50");
    run(&mut conn, "ALTER SEQUENCE outbox.events_id_seq CACHE 1").await.unwrap();

    run(&mut conn, "SET synchronous_commit = off").await.unwrap();
    let all = facts(&mut conn, &SchemaName::default()).await.unwrap().findings();
    assert!(all.iter().any(|finding| finding.to_string().starts_with("warning: synchronous_commit is off")));

    run(&mut conn, "SET default_transaction_read_only = on").await.unwrap();
    only(&findings(&mut conn).await, Severity::Error, "read only");
    run(&mut conn, "SET default_transaction_read_only = off").await.unwrap();

    let newer = "INSERT INTO outbox._sqlx_migrations VALUES (99990101000000, 'later', now(), true, '', 0)";
    run(&mut conn, newer).await.unwrap();
    only(&findings(&mut conn).await, Severity::Warning, "newer program");
}

#[tokio::test]
async fn missing_rights_come_with_the_statement_that_gives_them() {
    let Some(database) = Database::migrated("check_rights").await else { return };
    let mut admin = database.connect().await;
    // Named after the database, since roles belong to the whole server; the quotes must come out right.
    let role = format!("\"Relay \"\"{}\"", database.name());
    run(&mut admin, &format!("CREATE ROLE {role}")).await.unwrap();
    run(&mut admin, "ALTER TABLE outbox.events ENABLE ROW LEVEL SECURITY").await.unwrap();
    let mut conn = database.connect().await;
    run(&mut conn, &format!("SET SESSION AUTHORIZATION {role}")).await.unwrap();

    let before = facts(&mut conn, &SchemaName::default()).await.unwrap();
    assert!(before.migrations.is_none());
    assert!(before.missing_rights.len() > 20, "{before:?}");
    for right in &before.missing_rights {
        run(&mut admin, &right.grant).await.unwrap();
    }
    only(&findings(&mut conn).await, Severity::Error, "row-level security on \"outbox\".events");
    run(&mut admin, "ALTER TABLE outbox.events DISABLE ROW LEVEL SECURITY").await.unwrap();
    assert_eq!(findings(&mut conn).await, []);

    // The documented role has the same rights.
    run(&mut admin, &format!("DROP OWNED BY {role}")).await.unwrap();
    assert!(!findings(&mut conn).await.is_empty());
    run(&mut admin, &migrate::roles_sql(&SchemaName::default())).await.unwrap();
    run(&mut admin, &format!("GRANT outbox_relay TO {role}")).await.unwrap();
    assert_eq!(findings(&mut conn).await, []);
    run(&mut admin, &format!("DROP ROLE {role}")).await.unwrap();
}

#[tokio::test]
async fn a_subscriber_is_refused_as_source() {
    let Some(database) = Database::migrated("check_subscriber").await else { return };
    let mut conn = database.connect().await;
    let name = database.name();
    let subscribe = format!(
        "CREATE SUBSCRIPTION {name} CONNECTION 'dbname=nowhere' PUBLICATION none WITH (connect = false, slot_name = NONE)"
    );
    run(&mut conn, &subscribe).await.unwrap();
    assert_eq!(findings(&mut conn).await, []);
    let table = format!(
        "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) \
         SELECT oid, 'outbox.events'::regclass, 'r' FROM pg_subscription WHERE subname = '{name}'"
    );
    run(&mut conn, "SET allow_system_table_mods = on").await.unwrap();
    run(&mut conn, &table).await.unwrap();
    only(&findings(&mut conn).await, Severity::Error, "logical subscription");
    run(&mut conn, &format!("DROP SUBSCRIPTION {name}")).await.unwrap();
}
