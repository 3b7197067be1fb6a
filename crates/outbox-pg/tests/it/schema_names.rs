//! Any legal schema name works, any other is refused by a rule (field report B89).

use outbox_pg::migrate;
use outbox_pg::{Outbox, SchemaName};

use crate::database::{Database, event, number, run};

#[tokio::test]
async fn odd_names_work_and_hurt_nobody() {
    let Some(database) = Database::empty("schema_names") else { return };
    let mut conn = database.connect().await;
    run(&mut conn, "CREATE TABLE victim (id int); INSERT INTO victim VALUES (1)").await.unwrap();
    let longest = "x".repeat(63);
    let names = [
        "My-Schema",
        "select",
        "a\"b",
        "o'brien",
        "a$$b",
        "a.b",
        "ż",
        "x; drop table victim; --",
        "user",
        "{schema}",
        "$1",
        "a\\b",
        longest.as_str(),
    ];
    for name in names {
        let schema = SchemaName::new(name).unwrap();
        migrate::up(&mut conn, &schema).await.unwrap();
        run(&mut conn, &migrate::roles_sql(&schema)).await.unwrap();
        let outbox = Outbox::new(schema.clone());
        outbox.enqueue(&mut conn, &event("one")).await.unwrap();
        outbox.enqueue_many(&mut conn, &[event("two"), event("three")]).await.unwrap();
        let count = format!("SELECT count(*) FROM {}.events", schema.quoted());
        assert_eq!(number(&mut conn, &count).await, 3, "{name}");
        let exact: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_namespace WHERE nspname = $1")
            .bind(name)
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(exact, 1, "{name}");
        migrate::down(&mut conn, &schema, 0).await.unwrap();
    }
    for name in ["", &"x".repeat(64), "a\nb", "a\0b", "pg_outbox"] {
        SchemaName::new(name).unwrap_err();
    }
    assert_eq!(number(&mut conn, "SELECT count(*) FROM victim").await, 1);
}
