//! The engine over PostgreSQL, with a publisher that confirms at once.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, PublishError, PublishReport, Publisher, Receipt};
use outbox_pg::{PgConfig, PgStore, SchemaName, migrate};
use outbox_relay::{Route, RouteConfig};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{Outcome, Settings};

const FILL: &str = "
    INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', (n % 10000)::text, 'order.placed', json_build_object('order', n, 'total_cents', n * 7)
      FROM generate_series(1, $1::bigint) AS n";

/// Confirms everything at once and tells when all have come.
#[derive(Debug)]
pub(crate) struct Null {
    left: AtomicI64,
    done: Notify,
}

impl Null {
    fn new(events: i64) -> Self {
        Self { left: AtomicI64::new(events), done: Notify::new() }
    }

    /// For work that has no last event.
    pub(crate) fn endless() -> Self {
        Self::new(i64::MAX)
    }
}

#[async_trait]
impl Publisher for Null {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed("null")
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        for index in 0..events.len() {
            report.set(index, Ok(Receipt::confirmed()));
        }
        let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
        if self.left.fetch_sub(count, Relaxed) <= count {
            self.done.notify_one();
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// From the start of the relay until the table is empty.
pub(crate) async fn drain(url: &str, settings: &Settings) -> Outcome<Duration> {
    let events = settings.events;
    let mut connection = PgConnection::connect(url).await?;
    migrate::up(&mut connection, &SchemaName::default()).await?;
    sqlx::query(FILL).bind(events).execute(&mut connection).await?;
    connection.execute(sqlx::raw_sql("VACUUM ANALYZE outbox.events")).await?;
    connection.execute(sqlx::raw_sql("CHECKPOINT")).await?;

    let publisher = Arc::new(Null::new(events));
    let store = Arc::new(PgStore::new(&PgConfig::new(url), "bench")?);
    let mut config = RouteConfig::new("bench");
    (config.window, config.batch_size) = (settings.window, settings.batch_size);
    let route = Route::new(config, store, Arc::clone(&publisher) as Arc<dyn Publisher>)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let shutdown = CancellationToken::new();
    let begun = Instant::now();
    let run = tokio::spawn(route.run(shutdown.clone()));
    publisher.done.notified().await;
    // A shutdown settles what is confirmed, so its end is the end of the work.
    shutdown.cancel();
    run.await??;
    let took = begun.elapsed();
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox.events").fetch_one(&mut connection).await?;
    if left > 0 {
        return Err(format!("{left} events are left in the table").into());
    }
    Ok(took)
}
