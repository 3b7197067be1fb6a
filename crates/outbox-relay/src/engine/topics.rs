//! Topics that are paused because their destination is missing or refuses us. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::retry::backoff;

/// The first pause of a topic; doubles up to the route's `probe_max`.
const INITIAL_PAUSE: Duration = Duration::from_millis(250);

/// Topics that may be paused by name. A template over aggregate ids can name any number of them; beyond this many
/// the destination as a whole is paused.
pub(super) const MAX_PAUSED_TOPICS: usize = 10_000;

/// Probes under way at once: thousands of paused topics must leave publish calls to the others.
const MAX_PROBES: usize = 4;

#[derive(Debug)]
struct Paused {
    until: Instant,
    streak: u32,
    probing: bool,
    reason: String,
}

/// The paused topics. A paused topic is probed with one event at a time.
#[derive(Debug)]
pub(super) struct Topics {
    paused: HashMap<Arc<str>, Paused>,
    probe_max: Duration,
}

impl Topics {
    pub(super) fn new(probe_max: Duration) -> Self {
        Self { paused: HashMap::new(), probe_max }
    }

    /// Pauses a topic or prolongs its pause after a probe. Returns `true` when it was not paused before.
    pub(super) fn pause(&mut self, topic: &str, reason: &str, now: Instant, random: f64) -> bool {
        let initial = INITIAL_PAUSE.min(self.probe_max);
        if let Some(paused) = self.paused.get_mut(topic) {
            // Events that were under way when it was paused answer late: they do not count again.
            if paused.probing || paused.until <= now {
                paused.streak = paused.streak.saturating_add(1);
                paused.until = now + backoff(initial, self.probe_max, paused.streak, random);
                paused.probing = false;
                reason.clone_into(&mut paused.reason);
            }
            return false;
        }
        let until = now + backoff(initial, self.probe_max, 1, random);
        let paused = Paused { until, streak: 1, probing: false, reason: reason.to_owned() };
        self.paused.insert(topic.into(), paused);
        true
    }

    /// Whether this topic can be paused by name.
    pub(super) fn has_room_for(&self, topic: &str) -> bool {
        self.paused.len() < MAX_PAUSED_TOPICS || self.paused.contains_key(topic)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paused.is_empty()
    }

    /// The topic under its shared name when it is paused.
    pub(super) fn paused(&self, topic: &str) -> Option<Arc<str>> {
        self.paused.get_key_value(topic).map(|(name, _)| Arc::clone(name))
    }

    /// An event went through.
    pub(super) fn resume(&mut self, topic: &str) -> bool {
        self.paused.remove(topic).is_some()
    }

    /// A probe's event ended without saying anything about the topic: probe again after the same pause.
    pub(super) fn probe_ended(&mut self, topic: &str, now: Instant, random: f64) {
        let initial = INITIAL_PAUSE.min(self.probe_max);
        if let Some(paused) = self.paused.get_mut(topic)
            && paused.probing
        {
            paused.probing = false;
            paused.until = now + backoff(initial, self.probe_max, paused.streak, random);
        }
    }

    /// A topic whose probe is due; it counts as being probed from now on.
    pub(super) fn begin_probe(&mut self, now: Instant) -> Option<Arc<str>> {
        if self.paused.values().filter(|paused| paused.probing).count() >= MAX_PROBES {
            return None;
        }
        let (name, paused) = self.paused.iter_mut().find(|(_, paused)| !paused.probing && paused.until <= now)?;
        paused.probing = true;
        Some(Arc::clone(name))
    }

    /// When the next probe is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.paused.values().filter(|paused| !paused.probing).map(|paused| paused.until).min()
    }

    /// How many are paused, and the reason of one of them.
    pub(super) fn summary(&self) -> Option<(usize, String)> {
        let (name, paused) = self.paused.iter().min_by_key(|(name, _)| Arc::clone(name))?;
        Some((self.paused.len(), format!("topic `{name}`: {}", paused.reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(2);

    #[test]
    fn pauses_probes_and_resumes() {
        let now = Instant::now();
        let mut topics = Topics::new(MAX);
        assert!(topics.pause("a", "no route", now, 1.0));
        assert!(!topics.pause("a", "no route", now, 1.0), "an answer that was under way does not count again");
        assert_eq!(topics.next_due(), Some(now + INITIAL_PAUSE));
        assert!(topics.begin_probe(now).is_none());
        assert_eq!(topics.begin_probe(now + INITIAL_PAUSE).as_deref(), Some("a"));
        assert!(topics.begin_probe(now + MAX).is_none(), "one probe at a time");
        topics.probe_ended("a", now, 1.0);
        assert_eq!(topics.next_due(), Some(now + INITIAL_PAUSE), "the same pause again, not at once");
        assert_eq!(topics.begin_probe(now + INITIAL_PAUSE).as_deref(), Some("a"));
        topics.pause("a", "still no route", now, 1.0);
        topics.probe_ended("a", now, 1.0);
        assert_eq!(topics.next_due(), Some(now + 2 * INITIAL_PAUSE));
        assert_eq!(topics.summary(), Some((1, "topic `a`: still no route".to_owned())));
        assert!(topics.resume("a") && topics.paused("a").is_none() && topics.is_empty());
    }
}
