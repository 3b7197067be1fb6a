//! An event exists exactly when its business transaction committed (field report B04).

use outbox_pg::Outbox;
use sqlx::{Connection, PgPool};

use crate::database::{Database, event, event_types, number, run};

const ORDERS: &str = "CREATE TABLE orders (id bigint PRIMARY KEY)";

#[tokio::test]
async fn committed_and_rolled_back() {
    let Some(database) = Database::migrated("atomicity").await else { return };
    let outbox = Outbox::default();
    let mut conn = database.connect().await;

    let mut tx = conn.begin().await.unwrap();
    outbox.enqueue(&mut tx, &event("rolled back")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(event_types(&mut conn).await, Vec::<String>::new());

    let mut tx = conn.begin().await.unwrap();
    let id = outbox.enqueue(&mut tx, &event("committed")).await.unwrap();
    let mut other = database.connect().await;
    assert_eq!(event_types(&mut other).await, Vec::<String>::new(), "visible before the commit");
    tx.commit().await.unwrap();
    let stored: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT event_id FROM outbox.events").fetch_all(&mut other).await.unwrap();
    assert_eq!(stored, [id.as_uuid()]);
    assert_eq!(id.as_uuid().get_version_num(), 7);
}

#[tokio::test]
async fn rolled_back_to_a_savepoint() {
    let Some(database) = Database::migrated("savepoint").await else { return };
    let outbox = Outbox::default();
    let mut conn = database.connect().await;
    let mut tx = conn.begin().await.unwrap();
    outbox.enqueue(&mut tx, &event("outer")).await.unwrap();
    let mut inner = tx.begin().await.unwrap();
    outbox.enqueue(&mut inner, &event("inner")).await.unwrap();
    inner.rollback().await.unwrap();
    outbox.enqueue(&mut tx, &event("after")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(event_types(&mut conn).await, ["outer", "after"]);
}

#[tokio::test]
async fn a_dropped_transaction_leaves_nothing() {
    let Some(database) = Database::migrated("dropped").await else { return };
    let pool = PgPool::connect(database.url()).await.unwrap();
    {
        let mut tx = pool.begin().await.unwrap();
        Outbox::default().enqueue(&mut tx, &event("dropped")).await.unwrap();
    }
    pool.close().await; // waits for the connection, and so for its rollback
    assert_eq!(event_types(&mut database.connect().await).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_unique_violation_after_the_enqueue_takes_the_event_along() {
    let Some(database) = Database::migrated("unique").await else { return };
    let mut conn = database.connect().await;
    run(&mut conn, ORDERS).await.unwrap();
    run(&mut conn, "INSERT INTO orders VALUES (1)").await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    Outbox::default().enqueue(&mut tx, &event("doomed")).await.unwrap();
    run(&mut tx, "INSERT INTO orders VALUES (1)").await.unwrap_err();
    // PostgreSQL turns the commit of a failed transaction into a rollback.
    tx.commit().await.unwrap();
    assert_eq!(event_types(&mut conn).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_session_killed_before_and_after_its_commit() {
    let Some(database) = Database::migrated("killed").await else { return };
    let outbox = Outbox::default();
    let mut killer = database.connect().await;
    run(&mut killer, ORDERS).await.unwrap();
    for (order, commits) in [(1_i64, false), (2, true)] {
        let mut conn = database.connect().await;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut conn).await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        sqlx::query("INSERT INTO orders VALUES ($1)").bind(order).execute(&mut *tx).await.unwrap();
        outbox.enqueue(&mut tx, &event(&format!("order {order}"))).await.unwrap();
        let kill = sqlx::query("SELECT pg_terminate_backend($1, 10000)").bind(pid);
        if commits {
            tx.commit().await.unwrap();
            kill.execute(&mut killer).await.unwrap();
        } else {
            kill.execute(&mut killer).await.unwrap();
            tx.commit().await.unwrap_err();
        }
    }
    assert_eq!(event_types(&mut killer).await, ["order 2"]);
    assert_eq!(number(&mut killer, "SELECT sum(id)::bigint FROM orders").await, 2);
}
