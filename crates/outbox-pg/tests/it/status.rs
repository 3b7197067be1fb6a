//! The status tells what is in the tables, and stays cheap.

use outbox_pg::status::{COUNT_LIMIT, Count, StatusError, pending, status};
use outbox_pg::{Outbox, SchemaName};

use crate::database::{Database, event, run};

const fn exactly(rows: u64) -> Count {
    Count { rows, exact: true }
}

#[tokio::test]
async fn it_tells_what_is_there() {
    let Some(database) = Database::migrated("status").await else { return };
    let schema = SchemaName::default();
    let mut conn = database.connect().await;
    let empty = status(&mut conn, &schema).await.unwrap();
    assert_eq!((empty.pending.count, empty.pending.oldest_age), (exactly(0), None));
    assert!(empty.migrations.is_current() && empty.owners.is_empty());

    Outbox::default().enqueue_many(&mut conn, &[event("a"), event("b"), event("c")]).await.unwrap();
    run(
        &mut conn,
        "UPDATE outbox.events SET created_at = now() - interval '1 hour' WHERE event_type = 'a'; \
         INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id, blocked) \
         SELECT id, event_id, bucket, aggregate_type, aggregate_id, event_type = 'b' FROM outbox.events \
          WHERE event_type < 'c'; \
         INSERT INTO outbox.dead_letters (id, event_id, aggregate_type, aggregate_id, event_type, payload, created_at, \
           attempts, reason_kind, reason) VALUES (99, gen_random_uuid(), 'a', 'b', 'c', '1', now(), 1, 'failed', ''); \
         INSERT INTO outbox.relays (id, route, name, lease_end, config_fingerprint, version) \
         VALUES ('00000000-0000-0000-0000-000000000001', 'orders', 'one', now() + interval '1 hour', '', '0.1'); \
         INSERT INTO outbox.buckets (route, bucket, owner, token, deaths) \
         SELECT 'orders', n, CASE WHEN n < 60 THEN '00000000-0000-0000-0000-000000000001'::uuid END, 1, n % 2 \
           FROM generate_series(0, 63) AS n",
    )
    .await
    .unwrap();
    let told = status(&mut conn, &schema).await.unwrap();
    assert_eq!(told.pending.count, exactly(3));
    assert_eq!(told.pending.oldest_age.unwrap().as_secs() / 60, 60);
    assert_eq!((told.retries, told.blocked, told.dead_letters), (exactly(2), exactly(1), exactly(1)));
    let [owned, free] = told.owners.as_slice() else { panic!("{:?}", told.owners) };
    assert_eq!((owned.buckets, owned.name.as_deref(), owned.deaths), (60, Some("one"), 1));
    assert_eq!(owned.lease_left.unwrap().as_secs() / 60, 59);
    assert_eq!((free.buckets, free.owner, free.lease_left), (4, None, None));
    let last = pending(&mut conn, &schema, 2).await.unwrap();
    assert_eq!(last.count, exactly(1));
}

#[tokio::test]
async fn a_large_backlog_is_estimated() {
    let Some(database) = Database::migrated("status_backlog").await else { return };
    let mut conn = database.connect().await;
    let fill = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
                SELECT 'a', 'b', 'c', '1' FROM generate_series(1, 30000)";
    run(&mut conn, fill).await.unwrap();
    run(&mut conn, "ANALYZE outbox.events").await.unwrap();
    let told = pending(&mut conn, &SchemaName::default(), 0).await.unwrap();
    assert!(!told.count.exact && told.count.rows > COUNT_LIMIT, "{told:?}");
}

#[tokio::test]
async fn what_can_not_be_told_is_named() {
    let Some(database) = Database::empty("status_named") else { return };
    let schema = SchemaName::default();
    let mut conn = database.connect().await;
    let error = status(&mut conn, &schema).await.unwrap_err();
    assert!(matches!(error, StatusError::Unprepared { .. }), "{error:?}");

    outbox_pg::migrate::up(&mut conn, &schema).await.unwrap();
    run(&mut conn, &outbox_pg::migrate::roles_sql(&schema)).await.unwrap();
    let mut producer = database.connect().await;
    run(&mut producer, "SET SESSION AUTHORIZATION outbox_producer").await.unwrap();
    let error = status(&mut producer, &schema).await.unwrap_err();
    assert!(matches!(error, StatusError::Denied { .. }) && error.to_string().contains("GRANT"), "{error}");
    let mut relay = database.connect().await;
    run(&mut relay, "SET SESSION AUTHORIZATION outbox_relay").await.unwrap();
    status(&mut relay, &schema).await.unwrap();
}
