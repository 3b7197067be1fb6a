//! The demo: `cargo xtask demo`, or `demo --help`.

mod args;
mod broker;
mod relay;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser as _;
use outbox_examples::consumer::{Arrivals, Destination, Failure};
use outbox_examples::orders::create_table;
use outbox_examples::writers::{self, Journal, Load};
use outbox_testkit::services::postgres;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use self::args::Args;
use self::relay::{Relay, Target, WINDOW};
use self::report::{Seen, report};

/// Enough that several hold the same order's place open at once, few enough for any server's `max_connections`.
const WRITERS: usize = 40;
const WRITER_CONNECTIONS: u32 = 40;

/// "A few hundred": the writers meet at some orders and not at most.
const ORDERS: i64 = 400;

/// How often is looked at what has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The demo gives up when nothing is committed or received for so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("demo: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Failure> {
    let started = Instant::now();
    // Dropped last, after everything that uses it has ended.
    let database = postgres::test_database("demo")?;
    say(started, &format!("database {}", database.name));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            outcome = with_broker(args, &database.url, started) => outcome,
            interrupted = tokio::signal::ctrl_c() => { interrupted?; Err("interrupted".into()) }
            _ = terminate.recv() => Err("asked to stop".into()),
        }
    })
}

async fn with_broker(args: &Args, database: &str, started: Instant) -> Result<bool, Failure> {
    let micros = std::time::UNIX_EPOCH.elapsed()?.as_micros();
    let Some(destination) = args.broker.create(&format!("outbox-demo-{}-{micros}", std::process::id())).await? else {
        say(started, "broker: none, the relay writes JSON lines to its standard output");
        return demo(args, database, None, started).await;
    };
    say(started, &format!("broker: {}, {}", args.broker.name(), destination.describe()));
    let outcome = demo(args, database, Some(destination.as_ref()), started).await;
    let removed = destination.remove().await;
    let held = outcome?;
    removed?;
    Ok(held)
}

async fn demo(
    args: &Args,
    database: &str,
    destination: Option<&dyn Destination>,
    started: Instant,
) -> Result<bool, Failure> {
    let settings = destination.map(Destination::settings).unwrap_or_default();
    let target = Target { broker: args.broker, settings };
    let arrivals = Arrivals::default();
    let mut relay = Relay::prepare(database, &target, args.custom_relay, arrivals.clone()).await?;
    say(started, "migrated");
    let outcome = watch(args, database, destination, &arrivals, &mut relay, started).await;
    match outcome {
        Ok(seen) => {
            let held = report(&seen);
            if !held {
                println!("\nThe relay's log ends:\n{}", relay.log_tail());
            }
            Ok(held)
        }
        Err(failure) => Err(format!("{failure}\nThe relay's log ends:\n{}", relay.log_tail()).into()),
    }
}

/// Runs relay, consumer and writers until everything has arrived, and collects what was seen.
async fn watch(
    args: &Args,
    database: &str,
    destination: Option<&dyn Destination>,
    arrivals: &Arrivals,
    relay: &mut Relay,
    started: Instant,
) -> Result<Seen, Failure> {
    relay.start()?;
    say(started, if args.custom_relay { "relay started: custom-relay" } else { "relay started: outbox-relay run" });
    let consumer = match destination {
        Some(destination) => Some(tokio::spawn(destination.consume(arrivals.clone()).await?)),
        None => None,
    };
    let pool = PgPoolOptions::new().max_connections(WRITER_CONNECTIONS).connect(database).await?;
    create_table(&mut *pool.acquire().await?).await?;
    let events = usize::try_from(args.events)?;
    let load = Load { events, writers: WRITERS, orders: ORDERS, seed: args.seed };
    let committed = Arc::new(AtomicUsize::new(0));
    say(started, &format!("{WRITERS} writers over {ORDERS} orders, {events} events"));
    let writers = tokio::spawn(writers::run(pool.clone(), load, Arc::clone(&committed)));
    let mut crowd = Crowd { writers, committed, arrivals, relay, consumer, kills: 0 };
    let journal = crowd.until_all_arrived(events, usize::from(args.kill), started).await?;
    let (kills, consumer) = (crowd.kills, crowd.consumer.take());
    drop(crowd);
    relay.stop().await?;
    if let (Some(destination), Some(consumer)) = (destination, consumer) {
        destination.end().await?;
        tokio::time::timeout(PATIENCE, consumer).await.map_err(|_| "the consumer did not come to the end")???;
    }
    say(started, "relay stopped, consumer has read everything");
    let left = left(&pool).await?;
    pool.close().await;
    Ok(Seen {
        journal,
        arrivals: arrivals.to_vec(),
        unreadable: arrivals.unreadable(),
        left,
        // A line may break off with its writer; whatever a broker hands out is whole.
        unreadable_allowed: if destination.is_none() { kills } else { 0 },
        kills,
        copies_allowed: kills * WINDOW,
    })
}

/// Who works while we look on.
struct Crowd<'a> {
    writers: JoinHandle<Result<Journal, outbox_examples::orders::OrderError>>,
    committed: Arc<AtomicUsize>,
    arrivals: &'a Arrivals,
    relay: &'a mut Relay,
    consumer: Option<JoinHandle<Result<(), Failure>>>,
    kills: usize,
}

impl Crowd<'_> {
    /// Looks on, and kills the relay when it is time, until all that was committed has arrived.
    async fn until_all_arrived(&mut self, events: usize, kills: usize, started: Instant) -> Result<Journal, Failure> {
        let mut journal: Option<Journal> = None;
        let (mut last, mut moved_at, mut said_at) = ((0, 0), Instant::now(), Instant::now());
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.relay.must_run()?;
            if let Some(ended) = self.consumer.take_if(|consumer| consumer.is_finished()) {
                ended.await??;
                return Err("the consumer ended by itself".into());
            }
            let now = (self.committed.load(Relaxed), self.arrivals.distinct());
            if now != last {
                (last, moved_at) = (now, Instant::now());
            } else if moved_at.elapsed() > PATIENCE {
                return Err(
                    format!("nothing happened for {PATIENCE:?}: {} committed, {} delivered", now.0, now.1).into()
                );
            }
            if said_at.elapsed() >= Duration::from_secs(1) {
                say(started, &format!("{} committed, {} delivered", now.0, now.1));
                said_at = Instant::now();
            }
            if self.kills < kills && now.1 >= events * (self.kills + 1) / (kills + 1) {
                self.kills += 1;
                self.relay.kill().await?;
                say(started, &format!("relay killed ({} of {kills}) and started again", self.kills));
                self.relay.start()?;
            }
            if journal.is_none() && self.writers.is_finished() {
                journal = Some((&mut self.writers).await??);
                say(started, "all writers are done");
            }
            if let Some(done) = journal.take_if(|journal| self.has_all(journal)) {
                return Ok(done);
            }
        }
    }

    fn has_all(&self, journal: &Journal) -> bool {
        self.arrivals.distinct() >= journal.committed.len()
            && self.arrivals.has_all(journal.committed.iter().map(|written| written.event))
    }
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        self.writers.abort();
    }
}

/// What a relay that has stopped leaves: nothing, when all was delivered.
async fn left(pool: &PgPool) -> Result<i64, Failure> {
    let sql = "SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.dead_letters)";
    Ok(sqlx::query_scalar(sql).fetch_one(pool).await?)
}

fn say(started: Instant, what: &str) {
    println!("{:>6.1} s  {what}", started.elapsed().as_secs_f64());
}
