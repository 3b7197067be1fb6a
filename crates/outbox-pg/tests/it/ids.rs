//! Ids beyond 32 and 53 bits (field report B79, enqueue side).

use outbox_pg::Outbox;

use crate::database::{Database, event, number, run};

#[tokio::test]
async fn ids_of_any_size_are_taken() {
    let Some(database) = Database::migrated("ids").await else { return };
    let outbox = Outbox::default();
    let mut conn = database.connect().await;
    for start in [3_000_000_000_i64, (1 << 53) + 1, 9_223_372_036_854_775_000] {
        run(&mut conn, &format!("ALTER TABLE outbox.events ALTER COLUMN id RESTART WITH {start}")).await.unwrap();
        outbox.enqueue(&mut conn, &event("one")).await.unwrap();
        outbox.enqueue_many(&mut conn, &[event("two"), event("three")]).await.unwrap();
        run(&mut conn, "SELECT outbox.enqueue('a', 'b', 'four', '1')").await.unwrap();
        assert_eq!(number(&mut conn, "SELECT max(id) FROM outbox.events").await, start + 3);
    }
    let narrow = "SELECT count(*) FROM pg_sequences WHERE schemaname = 'outbox' AND data_type <> 'bigint'::regtype";
    assert_eq!(number(&mut conn, narrow).await, 0);
}
