//! The PostgreSQL store keeps the contract of a store.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{EventId, NewEvent, Payload, Store};
use outbox_pg::{Outbox, PgConfig, PgStore};
use outbox_testkit::store_suite::{OpenTransaction, StoreHarness, StoredDeadLetter, StoredEvent, StoredRetry};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::database::{Database, run};

mod contract {
    outbox_testkit::store_suite!(super::setup);
}

async fn setup() -> Option<Postgres> {
    Database::migrated("contract").await.map(Postgres)
}

struct Postgres(Database);

struct Transaction(PgConnection);

impl Postgres {
    async fn run(&self, sql: String) {
        let mut conn = self.0.connect().await;
        run(&mut conn, &sql).await.unwrap();
        conn.close().await.unwrap();
    }

    async fn rows<T>(&self, sql: &'static str) -> Vec<T>
    where
        T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        let mut conn = self.0.connect().await;
        let rows = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        rows
    }
}

fn id(uuid: Uuid) -> EventId {
    EventId::from_uuid(uuid)
}

fn payload(json: Option<String>, data: Option<Vec<u8>>, content_type: Option<String>) -> Payload {
    match (json, data) {
        (Some(json), _) => Payload::raw_json(json),
        (None, data) => Payload::Bytes { data: data.unwrap_or_default().into(), content_type },
    }
}

#[async_trait]
impl OpenTransaction for Transaction {
    async fn insert(&mut self, event: NewEvent) -> EventId {
        Outbox::default().enqueue(&mut self.0, &event).await.unwrap()
    }

    async fn commit(mut self: Box<Self>) {
        run(&mut self.0, "COMMIT").await.unwrap();
        self.0.close().await.unwrap();
    }

    async fn rollback(mut self: Box<Self>) {
        run(&mut self.0, "ROLLBACK").await.unwrap();
        self.0.close().await.unwrap();
    }
}

#[async_trait]
impl StoreHarness for Postgres {
    async fn relay(&self) -> Arc<dyn Store> {
        Arc::new(PgStore::new(&PgConfig::new(self.0.url()), "suite").unwrap())
    }

    async fn insert(&self, events: Vec<NewEvent>) -> Vec<EventId> {
        let mut conn = self.0.connect().await;
        let mut transaction = conn.begin().await.unwrap();
        let ids = Outbox::default().enqueue_many(&mut transaction, &events).await.unwrap();
        transaction.commit().await.unwrap();
        conn.close().await.unwrap();
        ids
    }

    async fn begin(&self) -> Box<dyn OpenTransaction> {
        let mut conn = self.0.connect().await;
        run(&mut conn, "BEGIN").await.unwrap();
        Box::new(Transaction(conn))
    }

    async fn end_leases(&self, route: &str) {
        let ended = "clock_timestamp() - interval '1 millisecond'";
        self.run(format!("UPDATE outbox.relays SET lease_end = {ended} WHERE route = '{route}'")).await;
    }

    async fn remaining(&self) -> Vec<StoredEvent> {
        let rows: Vec<(i64, Uuid)> = self.rows("SELECT id, event_id FROM outbox.events ORDER BY id").await;
        rows.into_iter().map(|(row, event_id)| StoredEvent { id: row, event_id: id(event_id) }).collect()
    }

    async fn retries(&self) -> Vec<StoredRetry> {
        let sql = "SELECT id, attempts, crashes, blocked, last_error_kind, last_error FROM outbox.retries ORDER BY id";
        let rows: Vec<(i64, i32, i32, bool, String, String)> = self.rows(sql).await;
        let retry = |(id, attempts, crashes, blocked, kind, error)| {
            let (attempts, crashes) = (u32::try_from(attempts).unwrap(), u32::try_from(crashes).unwrap());
            StoredRetry { id, attempts, crashes, blocked, kind, error }
        };
        rows.into_iter().map(retry).collect()
    }

    async fn dead_letters(&self) -> Vec<StoredDeadLetter> {
        type Row = (Uuid, Option<String>, Option<Vec<u8>>, Option<String>, i32, String, String);
        let sql = "SELECT event_id, payload::text, payload_bytes, content_type, attempts, reason_kind, reason \
                     FROM outbox.dead_letters ORDER BY died_at, id";
        let rows: Vec<Row> = self.rows(sql).await;
        let letter = |(event_id, json, data, content_type, attempts, kind, reason)| StoredDeadLetter {
            event_id: id(event_id),
            payload: payload(json, data, content_type),
            attempts: u32::try_from(attempts).unwrap(),
            kind,
            reason,
        };
        rows.into_iter().map(letter).collect()
    }

    async fn unblock(&self, id: i64) {
        let unblock = "attempts = 0, crashes = 0, blocked = false, next_attempt_at = now()";
        self.run(format!("UPDATE outbox.retries SET {unblock} WHERE id = {id}")).await;
    }

    async fn make_due(&self, id: i64) {
        self.run(format!("UPDATE outbox.retries SET next_attempt_at = now() WHERE id = {id}")).await;
    }

    async fn clear_retry(&self, id: i64) {
        self.run(format!("DELETE FROM outbox.retries WHERE id = {id}")).await;
    }

    async fn delete_event(&self, id: i64) {
        self.run(format!("DELETE FROM outbox.events WHERE id = {id}")).await;
    }

    async fn insert_with_id(&self, id: i64, event: NewEvent) -> Option<EventId> {
        // Written as producers do, in a transaction that then moves it: never visible under the other id.
        let mut conn = self.0.connect().await;
        let mut conn = conn.begin().await.unwrap();
        let event_id = Outbox::default().enqueue(&mut conn, &event).await.unwrap();
        let insert = format!(
            "WITH moved AS (DELETE FROM outbox.events WHERE event_id = '{event_id}' RETURNING *) \
             INSERT INTO outbox.events (id, event_id, aggregate_type, aggregate_id, event_type, payload) \
             OVERRIDING SYSTEM VALUE \
             SELECT {id}, event_id, aggregate_type, aggregate_id, event_type, payload FROM moved"
        );
        sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut *conn).await.unwrap();
        conn.commit().await.unwrap();
        Some(event_id)
    }
}
