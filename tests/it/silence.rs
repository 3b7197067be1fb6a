//! Connections that are dropped without a word: nothing is refused, nothing is reset, nothing answers.

use std::time::Duration;

use outbox_testkit::proxy::{FaultProxy, Mode};
use tokio::time::Instant;

use crate::database::{Database, authority};
use crate::deadline::{is_full, pass, seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

const WINDOW: usize = 200;

/// The broker, the database, and both; the loop of the route turns all the while.
#[tokio::test(flavor = "multi_thread")]
async fn each_hung_call_ends_by_a_deadline() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("silence").await else { return };
    within(seconds(280), async {
        let to_database = FaultProxy::start(db.authority()).await.unwrap();
        let to_broker = FaultProxy::start(authority(&url)).await.unwrap();
        let queue = Queue::declared(&url).await;
        let consumer = queue.consume().await;
        let Some(config) = RelayConfig::new(&to_database.url_for(&db.url())) else { return };
        let config = config.with_rabbitmq(&to_broker.url_for(&url), &queue.name);
        load::prepare(&db).await;
        let relay = config.with("relay.window", &WINDOW.to_string()).start().await;
        relay.wait_owner(seconds(20)).await;
        let writers = load::spawn(&db.url(), &Load { writers: 2, aggregates: 100, ..Load::ordinary(1_000_000) });

        let silences: [(&str, &[&FaultProxy], &[&str]); 3] = [
            ("the broker", &[&to_broker], &["destination: "]),
            ("the database", &[&to_database], &["database: "]),
            ("both", &[&to_broker, &to_database], &["destination: ", "database: "]),
        ];
        for (who, silent, reasons) in silences {
            consumer.wait_for(consumer.count() + 300, seconds(30)).await;
            for proxy in silent {
                proxy.set_mode(Mode::Blackhole);
            }
            let begun = Instant::now();
            until(seconds(45), "the relay tells why it is not ready", || async {
                let reason = relay.reason().await;
                reasons.iter().any(|start| reason.starts_with(start))
            })
            .await;
            let told = begun.elapsed();
            // New connections are made and hang as well: the old ones have been given up. Without a lease, which the
            // database gives, the broker is not tried.
            let tried = silent.last().expect("somebody is silent");
            let before = tried.accepted();
            until(seconds(60), "another connection is tried", || std::future::ready(tried.accepted() > before)).await;
            assert_eq!(relay.probe("/livez").await.0, 200);
            for proxy in silent {
                proxy.set_mode(Mode::Pass);
            }
            let passes = Instant::now();
            consumer.wait_for(consumer.count() + 300, seconds(40)).await;
            println!("{who}: told after {told:?}, delivery went on {:?} after the silence", passes.elapsed());
            until(seconds(20), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        }
        drop(writers);
        let history = load::history(&db).await;
        until(seconds(40), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert!(relay.is_alive());
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        assert!(relay.logged("") < 60, "{:?}", relay.log());
        assert_eq!(relay.stop().await, Some(0));
        until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        let verdict = history.judge(consumer.events());
        println!("{verdict}");
        // A silent connection may be given up twice before it passes: once for each of its deadlines.
        assert_eq!((verdict.lost, verdict.order_violations), (0, 0), "{verdict}");
        assert!(verdict.duplicates <= 6 * WINDOW, "{verdict}");
    })
    .await;
}

/// Field report B56: the session that listens is half dead. What it does not hear the fallback finds, and it is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_listening_session_that_hears_nothing_is_replaced() {
    const FALLBACK: Duration = Duration::from_secs(2);
    let length = if is_full() { 600 } else { 30 };
    let Some(db) = Database::shared("half_dead").await else { return };
    within(seconds(length + 200), async {
        let ear = FaultProxy::start(db.authority()).await.unwrap();
        let Some(config) = RelayConfig::new(&db.url()) else { return };
        let config = config.with("route.0.stdout", "{}").with("relay.poll_interval", "2s");
        let relay = config.with("database.listen_url", &ear.url_for(&db.url())).start().await;
        let sleeps = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        load::prepare(&db).await;
        until(seconds(20), "the relay sleeps", || async { db.number(sleeps).await == 1 }).await;
        let heard = ear.accepted();
        ear.set_mode(Mode::Blackhole);
        let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
        let mut conn = db.connect().await;
        while begun.elapsed() < seconds(length) {
            load::write(&mut conn, "one").await.unwrap();
            let written = Instant::now();
            until(FALLBACK + seconds(5), "it is delivered", || async { db.count("events").await == 0 }).await;
            slowest = slowest.max(written.elapsed());
            pass(Duration::from_millis(fastrand::u64(0..1_000))).await;
        }
        println!("the slowest of {length} s was delivered after {slowest:?}");
        // A second is for the machine that tests.
        assert!(slowest < FALLBACK + seconds(2), "{slowest:?}");
        assert!(ear.accepted() > heard, "the dead session was kept");
        ear.set_mode(Mode::Pass);
        until(seconds(60), "it listens again", || async { db.number(sleeps).await == 1 }).await;
        assert!(ear.accepted() > heard);
        assert!(relay.logged("") < 30, "{:?}", relay.log());
        assert_eq!(relay.stop().await, Some(0));
    })
    .await;
}
