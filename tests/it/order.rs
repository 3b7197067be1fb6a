//! Order, copies and losses under ordinary concurrency, with the engine as a library.

use std::time::Duration;

use outbox_core::{EventId, NewEvent, Payload};
use outbox_pg::Outbox;
use sqlx::Connection as _;
use uuid::Uuid;

use crate::database::Database;
use crate::deadline::{is_full, seconds, until, within};
use crate::embedded::{Embedded, config};
use crate::load::{self, Load};
use crate::recorder::Recorder;

/// The long form takes some four minutes on two busy processors.
fn limit() -> Duration {
    seconds(if is_full() { 880 } else { 280 })
}

/// What each run must show, whatever the load.
async fn judge(db: &Database, recorder: &Recorder, relay: Embedded) {
    let history = load::history(db).await;
    until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;
    let (by_sweep, by_look_back) = (relay.late_by_full_sweep(), relay.late_by_look_back());
    relay.stop().await;
    let verdict = history.judge(recorder.arrivals());
    println!("{verdict}; {by_look_back} late by look-back, {by_sweep} by full sweep");
    assert!(verdict.holds(), "{verdict}");
    assert_eq!((verdict.duplicates, by_sweep), (0, 0), "{verdict}");
    assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
}

/// 16 writers that lock their aggregates, and one more that stays open all the while.
#[tokio::test(flavor = "multi_thread")]
async fn writers_that_overlap_and_one_long_writer_break_no_order() {
    let (events, open) = if is_full() { (100_000, seconds(30)) } else { (12_000, seconds(5)) };
    let Some(db) = Database::own().await else { return };
    within(limit(), async {
        load::prepare(&db).await;
        let recorder = Recorder::new();
        let relay = Embedded::start(&db.url(), config(), &recorder).await;
        let mut long = db.connect().await;
        let mut tx = long.begin().await.unwrap();
        let early = Uuid::now_v7();
        Outbox::default().enqueue(&mut tx, &load::event(early, "long", 1)).await.unwrap();
        let sql = "INSERT INTO ledger VALUES ($1, 'long', 1)";
        sqlx::query(sql).bind(early).execute(&mut *tx).await.unwrap();
        let writers = load::spawn(&db.url(), &Load::ordinary(events));
        recorder.stays_away(EventId::from_uuid(early), open).await;
        tx.commit().await.unwrap();
        recorder.wait_for(EventId::from_uuid(early), seconds(5)).await;
        load::finish(writers).await;
        judge(&db, &recorder, relay).await;
    })
    .await;
}

/// Half of the events wait when the relay starts, half are written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_and_new_events_are_delivered_once_and_in_order() {
    let half = if is_full() { 500_000 } else { 25_000 };
    let Some(db) = Database::own().await else { return };
    within(limit(), async {
        load::prepare(&db).await;
        load::fill(&db, i64::try_from(half).unwrap(), 5_000).await;
        let recorder = Recorder::new();
        let load = Load { events: half, writers: 8, aggregates: 2_000, batch: 25, pause_ms: 0..1 };
        let writers = load::spawn(&db.url(), &load);
        let relay = Embedded::start(&db.url(), config(), &recorder).await;
        load::finish(writers).await;
        recorder.wait_distinct(2 * half, limit()).await;
        judge(&db, &recorder, relay).await;
    })
    .await;
}

/// Field report B02: `created_at` is the start of the transaction and no order.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_is_that_of_the_locks_and_not_of_the_clocks() {
    let Some(db) = Database::shared("order_b02").await else { return };
    within(seconds(60), async {
        load::prepare(&db).await;
        let outbox = Outbox::default();
        let (mut one, mut two) = (db.connect().await, db.connect().await);
        let mut first = one.begin().await.unwrap();
        let began: String = sqlx::query_scalar("SELECT now()::text").fetch_one(&mut *first).await.unwrap();
        assert!(!began.is_empty());
        let lock = "INSERT INTO aggregates VALUES ('a', 1)
                    ON CONFLICT (name) DO UPDATE SET version = aggregates.version + 1 RETURNING version";
        let mut second = two.begin().await.unwrap();
        let version: i64 = sqlx::query_scalar(lock).fetch_one(&mut *second).await.unwrap();
        let a1 = outbox.enqueue(&mut second, &versioned(version)).await.unwrap();
        second.commit().await.unwrap();
        let version: i64 = sqlx::query_scalar(lock).fetch_one(&mut *first).await.unwrap();
        let a2 = outbox.enqueue(&mut first, &versioned(version)).await.unwrap();
        first.commit().await.unwrap();
        let reversed = "SELECT count(*) FROM outbox.events a JOIN outbox.events b ON a.id < b.id
                        WHERE a.created_at > b.created_at";
        assert_eq!(db.number(reversed).await, 1, "the scenario: the later event has the earlier time");
        let recorder = Recorder::new();
        let relay = Embedded::start(&db.url(), config(), &recorder).await;
        recorder.wait_distinct(2, seconds(10)).await;
        relay.stop().await;
        assert_eq!(recorder.arrivals(), [a1, a2]);
    })
    .await;
}

fn versioned(version: i64) -> NewEvent {
    NewEvent::new("order", "a", "order.changed", Payload::raw_json(version.to_string()))
}
