//! What operators do to blocked events: one transaction each, right also when two act at once.

use outbox_core::EventId;
use outbox_pg::blocked::{Changed, Operator, Selector, list, retry, skip};
use outbox_pg::{Outbox, SchemaName, migrate};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::database::{Database, event, run};

/// Six events; the first four, of two aggregate types, are blocked, the fifth waits for a retry.
async fn prepared(name: &str) -> Option<(Database, Vec<EventId>)> {
    let database = Database::migrated(name).await?;
    let mut conn = database.connect().await;
    let events = ["a", "b", "c", "d", "e", "f"].map(event);
    let ids = Outbox::default().enqueue_many(&mut conn, &events).await.unwrap();
    run(
        &mut conn,
        "INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id, attempts, crashes, blocked, \
           last_error_kind, last_error, next_attempt_at) \
         SELECT id, event_id, bucket, CASE WHEN id % 2 = 0 THEN 'even' ELSE 'odd' END, id::text, 3, 1, id <= 4, 'failed', \
           'refused ' || id, now() + interval '1 hour' FROM outbox.events WHERE id <= 5",
    )
    .await
    .unwrap();
    Some((database, ids))
}

async fn rows(conn: &mut PgConnection, sql: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap()
}

const RETRIES: &str = "SELECT concat_ws(' ', id, attempts, crashes, blocked, next_attempt_at <= now(), last_error) \
                         FROM outbox.retries ORDER BY id";

fn of_type(name: &str) -> Selector {
    Selector { aggregate_type: Some(name.to_owned()), ..Selector::default() }
}

fn operator() -> Operator {
    Operator { os_user: Some("ewa".to_owned()), reason: Some("mended".to_owned()) }
}

#[tokio::test]
async fn they_are_listed_in_pages_and_by_selector() {
    let Some((database, ids)) = prepared("blocked_list").await else { return };
    let (mut conn, schema) = (database.connect().await, SchemaName::default());
    let all = list(&mut conn, &schema, &Selector::default(), 0, 100).await.unwrap();
    assert_eq!(all.iter().map(|event| event.event_id).collect::<Vec<_>>(), ids[..4]);
    assert_eq!((all[0].attempts, all[0].crashes, all[0].kind.as_str()), (3, 1, "failed"));
    assert_eq!((all[0].error.as_str(), all[0].event_type.as_str()), ("refused 1", "a"));
    let page = list(&mut conn, &schema, &Selector::default(), all[1].id, 1).await.unwrap();
    assert_eq!(page.iter().map(|event| event.id).collect::<Vec<_>>(), [all[2].id]);
    let ids_of = |found: Vec<outbox_pg::blocked::Blocked>| found.iter().map(|event| event.id).collect::<Vec<_>>();
    assert_eq!(ids_of(list(&mut conn, &schema, &of_type("even"), 0, 100).await.unwrap()), [2, 4]);
    let one = Selector { aggregate_id: Some("3".to_owned()), ..of_type("odd") };
    assert_eq!(ids_of(list(&mut conn, &schema, &one, 0, 100).await.unwrap()), [3]);
    let none = Selector { event_ids: vec![ids[4], EventId::from_uuid(Uuid::nil())], ..Selector::default() };
    assert!(list(&mut conn, &schema, &none, 0, 100).await.unwrap().is_empty(), "one that only waits is not blocked");
}

#[tokio::test]
async fn a_retry_starts_anew_and_a_skip_is_a_dead_letter_each_with_a_row_of_audit() {
    let Some((database, ids)) = prepared("blocked_change").await else { return };
    let (mut conn, schema) = (database.connect().await, SchemaName::default());
    let done = retry(&mut conn, &schema, &of_type("odd"), &operator(), 0).await.unwrap();
    assert_eq!(done, Changed { affected: 2, next: None });
    let again = retry(&mut conn, &schema, &of_type("odd"), &operator(), 0).await.unwrap();
    assert_eq!(again.affected, 0, "blocked no more");
    let one = Selector { event_ids: vec![ids[1]], ..Selector::default() };
    assert_eq!(skip(&mut conn, &schema, &one, &Operator::default(), 0).await.unwrap().affected, 1);
    assert_eq!(skip(&mut conn, &schema, &one, &Operator::default(), 0).await.unwrap().affected, 0);
    let left = ["1 0 0 f t refused 1", "3 0 0 f t refused 3", "4 3 1 t f refused 4", "5 3 1 f f refused 5"];
    assert_eq!(rows(&mut conn, RETRIES).await, left);
    assert_eq!(rows(&mut conn, "SELECT id::text FROM outbox.events ORDER BY id").await, ["1", "3", "4", "5", "6"]);
    let dead = "SELECT concat_ws(' ', event_id, event_type, attempts, reason_kind, reason, payload) \
                  FROM outbox.dead_letters";
    let expected = format!("{} b 3 failed refused 2 ", ids[1]);
    let dead = rows(&mut conn, dead).await;
    assert!(dead.len() == 1 && dead[0].starts_with(&expected), "{dead:?}");
    let audit = "SELECT concat_ws(' | ', replace(who, session_user, 'me'), action, filter, affected, reason) \
                   FROM outbox.audit ORDER BY id";
    let by_id = format!("me | blocked skip | {{\"event_ids\":[\"{}\"]}} | 1", ids[1]);
    let by_type = "me (ewa) | blocked retry | {\"aggregate_type\":\"odd\"} | 2 | mended";
    assert_eq!(rows(&mut conn, audit).await, [by_type, &by_id], "what changed nothing left no row");
}

// One lets them go, one skips them, at the same moment and many times over: each event is changed by one of them.
#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_change_each_event_once() {
    let Some((database, _)) = prepared("blocked_two").await else { return };
    let schema = SchemaName::default();
    for round in 0..20 {
        let mut conn = database.connect().await;
        run(
            &mut conn,
            "DELETE FROM outbox.retries; DELETE FROM outbox.dead_letters; \
             INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 'order', i::text, 'e', '1' FROM generate_series(1, 50) AS i; \
             INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id, blocked) \
             SELECT id, event_id, bucket, aggregate_type, aggregate_id, true FROM outbox.events",
        )
        .await
        .unwrap();
        let blocked: i64 =
            sqlx::query_scalar("SELECT count(*) FROM outbox.retries").fetch_one(&mut conn).await.unwrap();
        let (mut one, mut two, mut three) =
            (database.connect().await, database.connect().await, database.connect().await);
        let (all, nobody) = (Selector::default(), Operator::default());
        let (retried, skipped, again) = tokio::join!(
            retry(&mut one, &schema, &all, &nobody, 0),
            skip(&mut two, &schema, &all, &nobody, 0),
            retry(&mut three, &schema, &all, &nobody, 0),
        );
        let (freed, skipped) = (retried.unwrap().affected + again.unwrap().affected, skipped.unwrap().affected);
        assert_eq!(i64::try_from(freed + skipped).unwrap(), blocked, "round {round}");
        let counts = "SELECT concat_ws(' ', (SELECT count(*) FROM outbox.dead_letters), \
                        (SELECT count(*) FROM outbox.retries WHERE NOT blocked), \
                        (SELECT count(*) FROM outbox.retries WHERE blocked))";
        assert_eq!(rows(&mut conn, counts).await, [format!("{skipped} {freed} 0")], "round {round}");
    }
}

#[tokio::test]
async fn the_rights_of_a_relay_suffice() {
    let Some((database, _)) = prepared("blocked_rights").await else { return };
    let (mut conn, schema) = (database.connect().await, SchemaName::default());
    run(&mut conn, &migrate::roles_sql(&schema)).await.unwrap();
    run(&mut conn, "SET SESSION AUTHORIZATION outbox_relay").await.unwrap();
    assert_eq!(list(&mut conn, &schema, &Selector::default(), 0, 9).await.unwrap().len(), 4);
    assert_eq!(retry(&mut conn, &schema, &of_type("odd"), &operator(), 0).await.unwrap().affected, 2);
    assert_eq!(skip(&mut conn, &schema, &of_type("even"), &operator(), 0).await.unwrap().affected, 2);
}
