//! The rights of section "roles" of the docs suffice, and are no more than that.

use outbox_pg::{EnqueueError, Outbox, SchemaName, migrate};
use sqlx::PgConnection;

use crate::database::{Database, code, event, run};

/// A session of this role. Roles are the server's, so tests share them; making them again is part of the test.
async fn session(database: &Database, role: &str) -> PgConnection {
    let mut conn = database.connect().await;
    run(&mut conn, &format!("SET SESSION AUTHORIZATION {role}")).await.unwrap();
    conn
}

async fn prepared(name: &str) -> Option<Database> {
    let database = Database::migrated(name).await?;
    let mut conn = database.connect().await;
    for _ in 0..2 {
        run(&mut conn, &migrate::roles_sql(&SchemaName::default())).await.unwrap();
    }
    Some(database)
}

async fn denied(conn: &mut PgConnection, sql: &str) {
    let error = run(conn, sql).await.expect_err(sql);
    assert_eq!(code(&error), "42501", "{sql}: {error}");
}

#[tokio::test]
async fn a_producer_writes_events_and_nothing_else() {
    let Some(database) = prepared("roles_producer").await else { return };
    let mut conn = session(&database, "outbox_producer").await;
    Outbox::default().enqueue(&mut conn, &event("one")).await.unwrap();
    Outbox::default().enqueue_many(&mut conn, &[event("two"), event("three")]).await.unwrap();
    run(&mut conn, "SELECT outbox.enqueue('a', 'b', 'c', '1')").await.unwrap();
    let insert = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('a', 'b', 'c', '1')";
    run(&mut conn, insert).await.unwrap();
    let scheduled = "INSERT INTO outbox.scheduled (aggregate_type, aggregate_id, event_type, payload, due_at) \
                     VALUES ('a', 'b', 'c', '1', now())";
    denied(&mut conn, scheduled).await; // nothing promotes it yet
    denied(&mut conn, &format!("{insert} RETURNING event_id")).await;
    denied(&mut conn, "SELECT nextval('outbox.events_id_seq')").await;
    denied(&mut conn, "SELECT setval('outbox.events_id_seq', 1)").await;
    denied(&mut conn, "SELECT count(*) FROM outbox.events").await;
    denied(&mut conn, "SELECT count(*) FROM outbox.all_events").await;
    denied(&mut conn, "DELETE FROM outbox.events").await;
    denied(&mut conn, "UPDATE outbox.events SET payload = '2'").await;
    denied(&mut conn, "TRUNCATE outbox.events").await;
    denied(&mut conn, "SELECT outbox.redrive(gen_random_uuid())").await;
    denied(&mut conn, "INSERT INTO outbox.dead_letters (id) VALUES (1)").await;
    let by_hand = "INSERT INTO outbox.events (id, aggregate_type, aggregate_id, event_type, payload) \
                   OVERRIDING SYSTEM VALUE VALUES (1, 'a', 'b', 'c', '1')";
    denied(&mut conn, by_hand).await;
}

#[tokio::test]
async fn a_relay_moves_events_and_never_changes_them() {
    let Some(database) = prepared("roles_relay").await else { return };
    Outbox::default().enqueue(&mut database.connect().await, &event("one")).await.unwrap();
    let mut conn = session(&database, "outbox_relay").await;
    let allowed = [
        "SELECT last_value FROM outbox.events_id_seq",
        "INSERT INTO outbox.relays (id, route, name, lease_end, config_fingerprint, version) \
         VALUES (gen_random_uuid(), 'orders', 'a', now(), '', '')",
        "UPDATE outbox.relays SET lease_end = now()",
        "INSERT INTO outbox.buckets (route, bucket) SELECT 'r', generate_series(0, 63) ON CONFLICT DO NOTHING",
        "SELECT * FROM outbox.buckets FOR UPDATE SKIP LOCKED",
        "SELECT * FROM outbox.config_in_force FOR UPDATE",
        "INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id) \
         SELECT id, event_id, bucket, aggregate_type, aggregate_id FROM outbox.events \
         ON CONFLICT (id) DO UPDATE SET attempts = retries.attempts + 1",
        "WITH d AS (DELETE FROM outbox.events RETURNING *) \
         INSERT INTO outbox.dead_letters (id, event_id, aggregate_type, aggregate_id, event_type, payload, created_at, \
           attempts, reason_kind, reason) \
         SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload, created_at, 1, 'failed', '' FROM d",
        "INSERT INTO outbox.history (id, event_id, aggregate_type, aggregate_id, event_type, created_at, attempts) \
         VALUES (1, gen_random_uuid(), 'a', 'b', 'c', now(), 1)",
        "DELETE FROM outbox.retries",
        "SELECT count(id) FROM outbox.dead_letters",
    ];
    for sql in allowed {
        run(&mut conn, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    denied(&mut conn, "UPDATE outbox.events SET payload = '2'").await;
    denied(&mut conn, "SELECT payload FROM outbox.dead_letters").await;
    denied(&mut conn, "SELECT payload FROM outbox.history").await;
    denied(&mut conn, "DELETE FROM outbox.audit").await;
    denied(&mut conn, "TRUNCATE outbox.events").await;
    denied(&mut conn, "CREATE TABLE outbox.mine ()").await;
}

#[tokio::test]
async fn a_reader_sees_all_and_changes_nothing() {
    let Some(database) = prepared("roles_reader").await else { return };
    let mut conn = session(&database, "outbox_reader").await;
    run(&mut conn, "SELECT * FROM outbox.all_events").await.unwrap();
    let tables = "events retries dead_letters history scheduled buckets relays config_in_force audit";
    for table in tables.split(' ') {
        run(&mut conn, &format!("SELECT * FROM outbox.{table}")).await.unwrap();
        denied(&mut conn, &format!("TRUNCATE outbox.{table}")).await;
    }
    let error = Outbox::default().enqueue(&mut conn, &event("one")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("GRANT outbox_producer"), "{error}");
}
