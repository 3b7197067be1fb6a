//! What can be set about a route, with the reason for each default.

use std::fmt;
use std::time::Duration;

use outbox_core::Filter;
use outbox_core::units::format_duration;

/// Whether events of one aggregate wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// First deliveries of one aggregate are in id order; other aggregates go on beside it.
    #[default]
    Aggregate,
    /// No event waits for another.
    None,
}

/// What becomes of an event that is given up: after its last attempt, or when it can never be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDead {
    /// It is moved to the dead letters, and its aggregate goes on without it.
    #[default]
    Continue,
    /// It stays in its place, and its aggregate waits until an operator retries or skips it.
    Block,
}

/// A value that can't be used: which field, what is wrong, what would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key as it stands in the config file, without its table.
    pub field: &'static str,
    /// What is wrong with the value and what would be right.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// How one route reads, publishes and retries. All fields have defaults that suit a 2-core relay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteConfig {
    /// Name of the route: who owns what in the table `buckets`, and the field `route` of logs. 1 to 63 bytes.
    pub name: String,
    /// Which events the route matches; of several routes the first that matches takes an event. Default: all.
    pub filter: Filter,
    /// Whether events of one aggregate wait for each other. Default [`Ordering::Aggregate`].
    pub ordering: Ordering,
    /// What becomes of an event that is given up. Default [`OnDead::Continue`]: one bad event does not hold up its aggregate.
    pub on_dead: OnDead,
    /// Charged attempts before an event is given up, at least 1. Low: a passing fault kills events.
    /// High: a poisoned aggregate stays behind its head for long. Default 10: dead after 4 minutes on average, 8 1/2 at most.
    pub max_attempts: u32,
    /// Delay bound after the first charged attempt; doubles with each further one. Default 1 s.
    pub retry_initial: Duration,
    /// Largest delay bound. Default 5 min: a mended fault is noticed in minutes, not days.
    pub retry_max: Duration,
    /// How long one publish call may take before its events count as unconfirmed. Default 30 s.
    pub publish_timeout: Duration,
    /// Largest pause between two probes of a destination that is away. Default 2 s, so that delivery goes on within
    /// 5 s of the broker's return.
    pub probe_max: Duration,
    /// Events handed to the publisher whose deletion has not committed yet: also the bound of copies after a crash.
    /// Default 2000.
    pub window: usize,
    /// The same in bytes. Default 64 MiB.
    pub window_bytes: usize,
    /// Events in one read and in one publish call. Default 1000.
    pub batch_size: usize,
    /// Bytes in one read and in one publish call; one larger event still passes alone. Default 16 MiB.
    pub max_batch_bytes: usize,
    /// Events in memory that wait for their aggregate or topic. What does not fit is dropped and read again later.
    /// Default 10 000.
    pub queue_events: usize,
    /// The same in bytes. Default 64 MiB.
    pub queue_bytes: usize,
    /// How long an idle route waits before it reads again. Default 50 ms: the latency when idle.
    pub poll_interval: Duration,
    /// How long the route stays ours after the last renewal. Low: a slow database costs the route. High: a crash
    /// delays the take-over. Default 15 s; it is renewed every third of it.
    pub lease: Duration,
    /// How often the whole table is compared with memory, as a safety net. Default 60 s.
    pub full_sweep_interval: Duration,
    /// How long a shutdown waits for the broker's answers. Default 20 s.
    pub shutdown_grace: Duration,
}

impl RouteConfig {
    /// The smallest poll interval: below it an idle relay is load without use.
    pub const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
    /// The shortest lease: three renewals, each of which may wait a second for the database.
    pub const MIN_LEASE: Duration = Duration::from_secs(3);
    /// The longest of all durations: beyond it clocks and PostgreSQL's intervals overflow.
    pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

    /// The defaults under a name.
    pub fn new(name: impl Into<String>) -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            name: name.into(),
            filter: Filter::default(),
            ordering: Ordering::Aggregate,
            on_dead: OnDead::Continue,
            max_attempts: 10,
            retry_initial: Duration::from_secs(1),
            retry_max: Duration::from_secs(300),
            publish_timeout: Duration::from_secs(30),
            probe_max: Duration::from_secs(2),
            window: 2000,
            window_bytes: 64 * MIB,
            batch_size: 1000,
            max_batch_bytes: 16 * MIB,
            queue_events: 10_000,
            queue_bytes: 64 * MIB,
            poll_interval: Duration::from_millis(50),
            lease: Duration::from_secs(15),
            full_sweep_interval: Duration::from_secs(60),
            shutdown_grace: Duration::from_secs(20),
        }
    }

    /// Chooses which events the route matches.
    #[must_use]
    pub fn with_filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Checks each value and how they fit together.
    ///
    /// # Errors
    /// Everything that is wrong, not only the first.
    pub fn validate(&self) -> Result<(), Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut need = |ok: bool, field: &'static str, problem: String| {
            if !ok {
                errors.push(ConfigError { field, problem });
            }
        };
        let name = &self.name;
        need(
            !name.trim().is_empty() && name.len() <= 63 && !name.contains(char::is_control),
            "name",
            format!("must be 1 to 63 bytes without control characters, got {} bytes", name.len()),
        );
        for (field, value) in [
            ("max_attempts", self.max_attempts as usize),
            ("window", self.window),
            ("window_bytes", self.window_bytes),
            ("batch_size", self.batch_size),
            ("max_batch_bytes", self.max_batch_bytes),
            ("queue_events", self.queue_events),
            ("queue_bytes", self.queue_bytes),
        ] {
            need(value >= 1, field, "must be at least 1, got 0".to_owned());
        }
        for (field, value, max) in [
            ("batch_size", self.batch_size, 10_000),
            ("window", self.window, 100_000),
            ("queue_events", self.queue_events, 1_000_000),
        ] {
            need(value <= max, field, format!("must be at most {max}, got {value}"));
        }
        for (field, value, min) in [
            ("retry_initial", self.retry_initial, Duration::from_millis(1)),
            ("retry_max", self.retry_max, self.retry_initial),
            ("publish_timeout", self.publish_timeout, Duration::from_millis(100)),
            ("probe_max", self.probe_max, Duration::from_millis(100)),
            ("poll_interval", self.poll_interval, Self::MIN_POLL_INTERVAL),
            ("lease", self.lease, Self::MIN_LEASE),
            ("full_sweep_interval", self.full_sweep_interval, Duration::from_secs(1)),
            ("shutdown_grace", self.shutdown_grace, Duration::ZERO),
        ] {
            need(
                value >= min,
                field,
                format!("must be at least {}, got {}", format_duration(min), format_duration(value)),
            );
            let max = Self::MAX_DURATION;
            need(value <= max, field, format!("must be at most 365 days, got {}", format_duration(value)));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}
