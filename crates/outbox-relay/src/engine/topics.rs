//! Topics that are paused because their destination is missing or refuses us. Pure.

use std::collections::{BTreeMap, BTreeSet};
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
    paused: BTreeMap<Arc<str>, Paused>,
    /// Those that are not being probed, by the time of their next probe: each turn of the loop asks for the first.
    due: BTreeSet<(Instant, Arc<str>)>,
    probe_max: Duration,
}

impl Topics {
    pub(super) fn new(probe_max: Duration) -> Self {
        Self { paused: BTreeMap::new(), due: BTreeSet::new(), probe_max }
    }

    /// Pauses a topic or prolongs its pause after a probe. Returns `true` when it was not paused before.
    pub(super) fn pause(&mut self, topic: &str, reason: &str, now: Instant, random: f64) -> bool {
        let Some(paused) = self.paused.get(topic) else {
            let paused = Paused { until: now, streak: 1, probing: false, reason: reason.to_owned() };
            self.wait(topic.into(), paused, now, random);
            return true;
        };
        // Events that were under way when it was paused answer late: they do not count again.
        if (paused.probing || paused.until <= now)
            && let Some((name, mut paused)) = self.remove(topic)
        {
            paused.streak = paused.streak.saturating_add(1);
            reason.clone_into(&mut paused.reason);
            self.wait(name, paused, now, random);
        }
        false
    }

    /// Begins the pause that the topic's streak calls for.
    fn wait(&mut self, name: Arc<str>, mut paused: Paused, now: Instant, random: f64) {
        let initial = INITIAL_PAUSE.min(self.probe_max);
        paused.probing = false;
        paused.until = now + backoff(initial, self.probe_max, paused.streak, random);
        self.due.insert((paused.until, Arc::clone(&name)));
        self.paused.insert(name, paused);
    }

    fn remove(&mut self, topic: &str) -> Option<(Arc<str>, Paused)> {
        let (name, paused) = self.paused.remove_entry(topic)?;
        if !paused.probing {
            self.due.remove(&(paused.until, Arc::clone(&name)));
        }
        Some((name, paused))
    }

    /// Whether this topic can be paused by name.
    pub(super) fn has_room_for(&self, topic: &str) -> bool {
        self.paused.len() < MAX_PAUSED_TOPICS || self.paused.contains_key(topic)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paused.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.paused.len()
    }

    /// The topic under its shared name when it is paused.
    pub(super) fn paused(&self, topic: &str) -> Option<Arc<str>> {
        self.paused.get_key_value(topic).map(|(name, _)| Arc::clone(name))
    }

    /// An event went through.
    pub(super) fn resume(&mut self, topic: &str) -> bool {
        self.remove(topic).is_some()
    }

    /// A probe's event ended without saying anything about the topic: probe again after the same pause.
    pub(super) fn probe_ended(&mut self, topic: &str, now: Instant, random: f64) {
        if self.paused.get(topic).is_some_and(|paused| paused.probing)
            && let Some((name, paused)) = self.remove(topic)
        {
            self.wait(name, paused, now, random);
        }
    }

    /// A topic whose probe is due; it counts as being probed from now on.
    pub(super) fn begin_probe(&mut self, now: Instant) -> Option<Arc<str>> {
        let probing = self.paused.len() - self.due.len();
        if probing >= MAX_PROBES || self.due.first().is_none_or(|(until, _)| *until > now) {
            return None;
        }
        let (_, name) = self.due.pop_first()?;
        if let Some(paused) = self.paused.get_mut(&name) {
            paused.probing = true;
        }
        Some(name)
    }

    /// When the next probe is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }

    /// How many are paused, and the reason of one of them.
    pub(super) fn summary(&self) -> Option<(usize, String)> {
        let (name, paused) = self.paused.first_key_value()?;
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
