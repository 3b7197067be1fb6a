//! Many events in one call (field report B05).

use outbox_core::{EventId, InvalidEvent, NewEvent, Payload};
use outbox_pg::{EnqueueError, Outbox};
use sqlx::Connection;
use uuid::Uuid;

use crate::database::{Database, event, number};

fn numbered(count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| NewEvent::new("order", n.to_string(), "placed", Payload::raw_json(format!("{n}")))).collect()
}

#[tokio::test]
async fn any_number_of_events_in_input_order() {
    let Some(database) = Database::migrated("bulk").await else { return };
    let outbox = Outbox::default();
    let mut conn = database.connect().await;
    for count in [0, 1, 7_000, 10_000, 100_000] {
        let events = numbered(count);
        let mut tx = conn.begin().await.unwrap();
        let ids = outbox.enqueue_many(&mut tx, &events).await.unwrap();
        let stored: Vec<(Uuid, String, String)> =
            sqlx::query_as("SELECT event_id, aggregate_id, payload::text FROM outbox.events ORDER BY id")
                .fetch_all(&mut *tx)
                .await
                .unwrap();
        let expected: Vec<(Uuid, String, String)> =
            ids.iter().enumerate().map(|(n, id)| (id.as_uuid(), n.to_string(), n.to_string())).collect();
        assert_eq!(stored.len(), count);
        assert!(stored == expected, "{count} events: ids or order differ");
        tx.rollback().await.unwrap();
    }
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.events").await, 0);
}

#[tokio::test]
async fn an_invalid_one_is_named_before_anything_is_sent() {
    let Some(database) = Database::migrated("bulk_invalid").await else { return };
    let outbox = Outbox::default();
    let mut conn = database.connect().await;
    let mut events = numbered(10_000);
    events[9_999] = NewEvent::new("order", "", "placed", Payload::raw_json("1"));
    let mut tx = conn.begin().await.unwrap();
    let error = outbox.enqueue_many(&mut tx, &events).await.unwrap_err();
    let EnqueueError::Invalid { index, source: InvalidEvent::EmptyName { field } } = error else { panic!("{error:?}") };
    assert_eq!((index, field), (9_999, "aggregate_id"));
    // No id was taken, and the transaction goes on.
    assert_eq!(number(&mut tx, "SELECT last_value + is_called::int FROM outbox.events_id_seq").await, 1);
    outbox.enqueue(&mut tx, &event("still fine")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.events").await, 1);
}

#[tokio::test]
async fn events_of_every_shape_in_one_call() {
    let Some(database) = Database::migrated("bulk_mixed").await else { return };
    let chosen = EventId::from_uuid(Uuid::from_u128(7));
    let events = [
        event("json").with_header("a", "\"x\"").with_event_id(chosen),
        NewEvent::new("order", "1", "bytes", Payload::bytes(vec![0, 255], "a/b")),
        NewEvent::new("order", "1", "untyped", Payload::Bytes { data: bytes::Bytes::new(), content_type: None }),
    ];
    let mut conn = database.connect().await;
    let ids = Outbox::default().enqueue_many(&mut conn, &events).await.unwrap();
    assert_eq!(ids[0], chosen);
    type Shape = (Option<String>, Option<Vec<u8>>, Option<String>, Option<String>);
    let stored: Vec<Shape> = sqlx::query_as(
        "SELECT payload::text, payload_bytes, content_type, headers::text FROM outbox.events ORDER BY id",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        stored,
        [
            (text("{}"), None, None, text(r#"{"a":"\"x\""}"#)),
            (None, Some(vec![0, 255]), text("a/b"), None),
            (None, Some(vec![]), None, None),
        ]
    );
}

#[tokio::test]
async fn events_larger_than_a_chunk_go_alone() {
    let Some(database) = Database::migrated("bulk_large").await else { return };
    let large = |n: u32| NewEvent::new("file", n.to_string(), "stored", Payload::bytes(vec![7; 9 << 20], "a/b"));
    let events: Vec<NewEvent> = (0..3).map(large).chain(numbered(3)).collect();
    let mut conn = database.connect().await;
    Outbox::default().enqueue_many(&mut conn, &events).await.unwrap();
    let bytes = "SELECT sum(octet_length(payload_bytes))::bigint FROM outbox.events";
    assert_eq!(number(&mut conn, bytes).await, 3 * (9 << 20));
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.events").await, 6);
}
