//! The plans of the statements of a route with a filter: along the index, within the ids that they may look at, and
//! past another route's backlog once it was passed.

use sqlx::PgConnection;

use crate::database::{Database, run};
use crate::plans::{BEGIN, READS, assert_by_index, plan};

const FORWARD: (&str, &str) = (
    include_str!("../../src/sql/read_forward_matching.sql"),
    "bigint, bigint[], bigint, bigint, bigint, text[], text[], text[], text[], text[], text[], bigint",
);
const FORWARD_SIZED: (&str, &str) = (
    include_str!("../../src/sql/read_forward_sized_matching.sql"),
    "bigint, bigint[], bigint, bigint, bigint, text[], text[], text[], text[], text[], text[], bigint",
);
const KEYS: (&str, &str) = (
    include_str!("../../src/sql/read_keys_matching.sql"),
    "bigint, bigint[], bigint, bigint, bigint, bigint[], bigint, text[], text[], text[], text[], text[], text[], bigint",
);
const SWEEP: (&str, &str) = (
    include_str!("../../src/sql/sweep_matching.sql"),
    "bigint, bigint, bigint, text[], text[], text[], text[], text[], text[], bigint",
);

const EVENTS: u32 = 200_000;
/// One event in a thousand is a cart's.
const CARTS: &str = "'{cart}', '{%}', '{}', '{}', '{}', '{}', -1";
/// What is left by routes of each shape: nothing but these carts.
const LEFT_OVER: &str = "'{%}', '{%}', '{invoice,box%}', '{late,%.late}', '{order,order}', '{chan%,paid}', -1";
const REACH: i64 = 100_000;

async fn fill(conn: &mut PgConnection) {
    let sql = format!(
        "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
         SELECT CASE WHEN i % 1000 = 0 THEN 'cart' ELSE 'order' END, i % 5000, 'changed', '{{}}' \
           FROM generate_series(1, {EVENTS}) AS i"
    );
    run(conn, &sql).await.unwrap();
}

/// Rows that the scan of `events` has looked at.
fn looked_at(plan: &str) -> u32 {
    let scan = plan.split("events_pkey on events").nth(1).unwrap_or_else(|| panic!("no index scan\n{plan}"));
    let number = |text: &str, name: &str| {
        let digits = text.split(name).nth(1)?.trim_start().split([' ', '.', '\n']).next()?;
        digits.parse::<u32>().ok()
    };
    let node = scan.split("->").next().unwrap_or(scan);
    number(node, "actual rows=").unwrap_or(0) + number(node, "Rows Removed by Filter:").unwrap_or(0)
}

async fn assert_plans(conn: &mut PgConnection, state: &str) {
    let first: i64 = sqlx::query_scalar("SELECT min(id) FROM outbox.events").fetch_one(&mut *conn).await.unwrap();
    let (from, end) = (first - 1, first - 1 + i64::from(EVENTS));
    for filter in [CARTS, LEFT_OVER] {
        for (statement, most_bytes) in [(FORWARD, 16_777), (FORWARD_SIZED, 16_777_216)] {
            let read = async |conn: &mut PgConnection, after: i64, limit: u32| {
                let values = format!("{after}, '{{}}', {limit}, {most_bytes}, {}, {filter}", after + REACH);
                plan(conn, BEGIN, statement, &values).await
            };
            let page = read(conn, from, 1000).await;
            assert_by_index(&page, READS, state);
            assert_eq!(looked_at(&page), u32::try_from(REACH).unwrap(), "{state}: no more than its reach\n{page}");
            let page = read(conn, from, 10).await;
            assert_eq!(looked_at(&page), 10_000, "{state}: no more than its page\n{page}");
            let page = read(conn, end, 1000).await;
            assert_eq!(looked_at(&page), 0, "{state}: what was passed is not looked at\n{page}");
        }
        let key = "hashtextextended('0', hashtextextended('cart', 0))";
        let keys = format!("{from}, '{{}}', 1000, 16777216, {end}, ARRAY[{key}], 100000, {filter}");
        let keys = plan(conn, BEGIN, KEYS, &keys).await;
        assert_by_index(&keys, READS, state);
        assert_eq!(looked_at(&keys), 100_000, "{state}: no more than its span\n{keys}");
        let sweep = plan(conn, BEGIN, SWEEP, &format!("{from}, {end}, 10000, {filter}")).await;
        assert_by_index(&sweep, READS, state);
        assert_eq!(looked_at(&sweep), 10_000, "{state}: no more than its page\n{sweep}");
    }
}

#[tokio::test]
async fn filtered_statements_go_by_index_whatever_the_statistics_say() {
    let Some(database) = Database::migrated("plans_matching").await else { return };
    let mut conn = database.connect().await;
    // The statistics stay as the test leaves them.
    for table in ["events", "retries"] {
        run(&mut conn, &format!("ALTER TABLE outbox.{table} SET (autovacuum_enabled = off)")).await.unwrap();
    }
    run(&mut conn, "VACUUM ANALYZE outbox.events, outbox.retries").await.unwrap();
    fill(&mut conn).await;
    assert_plans(&mut conn, "loaded after statistics of an empty table, no retries").await;
    let retries = "INSERT INTO outbox.retries (id, event_id, bucket, aggregate_type, aggregate_id) \
                   SELECT id, event_id, bucket, aggregate_type, aggregate_id FROM outbox.events";
    run(&mut conn, retries).await.unwrap();
    run(&mut conn, "ANALYZE outbox.events, outbox.retries").await.unwrap();
    assert_plans(&mut conn, "200 000 retries, analysed").await;
    run(&mut conn, "DELETE FROM outbox.events; DELETE FROM outbox.retries").await.unwrap();
    run(&mut conn, "VACUUM ANALYZE outbox.events, outbox.retries").await.unwrap();
    fill(&mut conn).await;
    assert_plans(&mut conn, "loaded again after statistics of a table that had become empty, no retries").await;
}
