//! The relay's metrics as Prometheus text (format 0.0.4): what `/metrics` of the binary answers, for those who run the
//! engine inside a service of their own.
//!
//! ```
//! use outbox_relay::metrics::{CONTENT_TYPE, Outside, render};
//! # fn answer(relay: &outbox_relay::Relay) -> (&'static str, String) {
//! // In the handler of a scrape; it reads memory only.
//! (CONTENT_TYPE, render(&relay.health(), &Outside::default()))
//! # }
//! ```
//!
//! The writer is our own: the values are atomics already, and no label needs a registry.
//! `docs/metrics.md` is the list of all families.

mod families;
mod histogram;
mod recorded;
mod text;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use outbox_core::{ErrorKind, WakeCause};

pub use self::families::{FAMILIES, Family, FamilyKind};
pub(crate) use self::recorded::{Claim, Recorded};
pub use self::recorded::{MAX_EVENT_TYPE_BYTES, MAX_EVENT_TYPES, OTHER};
use self::text::Text;
use crate::health::DestinationState;
use crate::{RelayHealth, RouteHealth};

/// The type of the text, for the answer's header.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The label `route` of what belongs to the whole outbox and not to one of its routes.
pub const ALL_ROUTES: &str = "*";

/// The kinds of dead letters that are shown from the start, so that the first one is a change.
const DEAD_KINDS: [&str; 5] =
    ["crash", "undecodable", ErrorKind::Failed.as_str(), ErrorKind::Rejected.as_str(), ErrorKind::Unconfirmed.as_str()];

/// What the engine does not know itself. What is `None` is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outside {
    /// Whether the doorbell listens; `None` without a doorbell.
    pub listener_up: Option<bool>,
    /// What the database said.
    pub database: DatabaseFigures,
}

/// What gauges show of the database, of all routes together. What could not be asked for is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatabaseFigures {
    /// Events that are committed and not yet confirmed.
    pub pending: Option<u64>,
    /// That this is an estimate.
    pub pending_estimated: Option<bool>,
    /// Since when the first of them waits.
    pub oldest_pending_age: Option<Duration>,
    /// Events that wait for their next attempt.
    pub retries_waiting: Option<u64>,
    /// Aggregates that wait for an operator.
    pub blocked_aggregates: Option<u64>,
    /// Dead letters that are there.
    pub dead_letters: Option<u64>,
    /// For how long the oldest transaction that writes to the outbox has been open.
    pub oldest_writer_age: Option<Duration>,
    /// Age in transactions of the oldest snapshot.
    pub oldest_xmin_age: Option<u64>,
}

#[cfg(feature = "postgres")]
impl From<outbox_pg::Figures> for DatabaseFigures {
    fn from(figures: outbox_pg::Figures) -> Self {
        let (pending, retries) = (figures.pending, figures.retries);
        Self {
            pending: pending.map(|pending| pending.count.rows),
            pending_estimated: pending.map(|pending| !pending.count.exact),
            oldest_pending_age: pending.map(|pending| pending.oldest_age.unwrap_or_default()),
            retries_waiting: retries.map(|(all, blocked)| all.rows.saturating_sub(blocked.rows)),
            blocked_aggregates: retries.map(|(_, blocked)| blocked.rows),
            dead_letters: figures.dead_letters.map(|count| count.rows),
            oldest_writer_age: figures.oldest_writer_age,
            oldest_xmin_age: figures.oldest_xmin_age,
        }
    }
}

/// Everything that is known at this moment as text. Reads memory only. The number of its lines is bounded by the number
/// of routes, whatever events hold: at most [`MAX_EVENT_TYPES`] event types have a name, the others are [`OTHER`].
#[must_use]
pub fn render(relay: &RelayHealth, outside: &Outside) -> String {
    let mut text = Text::default();
    let routes = relay.routes();
    counters(&mut text, routes);
    database(&mut text, &outside.database);
    gauges(&mut text, routes);
    let owns = |route: &RouteHealth| route.status().owner;
    // Only the owner of a route looks for them.
    let unrouted = routes.iter().any(owns).then(|| relay.unrouted());
    let age = unrouted.map(|event| event.map(|event| SystemTime::now().duration_since(event.created_at)));
    let age = age.map(|age| age.and_then(Result::ok).unwrap_or_default());
    text.one(&families::UNROUTED, ALL_ROUTES, age.as_ref().map(Duration::as_secs_f64));
    text.one(&families::LISTENER, ALL_ROUTES, outside.listener_up.map(flag));
    for (family, pick) in HISTOGRAMS {
        text.family(family);
        for route in routes {
            text.histogram(family, route.name(), &pick(&route.counters().recorded).snapshot());
        }
    }
    text.into_string()
}

type PickHistogram = fn(&Recorded) -> &histogram::Histogram;

const HISTOGRAMS: [(&Family, PickHistogram); 4] = [
    (&families::BATCH, |recorded| &recorded.batches),
    (&families::DELIVERY, |recorded| &recorded.deliveries),
    (&families::PUBLISH, |recorded| &recorded.publishes),
    (&families::READ, |recorded| &recorded.reads),
];

fn counters(text: &mut Text, routes: &[RouteHealth]) {
    let plain = |text: &mut Text, family: &Family, pick: fn(&RouteHealth) -> &AtomicU64| {
        text.family(family);
        for route in routes {
            text.count(family, &[route.name()], pick(route).load(Relaxed));
        }
    };
    plain(text, &families::PUBLISHED, |route| &route.counters().published);
    text.family(&families::FAILED);
    for route in routes {
        for (event_type, kinds) in route.counters().recorded.failures() {
            for (kind, count) in kinds {
                text.count(&families::FAILED, &[route.name(), &event_type, kind], count);
            }
        }
    }
    text.family(&families::DEAD_LETTERS_WRITTEN);
    for route in routes {
        let mut kinds = route.counters().recorded.dead();
        for kind in DEAD_KINDS {
            kinds.entry(kind).or_default();
        }
        for (kind, count) in kinds {
            text.count(&families::DEAD_LETTERS_WRITTEN, &[route.name(), kind], count);
        }
    }
    plain(text, &families::DUPLICATES, |route| &route.counters().duplicates_reported);
    text.family(&families::LATE);
    for route in routes {
        let counters = route.counters();
        for (found_by, count) in [("look_back", &counters.late_look_back), ("full_sweep", &counters.late_full_sweep)] {
            text.count(&families::LATE, &[route.name(), found_by], count.load(Relaxed));
        }
    }
    plain(text, &families::LEASE_LOSSES, |route| &route.counters().lease_losses);
    text.family(&families::WAKEUPS);
    for route in routes {
        let causes = route.counters().recorded.wakeups();
        for cause in WakeCause::ALL.map(WakeCause::as_str) {
            let count = causes.get(cause).copied().unwrap_or(0);
            text.count(&families::WAKEUPS, &[route.name(), cause], count);
        }
    }
}

fn database(text: &mut Text, figures: &DatabaseFigures) {
    let seconds = |age: Option<Duration>| age.map(|age| age.as_secs_f64());
    for (family, value) in [
        (&families::PENDING, figures.pending.map(number)),
        (&families::PENDING_ESTIMATED, figures.pending_estimated.map(flag)),
        (&families::OLDEST_PENDING, seconds(figures.oldest_pending_age)),
        (&families::RETRIES_WAITING, figures.retries_waiting.map(number)),
        (&families::DEAD_LETTERS, figures.dead_letters.map(number)),
        (&families::BLOCKED, figures.blocked_aggregates.map(number)),
        (&families::WRITER_AGE, seconds(figures.oldest_writer_age)),
        (&families::XMIN_AGE, figures.oldest_xmin_age.map(number)),
    ] {
        text.one(family, ALL_ROUTES, value);
    }
}

fn gauges(text: &mut Text, routes: &[RouteHealth]) {
    let mut each = |family: &Family, pick: fn(&RouteHealth) -> Option<f64>| {
        text.family(family);
        for route in routes {
            if let Some(value) = pick(route) {
                text.value(family, &[route.name()], value);
            }
        }
    };
    each(&families::IN_FLIGHT, |route| Some(number(route.gauges().in_flight.load(Relaxed))));
    each(&families::SPILLED, |route| Some(number(route.gauges().spilled_aggregates.load(Relaxed))));
    each(&families::BREAKER, |route| {
        let status = route.status();
        // Nobody has asked it yet, or it is another relay's business.
        let known = status.owner && status.destination != DestinationState::Unknown;
        known.then(|| number(route.gauges().breaker.load(Relaxed)))
    });
    each(&families::PAUSED_TOPICS, |route| Some(number(route.gauges().paused_topics.load(Relaxed))));
    each(&families::BUCKETS, |route| Some(number(route.status().buckets as u64)));
    each(&families::STANDBY, |route| Some(flag(route.status().standby.is_some())));
}

/// Beyond 2^53 the format's floats are not exact.
#[expect(clippy::cast_precision_loss, reason = "the format has floats only")]
const fn number(count: u64) -> f64 {
    count as f64
}

const fn flag(set: bool) -> f64 {
    if set { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests;
