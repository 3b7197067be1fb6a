//! A relay composed by hand, for tests of death by payload: its publisher writes the ids of events to a file, one line
//! each, and aborts the process over events of one aggregate, as a bug in a client library would.
//!
//! Arguments: the database's URL, the file, the aggregate id that kills, and the window.

use std::borrow::Cow;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Capabilities, Envelope, ErrorKind, PublishError, PublishReport, Publisher, Receipt};
use outbox_pg::{PgConfig, PgStore};
use outbox_relay::{Relay, RouteConfig};
use tokio_util::sync::CancellationToken;

/// Writes and syncs ids; dies over its killer.
#[derive(Debug)]
struct Deadly {
    file: Mutex<File>,
    killer: String,
}

#[async_trait]
impl Publisher for Deadly {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CAUTIOUS
    }

    fn topic<'a>(&'a self, _event: &'a Envelope) -> Cow<'a, str> {
        Cow::Borrowed("file")
    }

    async fn publish(&self, events: &[Envelope]) -> PublishReport {
        let mut report = PublishReport::unfilled(events.len());
        // tidy: a millisecond as a broker would take it, so that some events are always on their way
        tokio::time::sleep(Duration::from_millis(1)).await;
        // A panic while the file was locked leaves a file all the same.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, event) in events.iter().enumerate() {
            if event.aggregate_id == self.killer {
                std::process::abort();
            }
            let written = file.write_all(format!("{}\n", event.event_id).as_bytes());
            let failed = |error: std::io::Error| PublishError::new(ErrorKind::Failed, error.to_string());
            report.set(at, written.map(|()| Receipt::confirmed()).map_err(failed));
        }
        report
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, path, killer, window] = arguments.as_slice() else {
        return Err("four arguments: database URL, file, killing aggregate id, window".into());
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let file = Mutex::new(OpenOptions::new().create(true).append(true).open(path)?);
    let mut config = RouteConfig::new("orders");
    (config.lease, config.full_sweep_interval) = (RouteConfig::MIN_LEASE, Duration::from_secs(3600));
    (config.window, config.retry_initial) = (window.parse()?, Duration::from_millis(100));
    let store = Arc::new(PgStore::new(&PgConfig::new(url), "killable")?);
    let publisher = Arc::new(Deadly { file, killer: killer.clone() });
    let relay = Relay::builder(store).route(config, publisher).build().map_err(|errors| format!("{errors:?}"))?;
    let shutdown = CancellationToken::new();
    let asked = shutdown.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        asked.cancel();
    });
    relay.run(shutdown).await?;
    Ok(())
}
