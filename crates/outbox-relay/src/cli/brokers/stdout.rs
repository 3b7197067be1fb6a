//! JSON lines on stdout.

use std::sync::Arc;

use outbox_core::Publisher;

use super::{Broker, State};
use crate::StdoutPublisher;
use crate::cli::failure::Failure;
use crate::cli::settings::{RouteSettings, Table};

pub(super) const BROKER: Broker = Broker {
    name: "stdout",
    about: "JSON lines on stdout. No keys: write `[route.stdout]`, or `OUTBOX__ROUTE__0__STDOUT={}`. One route at most.",
    keys: &[],
    state: State::Here { check, connect, examine: None },
};

fn check(_table: &Table, _route: &RouteSettings) -> Vec<(&'static str, String)> {
    Vec::new()
}

fn connect(table: &Table, _route: &RouteSettings) -> Result<Arc<dyn Publisher>, Failure> {
    let path = table.path();
    if stdout_was_closed() {
        let problem = "stdout is closed, so every event would be lost; give it a reader, a file or a pipe";
        return Err(Failure::Failed(format!("{path}: {problem}")));
    }
    let closed = |error| Failure::Failed(format!("{path}: stdout can't be used: {error}"));
    Ok(Arc::new(StdoutPublisher::new().map_err(closed)?))
}

/// Whether the process was started with a closed stdout. The runtime then puts `/dev/null`, opened to read and write, in
/// its place, and all that is written succeeds and is gone; `>/dev/null`, which somebody asked for, is opened to write.
/// Where the system does not tell (it is Linux that does), the answer is no.
fn stdout_was_closed() -> bool {
    let nowhere = std::fs::read_link("/proc/self/fd/1").is_ok_and(|path| path.as_os_str() == "/dev/null");
    let flags = std::fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    // Octal; its last digit is the way of access: 0 read, 1 write, 2 both.
    let both = flags.lines().any(|line| line.starts_with("flags:") && line.ends_with('2'));
    nowhere && both
}
