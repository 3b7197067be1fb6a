//! Migrations: up, down, again, and many at once.

use outbox_pg::migrate::{self, MigrateError};
use outbox_pg::{EnqueueError, Outbox, SchemaName};
use sqlx::Connection;

use crate::database::{Database, code, event, number, run};

const OBJECTS: &str = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                       WHERE n.nspname = 'outbox' AND c.relname NOT LIKE '\\_sqlx%'";

#[tokio::test]
async fn up_is_idempotent_and_down_takes_all_back() {
    let Some(database) = Database::empty("migrations") else { return };
    let schema = SchemaName::default();
    let mut conn = database.connect().await;
    let before = migrate::status(&mut conn, &schema).await.unwrap();
    assert!(before.applied.is_empty() && !before.is_current());

    let done = migrate::up(&mut conn, &schema).await.unwrap();
    assert_eq!(done, before.pending);
    let objects = number(&mut conn, OBJECTS).await;
    assert!(objects >= 10);
    assert_eq!(migrate::up(&mut conn, &schema).await.unwrap(), [0_i64; 0]);
    let status = migrate::status(&mut conn, &schema).await.unwrap();
    assert!(status.is_current() && status.unknown.is_empty());
    assert_eq!(status.applied, done);

    Outbox::default().enqueue(&mut conn, &event("one")).await.unwrap();
    let undone = migrate::down(&mut conn, &schema, 0).await.unwrap();
    assert!(undone.iter().rev().eq(&done));
    assert_eq!(number(&mut conn, OBJECTS).await, 0);
    assert_eq!(number(&mut conn, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace").await, 0);
    let mut fresh = database.connect().await;
    let error = Outbox::default().enqueue(&mut fresh, &event("none")).await.unwrap_err();
    assert!(matches!(error, EnqueueError::Missing { .. }), "{error:?}");

    assert_eq!(migrate::up(&mut conn, &schema).await.unwrap(), done);
    assert_eq!(number(&mut conn, OBJECTS).await, objects);
    Outbox::default().enqueue(&mut conn, &event("two")).await.unwrap();
    // The session's own settings are as they were.
    let path: String = sqlx::query_scalar("SHOW search_path").fetch_one(&mut conn).await.unwrap();
    assert_eq!(path, "\"$user\", public");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_runners_at_once() {
    let Some(database) = Database::empty("migrations_twenty") else { return };
    // The snapshot of a repeatable read would be from before the wait for the other runners.
    let default = format!("ALTER DATABASE \"{}\" SET default_transaction_isolation = 'serializable'", database.name());
    run(&mut database.connect().await, &default).await.unwrap();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(20));
    let mut runners = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut conn = database.connect().await;
        let start = std::sync::Arc::clone(&start);
        runners.spawn(async move {
            start.wait().await;
            migrate::up(&mut conn, &SchemaName::default()).await
        });
    }
    let results = runners.join_all().await;
    let did: Vec<_> = results.into_iter().map(Result::unwrap).filter(|done| !done.is_empty()).collect();
    assert_eq!(did.len(), 1, "exactly one runner does the work");
    assert!(migrate::status(&mut database.connect().await, &SchemaName::default()).await.unwrap().is_current());
}

#[tokio::test]
async fn the_text_for_administrators_does_the_same() {
    let Some(database) = Database::empty("migrations_text") else { return };
    let schema = SchemaName::new("My \"Outbox").unwrap();
    let mut conn = database.connect().await;
    run(&mut conn, &migrate::sql(&schema)).await.unwrap();
    assert_eq!(migrate::up(&mut conn, &schema).await.unwrap(), [0_i64; 0]);
    Outbox::new(schema.clone()).enqueue(&mut conn, &event("one")).await.unwrap();
    let again = run(&mut database.connect().await, &migrate::sql(&schema)).await.unwrap_err();
    assert_eq!(code(&again), "42P07");
    migrate::down(&mut conn, &schema, 0).await.unwrap();
}

#[tokio::test]
async fn surprises_are_named_and_change_nothing() {
    let Some(database) = Database::migrated("migrations_surprises").await else { return };
    let schema = SchemaName::default();
    let mut conn = database.connect().await;
    let bookkeeping = "outbox._sqlx_migrations";
    run(&mut conn, &format!("INSERT INTO {bookkeeping} VALUES (99990101000000, 'later', now(), true, '', 0)"))
        .await
        .unwrap();
    let error = migrate::up(&mut conn, &schema).await.unwrap_err();
    assert!(matches!(error, MigrateError::Unknown { version: 99_990_101_000_000 }), "{error:?}");
    let status = migrate::status(&mut conn, &schema).await.unwrap();
    assert!(status.is_current() && status.unknown == [99_990_101_000_000]);

    run(&mut conn, &format!("DELETE FROM {bookkeeping} WHERE version = 99990101000000")).await.unwrap();
    run(&mut conn, &format!("UPDATE {bookkeeping} SET success = false")).await.unwrap();
    let error = migrate::up(&mut conn, &schema).await.unwrap_err();
    assert!(matches!(error, MigrateError::Unfinished { .. }), "{error:?}");
    run(&mut conn, &format!("UPDATE {bookkeeping} SET success = true, checksum = 'x'")).await.unwrap();
    let error = migrate::down(&mut conn, &schema, 0).await.unwrap_err();
    assert!(matches!(error, MigrateError::Changed { .. }), "{error:?}");

    let mut tx = conn.begin().await.unwrap();
    let error = migrate::up(&mut tx, &schema).await.unwrap_err();
    assert!(matches!(error, MigrateError::InTransaction), "{error:?}");
}

#[tokio::test]
async fn a_failing_step_leaves_nothing_behind() {
    let Some(database) = Database::empty("migrations_failing") else { return };
    let mut conn = database.connect().await;
    run(&mut conn, "CREATE SCHEMA outbox; CREATE TABLE outbox.audit ()").await.unwrap();
    let error = migrate::up(&mut conn, &SchemaName::default()).await.unwrap_err();
    assert!(matches!(error, MigrateError::Step { .. }), "{error:?}");
    assert_eq!(number(&mut conn, OBJECTS).await, 1);
    run(&mut conn, "DROP TABLE outbox.audit").await.unwrap();
    migrate::up(&mut conn, &SchemaName::default()).await.unwrap();
}

#[tokio::test]
async fn temporary_tables_and_search_paths_of_the_session_do_not_matter() {
    let Some(database) = Database::empty("migrations_temp") else { return };
    let mut conn = database.connect().await;
    run(
        &mut conn,
        "CREATE TEMP TABLE events (id int); CREATE TABLE public.events (); SET search_path = pg_temp, public",
    )
    .await
    .unwrap();
    migrate::up(&mut conn, &SchemaName::default()).await.unwrap();
    run(&mut conn, "SELECT outbox.enqueue('a', 'b', 'c', '1')").await.unwrap();
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.events").await, 1);
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.all_events").await, 1);
}

#[tokio::test]
async fn the_functions_for_other_languages() {
    let Some(database) = Database::migrated("migrations_functions").await else { return };
    let mut conn = database.connect().await;
    let id: uuid::Uuid = sqlx::query_scalar(
        "SELECT outbox.enqueue(aggregate_type => 'a', aggregate_id => 'b', event_type => 'c', payload => '{\"x\": 1}', \
         headers => '{\"h\":\"v\"}')",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap();
    let moved = "WITH d AS (DELETE FROM outbox.events RETURNING *) \
                 INSERT INTO outbox.dead_letters (id, event_id, aggregate_type, aggregate_id, event_type, payload, \
                   payload_bytes, content_type, headers, created_at, attempts, reason_kind, reason) \
                 SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, \
                   headers, created_at, 10, 'failed', 'no' FROM d";
    run(&mut conn, moved).await.unwrap();
    let state = "SELECT state || attempts FROM outbox.all_events WHERE event_id = $1";
    let stated: String = sqlx::query_scalar(state).bind(id).fetch_one(&mut conn).await.unwrap();
    assert_eq!(stated, "dead10");
    for expected in [true, false] {
        let redriven: bool =
            sqlx::query_scalar("SELECT outbox.redrive($1)").bind(id).fetch_one(&mut conn).await.unwrap();
        assert_eq!(redriven, expected);
    }
    let stated: String = sqlx::query_scalar(state).bind(id).fetch_one(&mut conn).await.unwrap();
    assert_eq!(stated, "pending0");
    let row: (i64, String, String) = sqlx::query_as("SELECT id, payload::text, headers::text FROM outbox.events")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert_eq!(row, (2, "{\"x\": 1}".to_owned(), "{\"h\":\"v\"}".to_owned()));
}
