//! The relay as a library: dropped, aborted and started again in one process, and publishers that panic.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, PublishError, PublishReport, Publisher};
use outbox_pg::{PgConfig, PgStore};
use outbox_relay::{Relay, RouteConfig};
use tokio_util::sync::CancellationToken;

use crate::database::Database;
use crate::deadline::{pass, seconds, until, within};
use crate::embedded::{Embedded, config};
use crate::load::{self, Load};
use crate::recorder::Recorder;

const ROUNDS: usize = 30;
const WINDOW: usize = 100;

/// Confirms after a moment, so that events are at the broker when a run ends.
#[derive(Debug)]
struct Slow(Arc<Recorder>);

#[async_trait]
impl Publisher for Slow {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        self.0.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        pass(Duration::from_millis(fastrand::u64(0..10))).await;
        let report = self.0.publish(events).await;
        pass(Duration::from_millis(fastrand::u64(0..10))).await;
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.0.check().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

fn short() -> RouteConfig {
    let mut config = config();
    (config.window, config.batch_size, config.lease) = (WINDOW, 50, RouteConfig::MIN_LEASE);
    config
}

/// Sessions of this database but those of the test itself: its own, and the writers'.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                          AND application_name = 'outbox-relay'";

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_dropped_or_aborted_anywhere_and_started_again() {
    let Some(db) = Database::shared("embedding").await else { return };
    within(seconds(280), async {
        load::prepare(&db).await;
        let recorder = Recorder::new();
        let mut writers = load::spawn(&db.url(), &Load { writers: 4, aggregates: 60, ..Load::ordinary(16_000) });
        let (mut stores, mut most, mut working) = (Vec::new(), 0, 0);
        for round in 0..ROUNDS {
            // One store for several runs, and now and then another one.
            if round % 5 == 0 {
                stores.clear();
                stores.push(Arc::new(PgStore::new(&PgConfig::new(db.url()), "embedding").unwrap()));
            }
            let store = Arc::clone(&stores[0]);
            let publisher = Arc::new(Slow(Arc::clone(&recorder)));
            let relay = Relay::builder(store).route(short(), publisher).build().unwrap();
            let (health, stop) = (relay.health(), CancellationToken::new());
            let before = recorder.arrivals().len();
            let drops = CancellationToken::new();
            let (stopped, drop_it) = (stop.clone(), drops.clone());
            let run = tokio::spawn(async move {
                tokio::select! {
                    ended = relay.run(stopped) => ended.unwrap(),
                    () = drop_it.cancelled() => {}
                }
            });
            // Some end while they wait for the lease of the one before, or connect; others in the middle of work.
            if round % 3 > 0 {
                until(seconds(20), "the route is owned", || async { health.routes()[0].status().owner }).await;
                working += 1;
            }
            pass(Duration::from_millis(fastrand::u64(0..300))).await;
            most = most.max(db.number(SESSIONS).await);
            match round % 4 {
                1 => {
                    drops.cancel();
                    run.await.unwrap();
                }
                3 => {
                    stop.cancel();
                    run.await.unwrap();
                }
                _ => {
                    run.abort();
                    assert!(run.await.unwrap_err().is_cancelled());
                }
            }
            println!("round {round}: {} arrived", recorder.arrivals().len() - before);
        }
        println!("{working} runs were ended at work; at most {most} sessions");
        while let Some(ended) = writers.join_next().await {
            ended.unwrap();
        }
        let last = Embedded::start(&db.url(), short(), &recorder).await;
        until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        last.stop().await;
        drop(stores);
        until(seconds(20), "no session is left", || async { db.number(SESSIONS).await == 0 }).await;
        let verdict = load::history(&db).await.judge(recorder.arrivals());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates <= ROUNDS * WINDOW, "{verdict}");
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
    })
    .await;
}

/// Panics over one aggregate, wherever it can.
#[derive(Debug)]
struct Panics {
    recorder: Arc<Recorder>,
    checks: std::sync::atomic::AtomicU64,
}

#[async_trait]
impl Publisher for Panics {
    fn capabilities(&self) -> Capabilities {
        self.recorder.capabilities()
    }

    fn topic<'a>(&'a self, event: &'a Envelope) -> Cow<'a, str> {
        assert_ne!(event.aggregate_id, "filled-7", "no topic");
        self.recorder.topic(event)
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        assert!(events.iter().all(|event| event.aggregate_id != "filled-7"), "no way to publish it");
        self.recorder.publish(events).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        // The first three.
        assert!(self.checks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 3, "no check yet");
        self.recorder.check().await
    }

    async fn close(&self) {
        self.recorder.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_panics_costs_the_event_and_nobody_else() {
    let Some(db) = Database::shared("panics").await else { return };
    within(seconds(100), async {
        load::prepare(&db).await;
        load::fill(&db, 1_000, 500).await;
        let recorder = Recorder::new();
        let publisher = Arc::new(Panics { recorder: Arc::clone(&recorder), checks: 0.into() });
        let mut config = short();
        (config.max_attempts, config.retry_initial, config.retry_max) =
            (3, Duration::from_millis(50), Duration::from_millis(100));
        let embedded = Embedded::start(&db.url(), config, &publisher).await;
        until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        embedded.stop().await;
        assert_eq!(db.count("dead_letters").await, 2, "both events of the aggregate");
        let told = "SELECT count(*) FROM outbox.dead_letters
                     WHERE reason LIKE '%no way to publish it%' AND attempts = 3 AND reason_kind = 'failed'";
        assert_eq!(db.number(told).await, 2);
        let verdict = load::history(&db).await.judge(recorder.arrivals());
        assert_eq!((verdict.lost, verdict.invented, verdict.order_violations), (2, 0, 0), "{verdict}");
    })
    .await;
}
