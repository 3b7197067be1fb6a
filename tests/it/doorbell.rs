//! An idle relay sleeps until a commit rings. The fallback is a minute away, so nothing but the doorbell wakes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{EventId, Publisher};
use outbox_pg::{Doorbell, Outbox, PgConfig, PgStore, SchemaName, migrate};
use outbox_relay::{Route, RunError};
use sqlx::{Connection as _, PgConnection};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::database::{Database, number, run};
use crate::deadline::{is_full, pass, seconds, until, within};
use crate::embedded::config;
use crate::load::event;
use crate::recorder::Recorder;
use crate::relay::RelayConfig;

const FALLBACK: Duration = Duration::from_secs(60);

/// How long a commit may take to arrive. A missed ring would take the fallback.
const SOON: Duration = Duration::from_secs(10);

/// Keys that sleeping relays of this database hold.
const KEYS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// A relay with a doorbell, in this process.
struct Ringing {
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), RunError>>,
    bell: JoinSet<()>,
}

impl Ringing {
    fn start(config_of_pg: &PgConfig, recorder: &Arc<Recorder>) -> Self {
        let store = Arc::new(PgStore::new(config_of_pg, "ringing").unwrap());
        let doorbell = Doorbell::new(config_of_pg, FALLBACK).unwrap();
        let route = Route::new(config(), store, Arc::clone(recorder) as Arc<dyn Publisher>).unwrap();
        let route = route.with_wakeup(doorbell.wakeup());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(route.run(shutdown.clone()));
        let mut bell = JoinSet::new();
        bell.spawn(async move {
            doorbell.run().await;
        });
        Self { shutdown, running, bell }
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        self.running.await.unwrap().unwrap();
        self.bell.shutdown().await;
    }
}

async fn enqueue(conn: &mut PgConnection) -> EventId {
    let id = Uuid::now_v7();
    Outbox::default().enqueue(conn, &event(id, &id.to_string(), 1)).await.unwrap()
}

async fn sleeps(db: &Database) {
    until(seconds(20), "the relay sleeps", || async { db.number(KEYS).await == 1 }).await;
}

/// Bursts of one to four commits at the same time, each burst after the one before has arrived: a commit that nobody
/// heard could not be found by the next one's ring.
async fn no_commit_is_slept_over(relays: usize) {
    let Some(db) = Database::shared(&format!("doorbell_{relays}")).await else { return };
    let recorder = Recorder::new();
    let relays: Vec<Ringing> = (0..relays).map(|_| Ringing::start(&PgConfig::new(db.url()), &recorder)).collect();
    sleeps(&db).await;
    let commits: usize = if is_full() { 100_000 } else { 1_500 };
    let mut conns = Vec::new();
    for _ in 0..4 {
        conns.push(db.connect().await);
    }
    let (mut committed, mut slowest, begun) = (0, Duration::ZERO, Instant::now());
    while committed < commits {
        let burst = fastrand::usize(1..=4);
        // Between "still awake" and "asleep for long".
        pass(Duration::from_micros(fastrand::u64(0..if fastrand::bool() { 2_000 } else { 40_000 }))).await;
        let mut writers = JoinSet::new();
        for mut conn in conns.drain(..burst) {
            writers.spawn(async move {
                let id = if fastrand::bool() {
                    enqueue(&mut conn).await
                } else {
                    let mut tx = conn.begin().await.unwrap();
                    let id = enqueue(&mut tx).await;
                    tokio::task::yield_now().await;
                    tx.commit().await.unwrap();
                    id
                };
                (conn, id, Instant::now())
            });
        }
        while let Some(written) = writers.join_next().await {
            let (conn, id, at) = written.unwrap();
            slowest = slowest.max(recorder.wait_for(id, SOON).await.saturating_duration_since(at));
            conns.push(conn);
            committed += 1;
        }
    }
    println!("{committed} commits in {:?}, the slowest was delivered after {slowest:?}", begun.elapsed());
    assert_eq!((recorder.arrivals().len(), recorder.distinct()), (committed, committed));
    for relay in relays {
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_commit_is_slept_over_by_one_relay() {
    within(seconds(if is_full() { 3_000 } else { 250 }), no_commit_is_slept_over(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_commit_is_slept_over_by_three_relays() {
    within(seconds(if is_full() { 3_000 } else { 250 }), no_commit_is_slept_over(3)).await;
}

/// Who is awake need not be rung: a sleeping relay is woken once, and gives the key back at once.
#[tokio::test(flavor = "multi_thread")]
async fn commits_ring_only_while_a_relay_sleeps() {
    let Some(db) = Database::shared("doorbell_rings").await else { return };
    let recorder = Recorder::new();
    let mut conn = db.connect().await;
    let key = number(&mut conn, "SELECT hashtextextended('outbox doorbell outbox', 0)").await;
    let mut heard = sqlx::postgres::PgListener::connect(&db.url()).await.unwrap();
    heard.listen(&format!("outbox_{key}")).await.unwrap();
    within(seconds(60), async {
        // Nobody listens yet, so nobody is rung.
        for _ in 0..20 {
            enqueue(&mut conn).await;
        }
        assert!(heard.next_buffered().is_none());
        let relay = Ringing::start(&PgConfig::new(db.url()), &recorder);
        recorder.wait_distinct(20, SOON).await;
        sleeps(&db).await;
        let id = enqueue(&mut conn).await;
        recorder.wait_for(id, SOON).await;
        let rang = heard.recv().await.unwrap();
        assert_eq!(rang.payload(), "", "a notification carries no data");
        relay.stop().await;
    })
    .await;
}

/// A large transaction and long names: the ring itself never fails a producer.
#[tokio::test(flavor = "multi_thread")]
async fn a_ring_never_fails_the_producer() {
    let Some(db) = Database::shared("doorbell_limits").await else { return };
    let schema: SchemaName = "s".repeat(63).parse().unwrap();
    let mut conn = db.connect().await;
    migrate::up(&mut conn, &schema).await.unwrap();
    let recorder = Recorder::new();
    within(seconds(120), async {
        let relay = Ringing::start(&PgConfig::new(db.url()).with_schema(schema.clone()), &recorder);
        sleeps(&db).await;
        let mut tx = conn.begin().await.unwrap();
        let events: Vec<_> = (0..10_000).map(|n| event(Uuid::now_v7(), &format!("{n:0>250}"), 1)).collect();
        let outbox = Outbox::new(schema);
        outbox.enqueue_many(&mut tx, &events).await.unwrap();
        for _ in 0..100 {
            outbox.enqueue(&mut tx, &event(Uuid::now_v7(), "one by one", 1)).await.unwrap();
        }
        tx.commit().await.unwrap();
        recorder.wait_distinct(10_100, seconds(60)).await;
        relay.stop().await;
    })
    .await;
}

/// The session that listens is ended by the server, again and again, while commits come.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_session_is_made_again_and_nothing_waits_for_it() {
    let Some(db) = Database::shared("doorbell_lost").await else { return };
    let recorder = Recorder::new();
    let mut conn = db.connect().await;
    within(seconds(120), async {
        let relay = Ringing::start(&PgConfig::new(db.url()), &recorder);
        for _ in 0..3 {
            sleeps(&db).await;
            run(
                &mut conn,
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            )
            .await;
            let id = enqueue(&mut conn).await;
            recorder.wait_for(id, SOON).await;
        }
        relay.stop().await;
    })
    .await;
}

/// Where notifications don't come through nothing is held, and the relay polls.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_echo_or_a_trigger_the_relay_polls() {
    let Some(db) = Database::shared("doorbell_none").await else { return };
    let Some(other) = Database::shared("doorbell_elsewhere").await else { return };
    let mut conn = db.connect().await;
    within(seconds(120), async {
        // It listens to a database in which nobody notifies.
        let elsewhere = PgConfig::new(db.url()).with_listen_url(other.url());
        let recorder = Recorder::new();
        let relay = Ringing::start(&elsewhere, &recorder);
        for _ in 0..3 {
            let id = enqueue(&mut conn).await;
            recorder.wait_for(id, SOON).await;
        }
        assert_eq!((db.number(KEYS).await, other.number(KEYS).await), (0, 0));
        relay.stop().await;
        assert!(migrate::doorbell(&mut conn, &SchemaName::default(), false).await.unwrap());
        assert!(!migrate::doorbell(&mut conn, &SchemaName::default(), false).await.unwrap());
        let relay = Ringing::start(&PgConfig::new(db.url()), &recorder);
        for _ in 0..3 {
            let id = enqueue(&mut conn).await;
            recorder.wait_for(id, SOON).await;
        }
        assert_eq!(db.number(KEYS).await, 0);
        // Back again, it is found without a restart.
        assert!(migrate::doorbell(&mut conn, &SchemaName::default(), true).await.unwrap());
        sleeps(&db).await;
        relay.stop().await;
    })
    .await;
}

/// The binary: the doorbell is the default, and `check` tells when trigger and configuration disagree.
#[tokio::test(flavor = "multi_thread")]
async fn the_binary_sleeps_by_default_and_check_compares_trigger_and_configuration() {
    let Some(db) = Database::shared("doorbell_binary").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    let config = config.with("route.0.stdout", "{}").with("relay.poll_interval", "60s");
    within(seconds(120), async {
        let check = |config: &RelayConfig| String::from_utf8(config.call(&["check", "--connect"]).stdout).unwrap();
        let relay = config.start().await;
        sleeps(&db).await;
        let id = enqueue(&mut db.connect().await).await;
        until(SOON, "it is printed", || async { relay.output().contains(&id.to_string()) }).await;
        assert!(!check(&config).contains("rings"), "{}", check(&config));
        assert!(check(&config.clone().with("relay.wakeup", "poll")).contains("migrate up --no-doorbell"));
        let up = config.call(&["migrate", "up", "--no-doorbell"]);
        assert!(String::from_utf8_lossy(&up.stdout).contains("the doorbell is taken away"), "{up:?}");
        assert!(check(&config).contains("the trigger that rings is missing"), "{}", check(&config));
        assert!(relay.is_alive());
    })
    .await;
}
