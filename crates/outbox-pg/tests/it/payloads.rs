//! Odd payloads and names are stored as written or refused by name (field report B27, enqueue side).

use outbox_core::{Event as _, InvalidEvent, NewEvent, Payload};
use outbox_pg::{EnqueueError, Outbox};

use crate::database::{Database, code, number, run};

#[tokio::test]
async fn json_is_kept_byte_for_byte() {
    let Some(database) = Database::migrated("payload_json").await else { return };
    let mut conn = database.connect().await;
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let texts = [
        "null",
        "\"\"",
        "0",
        "[]",
        "{}",
        "true",
        " { \"b\": 1,\n\"a\" : 1.0, \"a\":2 } ",
        "\"\\u0000\"",
        "\"żółć 🦀\"",
        "123456789012345678901234567890.10",
        "1e400",
        "-0",
        &deep,
    ];
    for text in texts {
        let event = NewEvent::new("a", "b", "c", Payload::raw_json(text.to_owned()));
        Outbox::default().enqueue(&mut conn, &event).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT payload::text FROM outbox.events ORDER BY id").fetch_all(&mut conn).await.unwrap();
    assert_eq!(stored, texts);
}

#[tokio::test]
async fn bytes_are_kept() {
    let Some(database) = Database::migrated("payload_bytes").await else { return };
    let mut conn = database.connect().await;
    for data in [vec![], vec![0], (0..=255).collect::<Vec<u8>>()] {
        let event = NewEvent::new("a", "b", "c", Payload::bytes(data.clone(), "application/x-protobuf"));
        let id = Outbox::default().enqueue(&mut conn, &event).await.unwrap();
        let stored: Vec<u8> = sqlx::query_scalar("SELECT payload_bytes FROM outbox.events WHERE event_id = $1")
            .bind(id.as_uuid())
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(stored, data);
    }
}

#[tokio::test]
async fn names_are_kept_or_refused() {
    let Some(database) = Database::migrated("payload_names").await else { return };
    let mut conn = database.connect().await;
    let named = |id: &str| NewEvent::new("order", id, "placed", Payload::raw_json("1"));
    // The same letter as one character and as two: two aggregates.
    let long = "é".repeat(127) + "x";
    let kept = ["é", "e\u{301}", "🦀", "שלום", " a ", "a\nb", long.as_str()];
    for id in kept {
        Outbox::default().enqueue(&mut conn, &named(id)).await.unwrap();
    }
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT aggregate_id FROM outbox.events ORDER BY id").fetch_all(&mut conn).await.unwrap();
    assert_eq!(stored, kept);

    let refused = |error: EnqueueError| {
        let EnqueueError::Invalid { index: 0, source } = error else { panic!("{error:?}") };
        source
    };
    for id in ["", " ", "\t\n"] {
        let error = refused(Outbox::default().enqueue(&mut conn, &named(id)).await.unwrap_err());
        assert!(matches!(error, InvalidEvent::EmptyName { field: "aggregate_id" }), "{error:?}");
    }
    let error = refused(Outbox::default().enqueue(&mut conn, &named(&"é".repeat(128))).await.unwrap_err());
    assert!(matches!(error, InvalidEvent::LongName { field: "aggregate_id", bytes: 256 }), "{error:?}");
    let error = refused(Outbox::default().enqueue(&mut conn, &named("a\0b")).await.unwrap_err());
    assert!(matches!(error, InvalidEvent::Nul { .. }), "{error:?}");
    for (bytes, valid) in [(255, true), (256, false)] {
        let event = NewEvent::new("a", "b", "c", Payload::bytes("x", "t".repeat(bytes)));
        match Outbox::default().enqueue(&mut conn, &event).await {
            Ok(_) => assert!(valid, "{bytes}"),
            Err(error) => assert!(matches!(refused(error), InvalidEvent::LongContentType { bytes: 256 }), "{bytes}"),
        }
    }
    for json in ["", "{", "{}{}", "nul", "\"\u{1}\""] {
        let event = NewEvent::new("a", "b", "c", Payload::raw_json(json.to_owned()));
        let error = refused(Outbox::default().enqueue(&mut conn, &event).await.unwrap_err());
        assert!(matches!(error, InvalidEvent::Json(_)), "{json}: {error:?}");
    }
}

#[tokio::test]
async fn the_table_refuses_what_foreign_producers_get_wrong() {
    let Some(database) = Database::migrated("payload_table").await else { return };
    let mut conn = database.connect().await;
    let columns = "(aggregate_type, aggregate_id, event_type, payload, payload_bytes, created_at)";
    let good = "'a', 'b', 'c', '1', NULL, now()";
    let refused = [
        ("'a', 'b', 'c', NULL, NULL, now()", "23514"),
        ("'a', 'b', 'c', '1', 'x', now()", "23514"),
        ("'', 'b', 'c', '1', NULL, now()", "23514"),
        ("'a', '', 'c', '1', NULL, now()", "23514"),
        ("'a', 'b', '', '1', NULL, now()", "23514"),
        ("'a', repeat('é', 128), 'c', '1', NULL, now()", "23514"),
        ("'a', NULL, 'c', '1', NULL, now()", "23502"),
        ("'a', 'b', 'c', '1', NULL, 'infinity'", "23514"),
        ("'a', 'b', 'c', '{', NULL, now()", "22P02"),
    ];
    for (values, expected) in refused {
        let error =
            run(&mut conn, &format!("INSERT INTO outbox.events {columns} VALUES ({values})")).await.unwrap_err();
        assert_eq!(code(&error), expected, "{values}: {error}");
    }
    run(&mut conn, &format!("INSERT INTO outbox.events {columns} VALUES ({good})")).await.unwrap();
    let typed = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, content_type) \
                 VALUES ('a', 'b', 'c', '1', repeat('x', 256))";
    assert_eq!(code(&run(&mut conn, typed).await.unwrap_err()), "23514");
    let by_hand = "INSERT INTO outbox.events (id, aggregate_type, aggregate_id, event_type, payload) \
                   VALUES (1, 'a', 'b', 'c', '1')";
    assert_eq!(code(&run(&mut conn, by_hand).await.unwrap_err()), "428C9");
    assert_eq!(number(&mut conn, "SELECT count(*) FROM outbox.events").await, 1);
}

#[tokio::test]
async fn what_only_the_database_can_refuse_is_named() {
    let Some(database) = Database::migrated("payload_refused").await else { return };
    let mut conn = database.connect().await;
    let check = "ALTER TABLE outbox.events ADD CONSTRAINT house_rule CHECK (aggregate_type <> 'secret')";
    run(&mut conn, check).await.unwrap();
    let event = NewEvent::new("secret", "b", "c", Payload::raw_json("{\"token\":\"hunter2\"}"));
    assert_eq!(event.aggregate_type(), "secret");
    let error = Outbox::default().enqueue(&mut conn, &event).await.unwrap_err();
    let EnqueueError::Refused { message, .. } = &error else { panic!("{error:?}") };
    assert!(message.contains("house_rule"), "{error}");
    assert!(!format!("{error} {error:?} {error:#?}").contains("hunter2"), "{error:?}");
}
