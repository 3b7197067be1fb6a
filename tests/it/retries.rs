//! Field report B06: a retry keeps its place, and so does an event that is given up under `on_dead = "block"`.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{ErrorKind, NewEvent, Payload};
use outbox_pg::blocked::{Operator, Selector, retry, skip};
use outbox_pg::{Outbox, SchemaName};
use outbox_relay::OnDead;
use outbox_testkit::memory::{MemoryPublisher, Scripted};

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::embedded::{Embedded, config};

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_failing_event_of_its_aggregate_waits_and_nobody_else_does() {
    let Some(db) = Database::shared("retries").await else { return };
    within(seconds(60), async {
        let new = |aggregate: &str, name: &str| NewEvent::new("order", aggregate, name, Payload::raw_json("1"));
        let events = [new("a", "a1"), new("a", "a2"), new("a", "a3"), new("b", "b1")];
        let mut conn = db.connect().await;
        Outbox::default().enqueue_many(&mut conn, &events).await.unwrap();
        let script = |event: &outbox_core::Envelope, nth: usize| match nth {
            1 | 2 if event.event_type == "a1" => Scripted::fail(ErrorKind::Failed),
            _ => Scripted::Confirm,
        };
        let publisher = Arc::new(MemoryPublisher::new().with_script(script));
        let mut config = config();
        (config.retry_initial, config.retry_max) = (Duration::from_secs(2), Duration::from_secs(3));
        let relay = Embedded::start(&db.url(), config, &publisher).await;
        let names = || publisher.delivered().into_iter().map(|event| event.event_type).collect::<Vec<_>>();
        let one_waits = "SELECT count(*) FROM outbox.retries WHERE aggregate_id = 'a' AND attempts BETWEEN 1 AND 2";
        until(seconds(20), "a1 has failed and b1 is gone", || async {
            (db.number(one_waits).await == 1 && db.count("events").await == 3) || names().len() == 4
        })
        .await;
        assert_eq!(db.count("retries").await, i64::from(names().len() < 4), "a2 and a3 have no attempts");
        until(seconds(20), "all arrive", || std::future::ready(names().len() == 4)).await;
        assert_eq!(names(), ["b1", "a1", "a2", "a3"]);
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        relay.stop().await;
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        let times =
            publisher.view(|view| view.delivered().iter().map(|event| view.times(event.event_id)).collect::<Vec<_>>());
        assert_eq!(times, [1, 3, 1, 1]);
    })
    .await;
}

/// `on_dead = "block"`: the aggregate waits, over a restart too, until an operator retries or skips its first event.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_aggregate_waits_for_an_operator_and_goes_on_in_order() {
    let Some(db) = Database::shared("blocked").await else { return };
    within(seconds(100), async {
        let new = |aggregate: &str, name: &str| NewEvent::new("order", aggregate, name, Payload::raw_json("1"));
        let events = [new("a", "a1"), new("a", "a2"), new("b", "b1"), new("c", "c1"), new("c", "c2")];
        let mut conn = db.connect().await;
        Outbox::default().enqueue_many(&mut conn, &events).await.unwrap();
        let script = |event: &outbox_core::Envelope, _| match event.event_type.as_str() {
            "a1" => Scripted::fail(ErrorKind::Failed),
            "c1" => Scripted::fail(ErrorKind::Rejected),
            _ => Scripted::Confirm,
        };
        let mut config = config();
        (config.on_dead, config.max_attempts) = (OnDead::Block, 2);
        (config.retry_initial, config.retry_max) = (Duration::from_millis(100), Duration::from_millis(100));
        let publisher = Arc::new(MemoryPublisher::new().with_script(script));
        let relay = Embedded::start(&db.url(), config.clone(), &publisher).await;
        let blocked = "SELECT count(*) FROM outbox.retries WHERE blocked AND aggregate_id IN ('a', 'c')";
        until(seconds(20), "both are blocked", || async { db.number(blocked).await == 2 }).await;
        relay.stop().await;

        let publisher = Arc::new(MemoryPublisher::new());
        let relay = Embedded::start(&db.url(), config, &publisher).await;
        let names = || publisher.delivered().into_iter().map(|event| event.event_type).collect::<Vec<_>>();
        Outbox::default().enqueue_many(&mut conn, &[new("a", "a3"), new("d", "d1")]).await.unwrap();
        until(seconds(20), "another aggregate goes on", || std::future::ready(names() == ["d1"])).await;
        let (schema, operator) = (SchemaName::default(), Operator::default());
        let of = |id: &str| Selector { aggregate_id: Some(id.to_owned()), ..Selector::default() };
        assert_eq!(retry(&mut conn, &schema, &of("a"), &operator, 0).await.unwrap().affected, 1);
        until(seconds(20), "it goes on", || std::future::ready(names() == ["d1", "a1", "a2", "a3"])).await;
        assert_eq!(skip(&mut conn, &schema, &of("c"), &operator, 0).await.unwrap().affected, 1);
        until(seconds(20), "it goes on without", || std::future::ready(names() == ["d1", "a1", "a2", "a3", "c2"]))
            .await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        relay.stop().await;
        assert_eq!((db.count("retries").await, db.count("dead_letters").await, db.count("audit").await), (0, 1, 2));
    })
    .await;
}
