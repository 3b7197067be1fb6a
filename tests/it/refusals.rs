//! Events that the broker or the wire can't take, and odd ones that it can.

use std::collections::BTreeMap;

use lapin::types::AMQPValue;

use crate::database::{Database, run};
use crate::deadline::{seconds, until, within};
use crate::load;
use crate::queue::{Message, Queue, broker};
use crate::relay::RelayConfig;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_over_the_limit_becomes_a_dead_letter_and_its_neighbours_go_on() {
    const EVENTS: &str = "
        INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
        SELECT 'order', (n % 3)::text, 'placed', to_json(repeat('x', CASE n WHEN 50 THEN 70000 ELSE n END))
          FROM generate_series(1, 100) AS n ORDER BY n";
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("oversize").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(60), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let config = config.with_rabbitmq(&url, &queue.name).with("route.0.rabbitmq.max_message_bytes", "64KiB");
        let relay = config.start().await;
        db.psql(EVENTS);
        consumer.wait_for(99, seconds(20)).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert!(relay.reason().await.is_empty(), "one event is no trouble of the destination");
        assert_eq!(relay.stop().await, Some(0));
        let lengths = |aggregate: &str| {
            let messages = consumer.messages();
            let own = messages.iter().filter(|message| message.headers["aggregate-id"] == aggregate);
            own.map(|message| message.body.len() - 2).collect::<Vec<_>>()
        };
        assert_eq!(consumer.count(), 99);
        // The dead letter left the order of its aggregate; what came after it did not wait for long.
        assert_eq!(lengths("2"), (2..=100).step_by(3).filter(|n| *n != 50).collect::<Vec<_>>());
        assert_eq!(lengths("1"), (1..=100).step_by(3).collect::<Vec<_>>());
        let dead =
            db.psql("SELECT event_type, length(payload::text), reason_kind, attempts, reason FROM outbox.dead_letters");
        assert!(dead.starts_with("placed|70002|rejected|0|") || dead.starts_with("placed|70002|rejected|1|"), "{dead}");
        assert!(dead.contains("70002") && dead.contains("65536"), "the reason tells the figures: {dead}");
        assert_eq!(db.count("retries").await, 0);
    })
    .await;
}

/// Field reports B24 and B27, inserted by SQL alone.
#[tokio::test(flavor = "multi_thread")]
async fn odd_events_arrive_as_written_or_die_alone() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let mut json: BTreeMap<&str, String> =
        ["null", "\"\"", "0", "[]", "{}", " {\"a\" : 1.0, \"a\":2}", "\"\\u0000\"", "1E400"]
            .iter()
            .map(|text| (*text, (*text).to_owned()))
            .collect();
    json.insert("nested 200", nested(200));
    json.insert("nested 5000", nested(5000));
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("odd_events").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(60), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let mut conn = db.connect().await;
        run(&mut conn, "BEGIN").await;
        for (name, text) in &json {
            let sql = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
                       VALUES ('json', $1, 'odd', $2::json)";
            sqlx::query(sql).bind(name).bind(text).execute(&mut conn).await.unwrap();
        }
        // U+00E9 and e + U+0301 look alike and are two aggregates.
        for key in ["\u{e9}", "e\u{301}", "👩‍👩‍👧", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}", " ", "a.b#*/%"] {
            let sql = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
                       VALUES ('key', $1, 'odd ☃ type', '1')";
            sqlx::query(sql).bind(key).execute(&mut conn).await.unwrap();
        }
        run(
            &mut conn,
            r#"INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_bytes, content_type) VALUES
                 ('bytes', 'empty', 'odd', '', NULL), ('bytes', 'one', 'odd', '\x00', 'a/b');
               INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers) VALUES
                 ('headers', 'array', 'odd', '1', '["a"]'), ('headers', 'nested', 'odd', '1', '{"a":{"b":1}}'),
                 ('headers', 'fine', 'odd', '1', '{"a":"ü"}');
               COMMIT"#,
        )
        .await;
        for refused in ["NULL", "'{}', '\\x00'"] {
            let columns = if refused == "NULL" { "payload" } else { "payload, payload_bytes" };
            let sql = format!("INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, {columns}) VALUES ('a', 'b', 'c', {refused})");
            assert!(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.is_err(), "exactly one payload");
        }
        let relay = config.with_rabbitmq(&url, &queue.name).start().await;
        until(seconds(20), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        let expected = json.len() + 6 + 2 + 1;
        consumer.wait_for(expected, seconds(10)).await;
        assert!(relay.reason().await.is_empty());
        assert_eq!(relay.stop().await, Some(0));
        let messages = consumer.messages();
        assert_eq!(messages.len(), expected);
        let of = |kind: &str| messages.iter().filter(|message| message.headers["aggregate-type"] == kind).collect::<Vec<_>>();
        let bodies: BTreeMap<&str, String> = of("json").iter().map(|message| (id(message), text(message))).collect();
        assert_eq!(bodies, json);
        assert_eq!(of("key").len(), 6);
        let keys: Vec<&str> = of("key").iter().map(|message| id(message)).collect();
        assert!(keys.contains(&"\u{e9}") && keys.contains(&"e\u{301}") && keys.contains(&"a.b#*/%"), "{keys:?}");
        let bytes: BTreeMap<&str, &[u8]> = of("bytes").iter().map(|message| (id(message), &message.body[..])).collect();
        assert_eq!(bytes, BTreeMap::from([("empty", &[][..]), ("one", &[0][..])]));
        assert_eq!(of("headers").iter().map(|message| message.headers["a"].as_str()).collect::<Vec<_>>(), ["ü"]);
        let dead = db.psql("SELECT aggregate_id, reason FROM outbox.dead_letters ORDER BY 1");
        assert_eq!(dead.lines().count(), 2, "{dead}");
        assert!(dead.lines().all(|line| line.contains("header")), "{dead}");
        assert_eq!(db.count("retries").await, 0);
    })
    .await;
}

/// A producer in any language: nothing but INSERT.
#[tokio::test(flavor = "multi_thread")]
async fn events_inserted_by_psql_arrive_byte_for_byte() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("psql").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(60), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let relay = config.with_rabbitmq(&url, &queue.name).start().await;
        db.psql(
            r#"INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers)
               VALUES ('order', '1', 'placed', '{"b": 1.50,  "a": "ü"}', '{"traceparent": "00-1", "x": "y"}')"#,
        );
        db.psql(
            r"INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_bytes, content_type)
              VALUES ('order', '1', 'scanned', '\x00ff10', 'image/x')",
        );
        let id = db.psql(
            "SELECT outbox.enqueue(aggregate_type => 'order', aggregate_id => '1', event_type => 'paid', payload => '3')",
        );
        consumer.wait_for(3, seconds(20)).await;
        assert_eq!(relay.stop().await, Some(0));
        let messages = consumer.messages();
        let bodies: Vec<&[u8]> = messages.iter().map(|message| &message.body[..]).collect();
        assert_eq!(bodies, ["{\"b\": 1.50,  \"a\": \"ü\"}".as_bytes(), &[0, 255, 16], b"3"]);
        let header = |message: usize, name: &str| messages[message].headers[name].clone();
        assert_eq!((header(0, "traceparent"), header(0, "x")), ("00-1".to_owned(), "y".to_owned()));
        assert_eq!((header(1, "content-type"), header(1, "event-type")), ("image/x".to_owned(), "scanned".to_owned()));
        assert_eq!((header(2, "event-id"), messages[2].event.to_string()), (id.clone(), id));
    })
    .await;
}

/// Field report B42: a full queue nacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_waited_for() {
    let Some(url) = broker() else { return };
    for kind in ["classic", "quorum"] {
        let Some(db) = Database::shared("full_queue").await else { return };
        let Some(config) = RelayConfig::new(&db.url()) else { return };
        within(seconds(90), async {
            let queue = Queue::bare(&url).await;
            queue.declare_exchange().await;
            let text = |text: &str| AMQPValue::LongString(text.into());
            queue
                .declare_queue(&[
                    ("x-queue-type", text(kind)),
                    ("x-overflow", text("reject-publish")),
                    ("x-max-length", AMQPValue::LongInt(50)),
                ])
                .await;
            load::prepare(&db).await;
            load::fill(&db, 120, 12).await;
            let relay = config.with_rabbitmq(&url, &queue.name).start().await;
            until(seconds(20), "the relay tells that the queue is full", || async {
                !relay.reason().await.is_empty() && db.count("events").await <= 70
            })
            .await;
            assert!(db.count("events").await > 0, "{kind}: nothing was refused");
            let mut arrived = Vec::new();
            until(seconds(60), "all 120 arrive", async || {
                while let Some(message) = queue.take().await {
                    arrived.push(message.event);
                }
                arrived.len() >= 120
            })
            .await;
            until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
            assert_eq!(relay.stop().await, Some(0));
            let verdict = load::history(&db).await.judge(arrived);
            assert!(verdict.holds() && verdict.duplicates == 0, "{kind}: {verdict}");
            assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0), "{kind}");
        })
        .await;
    }
}

fn id(message: &Message) -> &str {
    &message.headers["aggregate-id"]
}

fn text(message: &Message) -> String {
    String::from_utf8(message.body.clone()).unwrap()
}
