//! Several relays share a route: who joins, leaves, dies, or stands still.

use std::time::{Duration, Instant};

use outbox_testkit::proxy::{FaultProxy, Mode};

use crate::database::Database;
use crate::deadline::{is_full, seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Consumer, Queue, broker};
use crate::relay::{Relay, RelayConfig};

const WINDOW: usize = 200;

/// The lease of [`RelayConfig`].
const LEASE: Duration = Duration::from_secs(3);

/// Waits until each of these has its share and none is left over. How long that took.
async fn shared(relays: &[&Relay], limit: Duration) -> Duration {
    let (began, count) = (Instant::now(), relays.len() as u64);
    until(limit, "each relay has its share", || async {
        let mut all = 0;
        for relay in relays {
            let buckets = relay.buckets().await;
            if buckets < 64 / count {
                return false;
            }
            all += buckets;
        }
        all == 64
    })
    .await;
    began.elapsed()
}

/// Waits until all is delivered and gone.
async fn finished(db: &Database, consumer: &Consumer, copies: usize) {
    until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;
    let history = load::history(db).await;
    until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
    let verdict = history.judge(consumer.events());
    println!("{verdict}");
    assert!(verdict.holds() && verdict.duplicates <= copies, "{verdict}");
    assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0), "nothing is charged");
}

/// Field reports B12 and B81 (the share of a relay that stops is taken within a second or two).
#[tokio::test(flavor = "multi_thread")]
async fn relays_that_join_leave_and_die_share_a_route() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("shares").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(200), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let config = config.with_rabbitmq(&url, &queue.name).with("relay.window", &WINDOW.to_string());
        load::prepare(&db).await;
        let mut writers = Vec::new();
        let mut write = || writers.push(load::spawn(&db.url(), &Load { writers: 3, ..Load::ordinary(1_500) }));
        write();
        let first = config.start().await;
        first.wait_owner(seconds(20)).await;
        let (second, third) = (config.start().await, config.start().await);
        println!("three relays: {:?}", shared(&[&first, &second, &third], seconds(10)).await);
        let report = config.call(&["status"]);
        let report = String::from_utf8(report.stdout).unwrap();
        assert_eq!(report.lines().filter(|line| line.contains("buckets owned by")).count(), 3, "{report}");
        write();
        let fourth = config.start().await;
        println!("one joined: {:?}", shared(&[&first, &second, &third, &fourth], seconds(10)).await);
        write();
        assert_eq!(second.stop().await, Some(0));
        println!("one left: {:?}", shared(&[&first, &third, &fourth], seconds(10)).await);
        let history = load::history(&db).await;
        assert_eq!(history.judge(consumer.events()).duplicates, 0, "who joins or leaves makes no copies");
        write();
        consumer.wait_for(consumer.count() + 100, seconds(20)).await;
        first.kill9().await;
        println!("one died: {:?}", shared(&[&third, &fourth], LEASE + seconds(4)).await);
        for writers in writers {
            load::finish(writers).await;
        }
        finished(&db, &consumer, WINDOW).await;
        assert_eq!((third.stop().await, fourth.stop().await), (Some(0), Some(0)));
        assert_eq!(db.number("SELECT count(owner) FROM outbox.buckets").await, 0);
        assert_eq!(db.count("relays").await, 0);
    })
    .await;
}

/// Field reports B12 and B15.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stood_still_changes_nothing_when_it_goes_on() {
    let rounds = if is_full() { 20 } else { 3 };
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("frozen").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(60 + 25 * rounds), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let config = config.with_rabbitmq(&url, &queue.name).with("relay.window", &WINDOW.to_string());
        let config = config.with("relay.lease", "5s");
        load::prepare(&db).await;
        let (frozen, other) = (config.start().await, config.start().await);
        shared(&[&frozen, &other], seconds(20)).await;
        let load = Load { writers: 8, aggregates: 50, ..Load::ordinary(usize::MAX) };
        let writers = load::spawn(&db.url(), &load);
        let mut copies = 0;
        for round in 1..=rounds {
            consumer.wait_for(consumer.count() + 200, seconds(20)).await;
            frozen.signal("STOP");
            let stopped = Instant::now();
            until(seconds(10), "the other has taken over", || async { other.buckets().await == 64 }).await;
            println!("round {round}: taken over after {:?}", stopped.elapsed());
            until(seconds(13), "it has stood still", || std::future::ready(stopped.elapsed() > seconds(12))).await;
            frozen.signal("CONT");
            shared(&[&frozen, &other], seconds(20)).await;
            let so_far = consumer.copies();
            assert!(so_far - copies <= WINDOW, "round {round}: {} copies", so_far - copies);
            copies = so_far;
        }
        drop(writers);
        until(seconds(20), "the writers are gone", || async {
            db.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'").await == 0
        })
        .await;
        finished(&db, &consumer, copies).await;
        assert!(frozen.logged("the route is lost") >= usize::try_from(rounds).unwrap());
        assert_eq!((frozen.stop().await, other.stop().await), (Some(0), Some(0)));
    })
    .await;
}

/// The buckets of a relay that died hold very many events (a hundred thousand with `--full`): the next owner begins with
/// the first of them at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_that_is_taken_over_is_begun_within_a_second() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("taken_backlog").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(150), async {
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let (_, rest) = url.split_once('@').unwrap();
        let proxy = FaultProxy::start(rest.split('/').next().unwrap()).await.unwrap();
        proxy.set_mode(Mode::Refuse);
        load::prepare(&db).await;
        // One that can't reach the broker, and one that can.
        let lame = config.clone().with_rabbitmq(&proxy.url_for(&url), &queue.name).start().await;
        until(seconds(20), "it owns all", || async { lame.buckets().await == 64 }).await;
        let well = config.with_rabbitmq(&url, &queue.name).start().await;
        shared(&[&lame, &well], seconds(20)).await;
        let events = if is_full() { 200_000 } else { 40_000 };
        load::fill(&db, events, 5_000).await;
        let lame_owner = "SELECT count(*) FROM outbox.events e JOIN outbox.buckets b USING (bucket)
                          JOIN outbox.relays r ON r.id = b.owner WHERE r.started_at = (SELECT min(started_at) FROM outbox.relays)";
        until(seconds(60), "the other half is delivered", || async {
            db.count("events").await == db.number(lame_owner).await
        })
        .await;
        let waiting = db.count("events").await;
        assert!(waiting > events / 5 * 2, "{waiting}");
        // The consumer is behind the broker's confirms.
        consumer.wait_for(usize::try_from(events - waiting).unwrap(), seconds(60)).await;
        let before = consumer.count();
        lame.kill9().await;
        consumer.wait_for(before + 1, LEASE + seconds(5)).await;
        let arrived = db.number("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").await;
        let lines = well.log();
        let told = |line: &&serde_json::Value| line.to_string().contains("this relay owns the route");
        let taken = lines.iter().find(told).expect("it told so before it sent")["timestamp"].as_str().unwrap().to_owned();
        let taken = db.number(&format!("SELECT (extract(epoch FROM '{taken}'::timestamptz) * 1000)::bigint")).await;
        println!("{waiting} events taken over, the first arrived {} ms later", arrived - taken);
        assert!((0..1_000).contains(&(arrived - taken)), "{taken}, {arrived}");
        finished(&db, &consumer, 0).await;
        assert_eq!(well.stop().await, Some(0));
    })
    .await;
}
