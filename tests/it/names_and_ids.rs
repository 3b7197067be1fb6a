//! Field reports B79 (large ids), B89 (names of schemas), and what the binary says to a bad configuration.

use std::time::Duration;

use crate::database::{Database, run};
use crate::deadline::{seconds, until, within};
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

/// Field report B79. Each round also fills `dead_letters`, so that write-backs see the large ids too.
#[tokio::test(flavor = "multi_thread")]
async fn ids_up_to_the_last_ones_work() {
    const EVENTS: &str = "
        INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
        SELECT 'order', (n % 7)::text, 'placed', to_json(repeat('x', CASE n WHEN 50 THEN 70000 ELSE 1 END))
          FROM generate_series(1, 100) AS n";
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("large_ids").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let config = config.with_rabbitmq(&url, &queue.name).with("route.0.rabbitmq.max_message_bytes", "64KiB");
        let mut relay = config.start().await;
        let mut expected = 0;
        for first in [1_i64, 3_000_000_000, (1 << 53) + 1, i64::MAX - 807] {
            run(&mut db.connect().await, &format!("ALTER SEQUENCE outbox.events_id_seq RESTART {first}")).await;
            // Once to a relay that has come from below, once to one that starts up there.
            for started_here in [false, true] {
                if started_here {
                    assert_eq!(relay.stop().await, Some(0));
                    relay = config.start().await;
                }
                db.psql(EVENTS);
                expected += 99;
                consumer.wait_for(expected, seconds(20)).await;
                until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
                let last = first + if started_here { 149 } else { 49 };
                assert_eq!(db.number("SELECT max(id) FROM outbox.dead_letters").await, last);
                assert!(relay.reason().await.is_empty());
                assert_eq!(consumer.count(), expected);
            }
        }
        // The very last id.
        run(&mut db.connect().await, &format!("ALTER SEQUENCE outbox.events_id_seq RESTART {}", i64::MAX)).await;
        let before = consumer.count();
        db.psql(
            "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'b', 'c', '1')",
        );
        consumer.wait_for(before + 1, seconds(10)).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(relay.stop().await, Some(0));
    })
    .await;
}

/// Field report B89, through the binary alone.
#[tokio::test(flavor = "multi_thread")]
async fn schemas_of_any_name_work() {
    let Some(db) = Database::shared("schema_names").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(120), async {
        run(&mut db.connect().await, "CREATE TABLE victim (alive boolean)").await;
        for schema in ["My-Schema", "a\"b", "o'brien $$ ż", "x; drop table victim; --", "select"] {
            let config = config.clone().with("database.schema", schema).with("route.0.stdout", "{}");
            let call = |arguments: &[&str]| {
                let done = config.call(arguments);
                let said =
                    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
                assert!(done.status.success(), "{schema}: {arguments:?}: {said}");
                said
            };
            call(&["migrate", "up"]);
            call(&["migrate", "status"]);
            let event = [
                "--aggregate-type",
                "order",
                "--aggregate-id",
                "1",
                "--event-type",
                "placed",
                "--payload",
                "{\"n\":1}",
            ];
            call(&[&["enqueue"][..], &event].concat());
            let relay = config.start().await;
            until(seconds(20), "the event is on stdout", || std::future::ready(relay.output().contains("{\"n\":1}")))
                .await;
            let quoted = schema.replace('"', "\"\"");
            let left = format!("SELECT count(*) FROM \"{quoted}\".events");
            until(seconds(10), "the outbox is empty", || async { db.number(&left).await == 0 }).await;
            call(&["check", "--connect"]);
            call(&["status"]);
            assert_eq!(relay.stop().await, Some(0), "{schema}");
        }
        assert_eq!(db.number("SELECT count(*) FROM victim").await, 0);
        assert_eq!(db.count("events").await, 0);
        let long = config.clone().with("database.schema", &"s".repeat(64)).with("route.0.stdout", "{}");
        assert_eq!(long.call(&["run"]).status.code(), Some(2));
    })
    .await;
}

/// `run` refuses what it can't understand: the key, the problem, the nearest valid key.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_configuration_is_refused_with_the_nearest_key() {
    let Some(config) = RelayConfig::new("postgres://127.0.0.1:1/app") else { return };
    let check = |key: &str, value: &str, parts: &[&str]| {
        let bad = config.clone().with("route.0.stdout", "{}").with(key, value);
        let begun = std::time::Instant::now();
        let done = bad.call(&["run"]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{key}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{key}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(10), "nothing is connected first");
    };
    check("relay.max_atempts", "3", &["OUTBOX__RELAY__MAX_ATEMPTS", "unknown", "OUTBOX__RELAY__MAX_ATTEMPTS"]);
    check("relay.poll_interval", "50", &["POLL_INTERVAL", "has no unit", "50ms"]);
    check("route.0.rabitmq.url", "amqp://h", &["RABITMQ", "unknown", "rabbitmq"]);
    check("route.0.kafka.brokers", "h", &["kafka"]);
    check("relay.max_attempts", "0", &["max_attempts", "at least 1"]);
}
