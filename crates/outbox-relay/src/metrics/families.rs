//! The metrics by name: an external contract. `docs/metrics.md` is checked against this list.

/// What a family is for whatever collects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// It only grows until the process ends.
    Counter,
    /// A value now.
    Gauge,
    /// Counts of durations up to each of some bounds.
    Histogram,
}

impl FamilyKind {
    /// As the text format says it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// All samples of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// What it is.
    pub kind: FamilyKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says, in one line.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $name:literal, $kind:ident, [$($label:literal),*], $help:literal;)*) => {
        $(pub(super) const $constant: Family = Family {
            name: $name,
            kind: FamilyKind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every family that there can be, in the order in which they are shown.
        pub const FAMILIES: &[Family] = &[$($constant),*];
    };
}

families! {
    PUBLISHED = "outbox_events_published_total", Counter, ["route"],
        "Events that the broker has confirmed.";
    FAILED = "outbox_events_failed_total", Counter, ["route", "event_type", "kind"],
        "Answers about an event that were no confirmation, lost answers included, by who is to blame. Only kind failed, and an event that is convicted of cutting the connection, costs an attempt.";
    DEAD_LETTERS_WRITTEN = "outbox_dead_letters_total", Counter, ["route", "kind"],
        "Dead letters written.";
    DUPLICATES = "outbox_duplicates_reported_total", Counter, ["route"],
        "Copies that the broker reported as duplicates.";
    LATE = "outbox_late_events_total", Counter, ["route", "found_by"],
        "Events that became visible below the cursor. full_sweep stays 0: anything else is a defect.";
    LEASE_LOSSES = "outbox_lease_losses_total", Counter, ["route"],
        "How often this relay lost its share to others without giving it back.";
    WAKEUPS = "outbox_wakeups_total", Counter, ["route", "cause"],
        "Reads of an idle route by what caused them: its own poll, the doorbell, or the doorbell's check before a sleep and now and then in it.";
    PENDING = "outbox_events_pending", Gauge, ["route"],
        "Events that are committed and not yet confirmed, of all routes. Counted up to 10000, above that estimated.";
    PENDING_ESTIMATED = "outbox_events_pending_estimated", Gauge, ["route"],
        "1 when outbox_events_pending is an estimate.";
    OLDEST_PENDING = "outbox_oldest_pending_age_seconds", Gauge, ["route"],
        "How long ago the transaction of the first pending event began; 0 when none is pending.";
    IN_FLIGHT = "outbox_events_in_flight", Gauge, ["route"],
        "Events handed to the broker whose deletion or write-back has not committed yet.";
    RETRIES_WAITING = "outbox_retries_waiting", Gauge, ["route"],
        "Events that have failed and wait for their next attempt, of all routes, up to 10000.";
    DEAD_LETTERS = "outbox_dead_letters", Gauge, ["route"],
        "Dead letters that are there, of all routes, up to 10000.";
    BLOCKED = "outbox_blocked_aggregates", Gauge, ["route"],
        "Aggregates that wait for an operator, of all routes, up to 10000.";
    SPILLED = "outbox_spilled_aggregates", Gauge, ["route"],
        "Aggregates of which events were dropped from memory for want of room and will be read again.";
    UNROUTED = "outbox_unrouted_oldest_age_seconds", Gauge, ["route"],
        "How long ago the first event that no route takes was written; 0 when none was found. Left out by a relay that owns nothing.";
    BREAKER = "outbox_breaker_state", Gauge, ["route"],
        "The destination's circuit breaker: 0 closed, 1 half-open, 2 open. Left out by a relay that owns nothing of the route.";
    PAUSED_TOPICS = "outbox_paused_topics", Gauge, ["route"],
        "Topics that are paused because their destination is missing or refuses.";
    BUCKETS = "outbox_buckets_owned", Gauge, ["route"],
        "How many of the route's 64 buckets this relay owns.";
    LISTENER = "outbox_listener_up", Gauge, ["route"],
        "1 while the doorbell listens; while it does not, idle routes poll. Left out when the wake-up is polling.";
    STANDBY = "outbox_config_standby", Gauge, ["route"],
        "1 while this relay waits because relays with other routes are at work.";
    WRITER_AGE = "outbox_oldest_writer_age_seconds", Gauge, ["route"],
        "How long the oldest transaction that writes to events has been open; 0 when there is none. Of sessions of other roles a lower bound, without pg_read_all_stats.";
    XMIN_AGE = "outbox_oldest_xmin_age_transactions", Gauge, ["route"],
        "Age in transactions of the oldest snapshot that keeps vacuum from removing what was deleted.";
    BATCH = "outbox_batch_duration_seconds", Histogram, ["route"],
        "From the end of a read to the last settle of what it brought. An event that waits for a retry does not count any more.";
    DELIVERY = "outbox_delivery_latency_seconds", Histogram, ["route"],
        "From the begin of the transaction that wrote an event, by the database's clock, to its confirmation, by the relay's.";
    PUBLISH = "outbox_publish_duration_seconds", Histogram, ["route"],
        "A call of the publisher, whatever its answers.";
    READ = "outbox_read_duration_seconds", Histogram, ["route"],
        "A read of the outbox, whatever it found.";
}
