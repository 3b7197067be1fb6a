//! What the wake-up costs producers: commits a second of single inserts with no trigger, with the doorbell, and with a
//! trigger that notifies for each row, each beside a relay that delivers what is committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use outbox_pg::{Doorbell, PgConfig, PgStore, SchemaName, migrate};
use outbox_relay::{Route, RouteConfig};
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::outbox::Null;
use crate::{Outcome, baselines, clear, median};

/// How long each design is measured in each round.
const LENGTH: Duration = Duration::from_secs(10);

/// Between two reads of a relay that is not rung.
const FALLBACK: Duration = Duration::from_secs(2);

const DESIGNS: [&str; 3] = ["no_trigger", "doorbell", "notify_each_row"];

const NOTIFY_EACH_ROW: &str = "
    CREATE FUNCTION outbox.notify_each() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_notify('outbox_each', ''); RETURN NULL; END $$;
    CREATE TRIGGER notify_each AFTER INSERT ON outbox.events FOR EACH ROW EXECUTE FUNCTION outbox.notify_each();";

const INSERT: &str = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
                      VALUES ('order', $1, 'order.placed', '{\"total_cents\":4200}')";

/// Runs all designs in turns and prints the medians and their ratios.
pub(crate) async fn run(url: &str, rounds: usize, writers: usize) -> Outcome {
    let mut rates: [Vec<f64>; 3] = Default::default();
    for round in 1..=rounds {
        for (design, rates) in DESIGNS.iter().zip(&mut rates) {
            clear(url).await?;
            let rate = commits(url, design, writers).await?;
            eprintln!("round {round}: {design}, {writers} writers: {rate:.0} commits/s");
            rates.push(rate);
        }
    }
    let [without, doorbell, each] = rates.map(median);
    let report = json!({
        "scenario": "producers",
        "writers": writers,
        "rounds": rounds,
        "seconds": LENGTH.as_secs(),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "server": baselines::server_version(url).await?,
        "cores": std::thread::available_parallelism()?.get(),
        "version": env!("CARGO_PKG_VERSION"),
        "median_commits_per_second": { "no_trigger": without, "doorbell": doorbell, "notify_each_row": each },
        "ratio": { "doorbell": doorbell / without, "notify_each_row": each / without },
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

async fn commits(url: &str, design: &str, writers: usize) -> Outcome<f64> {
    let mut connection = PgConnection::connect(url).await?;
    let schema = SchemaName::default();
    migrate::up(&mut connection, &schema).await?;
    migrate::doorbell(&mut connection, &schema, design == "doorbell").await?;
    if design == "notify_each_row" {
        connection.execute(sqlx::raw_sql(NOTIFY_EACH_ROW)).await?;
    }
    let pg = PgConfig::new(url);
    let store = Arc::new(PgStore::new(&pg, "bench")?);
    let route = Route::new(RouteConfig::new("bench"), store, Arc::new(Null::endless()))
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let mut bell = JoinSet::new();
    let route = if design == "doorbell" {
        let doorbell = Doorbell::new(&pg, FALLBACK)?;
        let wakeup = doorbell.wakeup();
        bell.spawn(async move {
            doorbell.run().await;
        });
        route.with_wakeup(wakeup)
    } else {
        route
    };
    let shutdown = CancellationToken::new();
    let relay = tokio::spawn(route.run(shutdown.clone()));
    let committed = Arc::new(AtomicU64::new(0));
    let mut writing = JoinSet::new();
    let until = Instant::now() + LENGTH;
    for writer in 0..writers {
        let mut connection = PgConnection::connect(url).await?;
        let committed = Arc::clone(&committed);
        writing.spawn(async move {
            while Instant::now() < until {
                sqlx::query(INSERT).bind(writer.to_string()).execute(&mut connection).await?;
                committed.fetch_add(1, Relaxed);
            }
            Ok::<_, sqlx::Error>(())
        });
    }
    while let Some(written) = writing.join_next().await {
        written??;
    }
    shutdown.cancel();
    relay.await??;
    // Far below 2^53, so exact.
    #[allow(clippy::cast_precision_loss)]
    let committed = committed.load(Relaxed) as f64;
    Ok(committed / LENGTH.as_secs_f64())
}
