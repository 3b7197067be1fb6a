//! A relay that starts in front of millions of events, with a time-out on its statements. Field report B72.

use std::time::Duration;

use outbox_testkit::services::postgres;
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::database::{Database, run};
use crate::deadline::{is_full, pass, seconds, until, within};
use crate::relay::RelayConfig;

/// What a relay may hold, whatever waits.
const MAX_RESIDENT: u64 = 256 * 1024 * 1024;

/// The first event that is still there.
const LOWEST: &str = "SELECT coalesce(min(id), 0) FROM outbox.events";

#[tokio::test(flavor = "multi_thread")]
async fn the_first_event_goes_soon_and_nothing_grows() {
    let events: u64 = if is_full() { 10_000_000 } else { 500_000 };
    let Some(mut db) = Database::own().await else { return };
    within(seconds(if is_full() { 800 } else { 200 }), async {
        let mut conn = db.connect().await;
        run(&mut conn, "CREATE ROLE hurried LOGIN SUPERUSER; ALTER ROLE hurried SET statement_timeout = '2s'").await;
        let fill = format!(
            "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', 'order-' || n % 200000, 'order.changed', '{{\"a\":\"0123456789012345678901234567890123456789\"}}'
               FROM generate_series(1, {events}) AS n"
        );
        run(&mut conn, &fill).await;
        // Nothing of it is in the server's own memory, and no statistics are there.
        block_in_place(|| db.server().restart(postgres::Mode::Fast)).unwrap();
        let Some(config) = RelayConfig::new(&db.url().replace("postgres@", "hurried@")) else { return };
        let begun = Instant::now();
        let relay = config.with("route.0.stdout", "{}").start().await;
        until(seconds(30), "the first event is delivered", || async { db.number(LOWEST).await != 1 }).await;
        let first = begun.elapsed();
        assert!(first < seconds(10), "{first:?}");

        let (mut slowest, mut most, mut before) = (Duration::ZERO, 0, 0);
        for _ in 0..10 {
            pass(Duration::from_millis(500)).await;
            let asked = Instant::now();
            let (status, body) = relay.probe("/readyz").await;
            assert_eq!(status, 200, "{body}");
            slowest = slowest.max(asked.elapsed());
            most = most.max(relay.resident_bytes());
            let now = db.number(LOWEST).await;
            assert!(now > before || now == 0, "it stands still at {now}");
            before = now;
        }
        println!(
            "{events} waited: the first went {first:?} after the start, {before} after five seconds more; the slowest \
             probe took {slowest:?}, {} MiB were held",
            most / 1024 / 1024
        );
        assert!(most < MAX_RESIDENT, "{most} bytes");
        assert!(slowest < seconds(1), "{slowest:?}");
        assert_eq!(relay.logged("57014"), 0, "{:?}", relay.log());
        assert_eq!(relay.logged("the database is away"), 0, "{:?}", relay.log());
        assert_eq!(relay.stop().await, Some(0));
    })
    .await;
}
