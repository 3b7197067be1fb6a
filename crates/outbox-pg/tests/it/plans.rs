//! The plans of the statements that a relay makes all day, in the states of the tables that mislead a planner (field
//! reports B17, B70), and how many statements a read and a settle are.

use outbox_core::{Renewal, Standing, Store as _};
use outbox_testkit::services::postgres::Options;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::database::{Database, run};
use crate::lane::{Reader, ids, insert, migrated, silent};

pub(crate) const BEGIN: &str = include_str!("../../src/sql/read_begin.sql");
const BEGIN_WRITE: &str = include_str!("../../src/sql/begin_write.sql");
const FORWARD: (&str, &str) =
    (include_str!("../../src/sql/read_forward.sql"), "bigint, bigint[], bigint, bigint, bigint");
const FORWARD_SIZED: (&str, &str) =
    (include_str!("../../src/sql/read_forward_sized.sql"), "bigint, bigint[], bigint, bigint, bigint");
const KEYS: (&str, &str) =
    (include_str!("../../src/sql/read_keys.sql"), "bigint, bigint[], bigint, bigint, bigint, bigint[], bigint");
const SWEEP: (&str, &str) = (include_str!("../../src/sql/sweep.sql"), "bigint, bigint, bigint");
const SPAN: (&str, &str) = (include_str!("../../src/sql/read_span.sql"), "bigint, bigint, bigint");
const SETTLE: (&str, &str) = (include_str!("../../src/sql/settle.sql"), "bigint[], uuid[]");
const SETTLE_RANGE: (&str, &str) = (include_str!("../../src/sql/settle_range.sql"), "bigint[], uuid[], bigint, bigint");
const SETTLE_RETRIED: (&str, &str) =
    (include_str!("../../src/sql/settle_retried.sql"), "bigint[], uuid[], bigint[], uuid[]");
const RETRY: (&str, &str) = (
    include_str!("../../src/sql/retry.sql"),
    "bigint[], uuid[], integer[], integer[], float8[], text[], text[], boolean[]",
);
const ACQUIT: (&str, &str) = (include_str!("../../src/sql/acquit.sql"), "bigint[], uuid[]");
const RETRY_GONE: (&str, &str) = (include_str!("../../src/sql/retry_gone.sql"), "bigint[], uuid[]");
const BURY: (&str, &str) = (include_str!("../../src/sql/bury.sql"), "bigint[], uuid[], integer[], text[], text[]");
const RETRY_STATES: (&str, &str) = (include_str!("../../src/sql/retry_states.sql"), "bigint[], uuid[]");

/// The plan for these values, as the store's statements get it: planned anew each time.
pub(crate) async fn plan(conn: &mut PgConnection, begin: &str, (sql, kinds): (&str, &str), values: &str) -> String {
    let sql = sql.replace("{schema}", "outbox");
    let begin = begin.replace("{limit_ms}", "15000");
    let prepare = format!("{begin}; SET LOCAL plan_cache_mode = force_custom_plan; PREPARE p ({kinds}) AS {sql}");
    run(conn, &prepare).await.unwrap();
    let explain = AssertSqlSafe(format!("EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) EXECUTE p ({values})"));
    let lines: Vec<String> = sqlx::query_scalar(explain).persistent(false).fetch_all(&mut *conn).await.unwrap();
    run(conn, "ROLLBACK; DEALLOCATE p").await.unwrap();
    lines.join("\n")
}

/// What a plan must not hold: a statement that reads goes along the index and sorts nothing.
pub(crate) const READS: &[&str] =
    &["JIT", "Seq Scan on events", "Seq Scan on retries", "Bitmap", "Sort", "Materialize"];

/// A bitmap of exactly the ids that are written is as good as an index scan, and those alone may be sorted.
const SETTLES: &[&str] = &["JIT", "Seq Scan on events", "Seq Scan on retries"];

pub(crate) fn assert_by_index(plan: &str, never: &[&str], state: &str) {
    // A table without pages is read in no time.
    let empty = state.contains("no retries");
    for bad in never.iter().filter(|bad| !(empty && bad.contains("retries"))) {
        assert!(!plan.contains(bad), "{state}: {bad}\n{plan}");
    }
    assert!(plan.contains("events_pkey"), "{state}\n{plan}");
}

async fn fill(conn: &mut PgConnection, events: u32) {
    let sql = format!(
        "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', i % 5000, 'changed', '{{\"some\":\"payload of ordinary length, as they mostly are\"}}' \
           FROM generate_series(1, {events}) AS i"
    );
    run(conn, &sql).await.unwrap();
}

async fn assert_plans(conn: &mut PgConnection, state: &str) {
    let range = |from: i64, through: i64| {
        let ids: Vec<_> = (from..=through).map(|id| id.to_string()).collect();
        format!("'{{{}}}'", ids.join(","))
    };
    let known = range(1, 2000);
    let key = "hashtextextended('17', hashtextextended('order', 0))";
    let high = i64::MAX;
    for (from, (statement, most_bytes)) in [0, 50_000]
        .into_iter()
        .flat_map(|from| [(FORWARD, 16_777), (FORWARD_SIZED, 16_777_216)].map(|statement| (from, statement)))
    {
        let read = plan(conn, BEGIN, statement, &format!("{from}, {known}, 1000, {most_bytes}, {high}")).await;
        assert_by_index(&read, READS, state);
        let counts = read.split("actual rows=").skip(1).map(|node| node.split([' ', '.']).next().unwrap());
        let most = counts.map(|rows| rows.parse::<u32>().unwrap()).max();
        // The retries are merged from the start on: those of the 2000 known events are passed by.
        assert!(
            most.is_some_and(|most| most <= if from == 0 { 3000 } else { 1000 }),
            "{state}: rows beyond the limit were looked at\n{read}"
        );
    }
    let keys = format!("0, {known}, 1000, 16777216, {high}, ARRAY[{key}], 100000");
    assert_by_index(&plan(conn, BEGIN, KEYS, &keys).await, READS, state);
    assert_by_index(&plan(conn, BEGIN, SWEEP, &format!("0, {high}, 10000")).await, READS, state);
    assert_by_index(&plan(conn, BEGIN, SPAN, &format!("0, {high}, 99999")).await, READS, state);
    let ids = range(100_001, 101_000);
    let event_ids = "array_fill(gen_random_uuid(), ARRAY[1000])";
    assert_by_index(&plan(conn, "BEGIN", SETTLE, &format!("{ids}, {event_ids}")).await, SETTLES, state);
    let ranged = plan(conn, "BEGIN", SETTLE_RANGE, &format!("{ids}, {event_ids}, 100001, 101000")).await;
    assert_by_index(&ranged, SETTLES, state);
    assert!(ranged.contains("hashed SubPlan"), "{state}: the list is searched anew for each row\n{ranged}");
    let retried = format!("{ids}, {event_ids}, {ids}, {event_ids}");
    assert_by_index(&plan(conn, BEGIN_WRITE, SETTLE_RETRIED, &retried).await, SETTLES, state);
    let of = |value: &str| format!("array_fill({value}, ARRAY[1000])");
    let (text, number) = (of("'x'::text"), of("1"));
    let (delay, no) = (of("1.0::float8"), of("false"));
    let values = format!("{ids}, {event_ids}, {number}, {number}, {delay}, {text}, {text}, {no}");
    assert_by_index(&plan(conn, BEGIN_WRITE, RETRY, &values).await, SETTLES, state);
    let values = format!("{ids}, {event_ids}, {number}, {text}, {text}");
    assert_by_index(&plan(conn, BEGIN_WRITE, BURY, &values).await, SETTLES, state);
    assert_by_index(&plan(conn, BEGIN_WRITE, ACQUIT, &format!("{ids}, {event_ids}")).await, SETTLES, state);
    let gone = plan(conn, BEGIN_WRITE, RETRY_GONE, &format!("{ids}, {event_ids}")).await;
    assert!(!gone.contains("Seq Scan on retries"), "{state}\n{gone}");
    assert_by_index(&plan(conn, "BEGIN", RETRY_STATES, &format!("{ids}, {event_ids}")).await, SETTLES, state);
}

#[tokio::test]
async fn statements_go_by_index_whatever_the_statistics_say() {
    let Some(database) = Database::migrated("plans").await else { return };
    let mut conn = database.connect().await;
    // The statistics stay as the test leaves them.
    for table in ["events", "retries"] {
        run(&mut conn, &format!("ALTER TABLE outbox.{table} SET (autovacuum_enabled = off)")).await.unwrap();
    }
    run(&mut conn, "VACUUM ANALYZE outbox.events, outbox.retries").await.unwrap();
    fill(&mut conn, 200_000).await;
    assert_plans(&mut conn, "loaded after statistics of an empty table, no retries").await;
    let retries = "INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id) \
                   SELECT id, event_id, bucket, aggregate_type, aggregate_id FROM outbox.events";
    run(&mut conn, retries).await.unwrap();
    assert_plans(&mut conn, "200 000 retries").await;
    run(&mut conn, "ANALYZE outbox.events, outbox.retries").await.unwrap();
    assert_plans(&mut conn, "200 000 retries, analysed").await;
    run(&mut conn, "DELETE FROM outbox.events; DELETE FROM outbox.retries").await.unwrap();
    assert_plans(&mut conn, "all deleted").await;
    run(&mut conn, "VACUUM ANALYZE outbox.events, outbox.retries").await.unwrap();
    fill(&mut conn, 200_000).await;
    assert_plans(&mut conn, "loaded again after statistics of a table that had become empty, no retries").await;
}

#[tokio::test]
async fn a_limit_limits_whatever_the_planner_may_not_use() {
    let Some(database) = Database::migrated("limits").await else { return };
    let mut conn = database.connect().await;
    fill(&mut conn, 2000).await;
    let role = format!("hobbled_{}", database.name());
    run(&mut conn, &format!("CREATE ROLE \"{role}\" LOGIN SUPERUSER")).await.unwrap();
    for method in ["hashjoin", "mergejoin", "material", "memoize", "hashagg", "sort", "indexscan", "nestloop"] {
        run(&mut conn, &format!("ALTER ROLE \"{role}\" SET enable_{method} = off")).await.unwrap();
    }
    let url = database.url().replace("postgres://postgres", &format!("postgres://{role}"));
    let mut reader = Reader::open(&url).await;
    let mut next = 1;
    for _ in 0..4 {
        let events = reader.read(10).await.events;
        assert_eq!(ids(&events), (next..next + 10).collect::<Vec<i64>>());
        next += 10;
        reader.settle(&events).await;
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox.events").fetch_one(&mut conn).await.unwrap();
    assert_eq!(left, 2000 - 40, "a settle deletes what was confirmed and nothing else");
    reader.store.close().await;
    run(&mut conn, &format!("DROP ROLE \"{role}\"")).await.unwrap();
}

#[tokio::test]
async fn a_read_is_three_messages_and_a_settle_one() {
    let Some(server) = silent(Options::default().with_setting("log_statement", "all")) else { return };
    let mut conn = migrated(&server).await;
    for _ in 0..10 {
        insert(&mut conn, "a").await;
    }
    let mut reader = Reader::open(&server.url()).await;
    // As the server logs them: one line for each message of the client that holds statements.
    let messages = || {
        let log = std::fs::read_to_string(server.log()).unwrap();
        log.lines().filter(|line| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ")).count()
    };
    let before = messages();
    let events = reader.read(100).await.events;
    assert_eq!(events.len(), 10);
    let after_read = messages();
    reader.settle(&events).await;
    let after_settle = messages();
    // Note and begin with its settings and snapshot, read, commit.
    assert_eq!((after_read - before, after_settle - after_read), (3, 1));
}

#[tokio::test]
async fn a_renewal_is_one_statement_and_tells_how_the_relay_stands() {
    let Some(server) = silent(Options::default().with_setting("log_statement", "all")) else { return };
    let mut conn = migrated(&server).await;
    insert(&mut conn, "a").await;
    let reader = Reader::open(&server.url()).await;
    let logged = |text: &str| {
        let log = std::fs::read_to_string(server.log()).unwrap();
        log.lines().filter(|line| line.contains("LOG:  ") && line.contains(text)).count()
    };
    assert!(reader.store.renew(&reader.ownership).await.unwrap().is_held());
    let before = (logged("execute "), logged("statement: "));
    let standing = reader.store.renew(&reader.ownership).await.unwrap();
    assert_eq!(standing, Renewal::Held(Standing { relays: 1, share: 64, free: 0 }));
    // The statement, between the message that begins its transaction and the one that ends it.
    assert_eq!((logged("execute ") - before.0, logged("statement: ") - before.1), (1, 2));
}
