//! Field report B06: a retry keeps its place.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{ErrorKind, NewEvent, Payload};
use outbox_pg::Outbox;
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
