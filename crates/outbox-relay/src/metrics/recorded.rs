//! What a route records for its metrics beside plain counters. Everything here is bounded, whatever events hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use outbox_core::{ErrorKind, WakeCause};
use tokio::time::Instant;

use super::histogram::Histogram;
use crate::health::Counters;

/// Event types of failures that are told by name, for each route; the others are [`OTHER`]. A service has some dozens of
/// them; each is a series for each kind of error in whatever collects them.
pub const MAX_EVENT_TYPES: usize = 100;

/// A longer event type is [`OTHER`] too, and so is one with control characters: a label is no place for texts.
pub const MAX_EVENT_TYPE_BYTES: usize = 100;

/// The label of event types that have none of their own.
pub const OTHER: &str = "other";

/// Counts by the name of a kind.
pub(super) type ByKind = BTreeMap<&'static str, u64>;

#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// By event type; at most [`MAX_EVENT_TYPES`] and [`OTHER`].
    failures: Mutex<HashMap<String, ByKind>>,
    dead: Mutex<ByKind>,
    wakeups: Mutex<ByKind>,
    pub(crate) reads: Histogram,
    pub(crate) publishes: Histogram,
    pub(super) deliveries: Histogram,
    pub(super) batches: Histogram,
}

impl Recorded {
    /// An event was not confirmed.
    pub(crate) fn failed(&self, event_type: &str, kind: ErrorKind) {
        let mut failures = lock(&self.failures);
        let known = failures.contains_key(event_type);
        let is_name = event_type.len() <= MAX_EVENT_TYPE_BYTES && !event_type.contains(char::is_control);
        let fits = is_name && failures.len() < MAX_EVENT_TYPES;
        let name = if known || fits { event_type } else { OTHER };
        let kinds = match failures.get_mut(name) {
            Some(kinds) => kinds,
            None => failures.entry(name.to_owned()).or_default(),
        };
        *kinds.entry(kind.as_str()).or_default() += 1;
    }

    /// An event has become a dead letter.
    pub(crate) fn died(&self, kind: &'static str) {
        *lock(&self.dead).entry(kind).or_default() += 1;
    }

    pub(crate) fn woken(&self, cause: WakeCause) {
        *lock(&self.wakeups).entry(cause.as_str()).or_default() += 1;
    }

    /// An event that was written then is confirmed now. Two clocks: what comes from the future has taken no time.
    pub(crate) fn delivered(&self, created_at: SystemTime) {
        self.deliveries.observe(SystemTime::now().duration_since(created_at).unwrap_or_default());
    }

    pub(super) fn failures(&self) -> Vec<(String, ByKind)> {
        let mut failures: Vec<_> =
            lock(&self.failures).iter().map(|(name, kinds)| (name.clone(), kinds.clone())).collect();
        failures.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        failures
    }

    pub(super) fn dead(&self) -> ByKind {
        lock(&self.dead).clone()
    }

    pub(super) fn wakeups(&self) -> ByKind {
        lock(&self.wakeups).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is whole by itself, so a panic elsewhere has spoilt nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one read brought, from then until the last of its events has left. An event leaves when it is settled, when an
/// attempt fails and it waits for a retry, and when it is dropped from memory.
#[derive(Debug)]
pub(crate) struct Claim {
    counters: Arc<Counters>,
    begun: Instant,
    /// Microseconds after `begun` until the last settle, plus 1; 0 when nothing was settled.
    last_settle: AtomicU64,
}

impl Claim {
    pub(crate) fn begin(counters: &Arc<Counters>, now: Instant) -> Arc<Self> {
        Arc::new(Self { counters: Arc::clone(counters), begun: now, last_settle: AtomicU64::new(0) })
    }

    /// One of its events is settled.
    pub(crate) fn settled(claim: Option<&Arc<Self>>, now: Instant) {
        if let Some(claim) = claim {
            let micros = u64::try_from(now.saturating_duration_since(claim.begun).as_micros()).unwrap_or(u64::MAX);
            claim.last_settle.fetch_max(micros.saturating_add(1), Relaxed);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(micros) = self.last_settle.load(Relaxed).checked_sub(1) {
            self.counters.recorded.batches.observe(Duration::from_micros(micros));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_event_types_have_a_name() {
        let recorded = Recorded::default();
        for n in 0..10_000 {
            recorded.failed(&format!("type {n}"), ErrorKind::Failed);
        }
        recorded.failed(&"x".repeat(MAX_EVENT_TYPE_BYTES + 1), ErrorKind::Rejected);
        recorded.failed("a\nb", ErrorKind::Rejected);
        recorded.failed("type 3", ErrorKind::Rejected);
        let failures: HashMap<_, _> = recorded.failures().into_iter().collect();
        assert_eq!(failures.len(), MAX_EVENT_TYPES + 1);
        assert_eq!(failures[OTHER], BTreeMap::from([("failed", 9_900), ("rejected", 2)]));
        assert_eq!(failures["type 3"], BTreeMap::from([("failed", 1), ("rejected", 1)]));
    }

    #[test]
    fn a_claim_lasts_until_its_last_settle() {
        let (counters, now) = (Arc::<Counters>::default(), Instant::now());
        let claim = Some(Claim::begin(&counters, now));
        Claim::settled(claim.as_ref(), now + Duration::from_secs(2));
        Claim::settled(claim.as_ref(), now + Duration::from_secs(7));
        let last = claim.clone();
        drop(claim);
        assert_eq!(counters.recorded.batches.snapshot().count(), 0, "one of its events is still there");
        drop(last);
        let batches = counters.recorded.batches.snapshot();
        assert_eq!((batches.count(), batches.sum), (1, Duration::from_secs(7)));
        drop(Claim::begin(&counters, now));
        assert_eq!(counters.recorded.batches.snapshot().count(), 1, "nothing was settled");
    }
}
