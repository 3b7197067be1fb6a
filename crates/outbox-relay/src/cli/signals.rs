//! SIGTERM and SIGINT: the first asks to stop, the second ends the process at once.

use std::io;

use tokio_util::sync::CancellationToken;

use super::failure::EXIT_FAILED;

/// Cancels `shutdown` at the first signal. Signals count from the return of this call on.
pub(crate) fn watch(shutdown: CancellationToken) -> io::Result<()> {
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        let name = signals.next().await;
        tracing::info!(signal = name, "asked to stop: waiting for the broker's answers; once more to exit at once");
        shutdown.cancel();
        let name = signals.next().await;
        tracing::warn!(signal = name, "exiting at once: what is unconfirmed may be sent again by the next run");
        std::process::exit(i32::from(EXIT_FAILED));
    });
    Ok(())
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
