//! The table at the end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use outbox_core::EventId;
use outbox_examples::consumer::Arrival;
use outbox_examples::writers::Journal;
use outbox_testkit::history::{History, Verdict};

/// Everything that the demo saw.
pub(crate) struct Seen {
    pub(crate) journal: Journal,
    pub(crate) arrivals: Vec<Arrival>,
    /// Messages that were no event.
    pub(crate) unreadable: usize,
    pub(crate) unreadable_allowed: usize,
    /// Events still in the outbox after the relay had stopped, dead letters included.
    pub(crate) left: i64,
    pub(crate) kills: usize,
    /// How many copies the kills excuse.
    pub(crate) copies_allowed: usize,
}

/// Prints the table and tells whether everything held.
pub(crate) fn report(seen: &Seen) -> bool {
    let verdict = judge(seen);
    let rolled_back = seen.journal.rolled_back.len();
    println!();
    row("committed", &verdict.committed);
    row("delivered", &verdict.delivered);
    row("duplicates", &format!("{}{}", verdict.duplicates, allowed(seen)));
    row("lost", &verdict.lost);
    row("rolled back", &rolled_back);
    row("invented (rolled back or unknown, but delivered)", &verdict.invented);
    row("order violations", &verdict.order_violations);
    row("left in the outbox", &seen.left);
    if seen.kills > 0 {
        row("relay killed", &seen.kills);
    }
    if seen.unreadable + seen.unreadable_allowed > 0 {
        row("lines cut short by a kill, or otherwise no event", &seen.unreadable);
    }
    if let Some(rate) = throughput(seen) {
        row("throughput", &format!("{rate:.0} events/s"));
    }
    let (since_commit, since_begin) = latencies(seen);
    row("latency p50 / p99, from the commit's return", &percentiles(since_commit));
    row("latency p50 / p99, from the transaction's begin", &percentiles(since_begin));
    println!(
        "\n  Measured here, by one clock, until the consumer had the event. Writers keep transactions open for 0 to"
    );
    println!("  20 ms, one in a hundred for 1 to 2 s: that is part of the second latency and bounds the throughput.\n");
    let problems = problems(seen, &verdict);
    if problems.is_empty() {
        println!("Everything holds.");
    } else {
        println!("BROKEN: {}\n{verdict}", problems.join("; "));
    }
    problems.is_empty()
}

fn judge(seen: &Seen) -> Verdict {
    let mut history = History::default();
    for written in &seen.journal.committed {
        history.committed(written.event, &written.order.to_string(), written.version);
    }
    for event in &seen.journal.rolled_back {
        history.rolled_back(*event);
    }
    history.judge(seen.arrivals.iter().map(|arrival| arrival.event))
}

fn problems(seen: &Seen, verdict: &Verdict) -> Vec<String> {
    let mut problems = Vec::new();
    if !verdict.holds() {
        problems.push("what arrived is not what was committed".to_owned());
    }
    if verdict.duplicates > seen.copies_allowed {
        problems.push(format!("{} copies, at most {} are excused", verdict.duplicates, seen.copies_allowed));
    }
    if seen.unreadable > seen.unreadable_allowed {
        problems.push(format!("{} messages could not be read", seen.unreadable));
    }
    if seen.left != 0 {
        problems.push(format!("{} events are left in the outbox or dead", seen.left));
    }
    problems
}

fn allowed(seen: &Seen) -> String {
    if seen.kills == 0 { String::new() } else { format!(" (up to {} excused by kills)", seen.copies_allowed) }
}

fn row(name: &str, value: &dyn std::fmt::Display) {
    println!("  {name:<50} {value}");
}

/// From the first commit to the last arrival.
fn throughput(seen: &Seen) -> Option<f64> {
    let first = seen.journal.committed.iter().map(|written| written.committed_at).min()?;
    let last = seen.arrivals.iter().map(|arrival| arrival.at).max()?;
    let seconds = last.saturating_duration_since(first).as_secs_f64();
    let count = u32::try_from(seen.journal.committed.len()).unwrap_or(u32::MAX);
    (seconds > 0.0).then(|| f64::from(count) / seconds)
}

fn latencies(seen: &Seen) -> (Vec<Duration>, Vec<Duration>) {
    let mut first: HashMap<EventId, Instant> = HashMap::with_capacity(seen.arrivals.len());
    for arrival in &seen.arrivals {
        first.entry(arrival.event).or_insert(arrival.at);
    }
    let arrived = seen.journal.committed.iter().filter_map(|written| Some((written, *first.get(&written.event)?)));
    // An event may be received before its writer has heard of its commit: that counts as no latency.
    let since = |(written, at): (&outbox_examples::writers::Committed, Instant)| {
        (at.saturating_duration_since(written.committed_at), at.saturating_duration_since(written.began_at))
    };
    arrived.map(since).unzip()
}

fn percentiles(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let at = |percent: usize| {
        let rank = (latencies.len() * percent).div_ceil(100).max(1);
        latencies.get(rank - 1).map_or_else(|| "-".to_owned(), |latency| format!("{} ms", latency.as_millis()))
    };
    format!("{} / {}", at(50), at(99))
}

#[cfg(test)]
mod tests {
    use super::percentiles;
    use std::time::Duration;

    #[test]
    fn percentiles_are_ranks() {
        let check = |millis: std::ops::RangeInclusive<u64>, expected: &str| {
            assert_eq!(percentiles(millis.rev().map(Duration::from_millis).collect()), expected);
        };
        check(1..=100, "50 ms / 99 ms");
        check(1..=1000, "500 ms / 990 ms");
        check(7..=7, "7 ms / 7 ms");
        assert_eq!(percentiles(Vec::new()), "- / -");
    }
}
