//! Outages that last: nothing is charged, little is said, the server that comes back is not run down, and delivery goes
//! on soon. Field reports B18 and B23.

use std::time::Duration;

use outbox_testkit::proxy::FaultProxy;
use outbox_testkit::services::nats::Version;
use outbox_testkit::services::postgres;
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::database::Database;
use crate::deadline::{is_full, pass, seconds, until, within};
use crate::destination::{Mortal, NatsStream, RabbitMqQueue};
use crate::load;
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

/// A hundred events a second.
const GAP: Duration = Duration::from_millis(10);
const WINDOW: usize = 500;
const LINES_A_MINUTE: u64 = 20;

#[tokio::test(flavor = "multi_thread")]
async fn own_broker_rabbitmq_away_for_long() {
    if let Some(queue) = RabbitMqQueue::own().await {
        stays_away(queue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_away_for_long() {
    if let Some(stream) = NatsStream::own(Version::New).await {
        stays_away(stream).await;
    }
}

async fn stays_away(mut destination: impl Mortal) {
    let minutes = if is_full() { 10 } else { 1 };
    let Some(db) = Database::shared(&format!("long_{}", destination.kind())).await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(minutes * 60 + 200), async {
        load::prepare(&db).await;
        destination.make().await;
        let relay = destination.lead(config).with("relay.window", &WINDOW.to_string()).start().await;
        relay.wait_owner(seconds(20)).await;
        let mut writer = load::trickle(&db.url(), GAP, 100);
        until(seconds(30), "events are delivered", || async {
            db.number("SELECT (SELECT count(*) FROM ledger) - (SELECT count(*) FROM outbox.events)").await > 100
        })
        .await;

        let lines = relay.logged("");
        destination.go_down().await;
        for minute in 1..=minutes {
            pass(seconds(60)).await;
            let reason = relay.reason().await;
            assert!(reason.starts_with("destination: "), "minute {minute}: {reason}");
            let told = (relay.logged("") - lines) as u64;
            assert!(told <= minute * LINES_A_MINUTE, "{told} lines in {minute} minutes: {:?}", relay.log());
            assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0), "minute {minute}");
        }
        let told = relay.logged("") - lines;
        let waited = db.count("events").await;
        assert!(waited > i64::try_from(minutes * 60 * 20).unwrap(), "only {waited} events waited");
        let newest = db.number("SELECT max(id) FROM outbox.events").await;
        destination.come_back().await;
        // The launcher returns when the broker answers a client.
        let back = Instant::now();
        let waiting = format!("SELECT count(*) FROM outbox.events WHERE id <= {newest}");
        until(seconds(20), "delivery goes on", || async { db.number(&waiting).await < waited }).await;
        let went_on = back.elapsed();
        until(seconds(60), "what waited is delivered", || async { db.number(&waiting).await == 0 }).await;
        println!(
            "{}: {waited} events waited {minutes} min, {told} log lines; delivery went on {went_on:?} after the broker \
             answered, and what waited was delivered after {:?}",
            destination.kind(),
            back.elapsed()
        );
        // Five seconds are promised; the machine that tests may be busy.
        assert!(went_on < seconds(10), "{went_on:?}");

        writer.shutdown().await;
        until(seconds(30), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        until(seconds(10), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(destination.arrived().await);
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates <= WINDOW, "{verdict}");
    })
    .await;
}

/// Connections are tried at a pace that does not run the server down when it comes back, and the relay does no work.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stays_away() {
    let length = if is_full() { seconds(90) } else { seconds(20) };
    let Some(url) = broker() else { return };
    let Some(mut db) = Database::own().await else { return };
    within(seconds(250), async {
        let proxy = FaultProxy::start(db.authority()).await.unwrap();
        let Some(config) = RelayConfig::new(&proxy.url_for(&db.url())) else { return };
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        load::prepare(&db).await;
        // The default: a renewal that fails is tried ten times a lease.
        let relay = config.with_rabbitmq(&url, &queue.name).with("relay.lease", "15s").start().await;
        relay.wait_owner(seconds(20)).await;
        let mut writer = load::trickle(&db.url(), GAP, 100);
        consumer.wait_for(200, seconds(30)).await;

        block_in_place(|| db.server().stop(postgres::Mode::Immediate)).unwrap();
        until(seconds(10), "it tells why", || async { relay.reason().await.starts_with("database: ") }).await;
        let (lines, tried, worked, begun) =
            (relay.logged(""), proxy.accepted(), relay.processor_time(), Instant::now());
        pass(length).await;
        let (tried, worked) = (proxy.accepted() - tried, relay.processor_time() - worked);
        let (told, took) = (relay.logged("") - lines, begun.elapsed());
        block_in_place(|| db.server().start_again()).unwrap();
        let back = Instant::now();
        consumer.wait_for(consumer.count() + 1, seconds(20)).await;
        println!(
            "{tried} connections tried in {took:?}, {worked:?} of the processor, {told} lines; went on after {:?}",
            back.elapsed()
        );
        // Once a second or less for reads and settles, for the lease, and, more rarely, for the doorbell.
        assert!(tried < 3 * took.as_secs(), "{tried} connections tried in {took:?}");
        assert!(worked < took / 20, "{worked:?} of the processor in {took:?}");
        assert!(told <= 20, "{told} lines");
        assert!(back.elapsed() < seconds(10), "{:?}", back.elapsed());

        writer.shutdown().await;
        until(seconds(30), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        assert_eq!(relay.stop().await, Some(0));
        let history = load::history(&db).await;
        until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        assert!(history.judge(consumer.events()).holds());
    })
    .await;
}
