//! `cargo xtask bench`: events per second of the relay's engine over PostgreSQL with a publisher that confirms at once,
//! against two relays of the usual kind in the same run.
//!
//! The publisher does nothing, so that what is measured is the claim, the engine and the settle. Each design drains a
//! backlog of its own table on the same server; rounds take turns, and the medians are compared.

mod baselines;
mod outbox;
mod producers;

use std::error::Error;
use std::time::Duration;

use outbox_services::postgres::{Options, Postgres};
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const HELP: &str =
    "usage: bench [--events N] [--rounds N] [--window N] [--batch-size N] [--only DESIGN] [--producers N]

  --events N   backlog of each design (default 200000)
  --rounds N   rounds; the median counts (default 3)
  --window N, --batch-size N   of the outbox's relay (default 2000 and 1000, as the relay's own)
  --producers N   what the wake-up costs N producers instead: no trigger, the doorbell, a notification for each row
  --only DESIGN   row_by_row, set_based or outbox alone, to profile it; no ratios

A server of its own with durable settings is started, unless OUTBOX_BENCH_PG_URL names one.";

struct Settings {
    events: i64,
    rounds: usize,
    window: usize,
    batch_size: usize,
    only: Option<&'static str>,
    producers: Option<usize>,
}

#[tokio::main]
async fn main() -> Outcome {
    let Some(settings) = settings()? else {
        println!("{HELP}");
        return Ok(());
    };
    let (url, _server) = match std::env::var("OUTBOX_BENCH_PG_URL") {
        Ok(url) => (url, None),
        Err(_) => {
            let options = Options::default().durable().with_setting("shared_buffers", "256MB");
            let server = Postgres::start(options)?;
            (server.url(), Some(server))
        }
    };
    if let Some(writers) = settings.producers {
        return producers::run(&url, settings.rounds, writers).await;
    }
    let mut rates: [Vec<f64>; 3] = Default::default();
    for round in 1..=settings.rounds {
        for (design, rates) in NAMES.iter().zip(&mut rates) {
            if settings.only.is_some_and(|only| only != *design) {
                continue;
            }
            clear(&url).await?;
            let took = match *design {
                "row_by_row" => baselines::row_by_row(&url, settings.events).await?,
                "set_based" => baselines::set_based(&url, settings.events).await?,
                _ => outbox::drain(&url, &settings).await?,
            };
            let rate = rate(settings.events, took);
            eprintln!("round {round}: {design}: {rate:.0} events/s");
            rates.push(rate);
        }
    }
    if settings.only.is_some() {
        return Ok(());
    }
    let [row_by_row, set_based, outbox] = rates.map(median);
    let report = json!({
        "events": settings.events,
        "rounds": settings.rounds,
        "window": settings.window,
        "batch_size": settings.batch_size,
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "server": baselines::server_version(&url).await?,
        "cores": std::thread::available_parallelism()?.get(),
        "version": env!("CARGO_PKG_VERSION"),
        "median_events_per_second": { "row_by_row": row_by_row, "set_based": set_based, "outbox": outbox },
        "ratio": { "to_row_by_row": outbox / row_by_row, "to_set_based": outbox / set_based },
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// No design pays for cleaning up after another: dead rows that are left would be vacuumed meanwhile.
async fn clear(url: &str) -> Outcome {
    let mut connection = PgConnection::connect(url).await?;
    let drop = "DROP TABLE IF EXISTS article_outbox; DROP SCHEMA IF EXISTS outbox CASCADE";
    connection.execute(sqlx::raw_sql(drop)).await?;
    Ok(())
}

const NAMES: [&str; 3] = ["row_by_row", "set_based", "outbox"];

fn rate(events: i64, took: Duration) -> f64 {
    // Far below 2^53, so exact.
    #[allow(clippy::cast_precision_loss)]
    let events = events as f64;
    events / took.as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn settings() -> Outcome<Option<Settings>> {
    let mut settings =
        Settings { events: 200_000, rounds: 3, window: 2_000, batch_size: 1_000, only: None, producers: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a number\n\n{HELP}"));
        match argument.as_str() {
            "--events" => settings.events = value()?.parse()?,
            "--rounds" => settings.rounds = value()?.parse()?,
            "--window" => settings.window = value()?.parse()?,
            "--batch-size" => settings.batch_size = value()?.parse()?,
            "--producers" => settings.producers = Some(value()?.parse()?),
            "--only" => {
                let wanted = value()?;
                let known = NAMES.into_iter().find(|name| *name == wanted);
                settings.only = Some(known.ok_or_else(|| format!("--only must be one of {NAMES:?}, got `{wanted}`"))?);
            }
            "--help" | "-h" => return Ok(None),
            unknown => return Err(format!("unknown argument `{unknown}`\n\n{HELP}").into()),
        }
    }
    if settings.events < 1 || settings.rounds < 1 {
        return Err("--events and --rounds must be at least 1".into());
    }
    Ok(Some(settings))
}
