//! When events are sent one at a time, each after a crash has been charged to it: one of them may kill the process. Pure.
//!
//! Owners in a row that ended without giving their buckets back are counted as *deaths* of the buckets. From the second
//! on the new owner is *careful* with events of these buckets; with an event to which a crash is charged every owner is.
//! The deaths are forgotten once the owner has outlived what it took over.

use std::collections::HashMap;

use outbox_core::{Buckets, Claimed, Ownership};

use super::pending::Pending;
use super::tasks::{Purpose, Turn};

/// Deaths in a row from which on an owner is careful. One is an ordinary crash; who is killed twice may be killed by
/// what it sends.
const CAREFUL_FROM: u32 = 2;

/// An event to which so many crashes are charged is given up: a kill from outside hits the one event that is out
/// three times in a row only by a rare accident.
pub(super) const MAX_CRASHES: u32 = 3;

/// How far the next careful event has come.
#[derive(Debug)]
enum Stage {
    /// Others may be sent.
    Idle,
    /// Nothing more is sent, so that it will be alone. What is held was taken out already, for a purpose.
    Draining(Option<(Pending, Purpose)>),
    /// It waits for its turn in the process: all routes die together, so only one of them sends a careful event.
    Queued(Option<(Pending, Purpose)>),
    /// Its crash is being charged.
    Charging(Turn),
    /// It is at the publisher, alone. The turn lasts until it is answered.
    Sent { _turn: Turn },
}

/// What a relay must be careful with, and for how long.
#[derive(Debug)]
pub(super) struct Careful {
    window: usize,
    /// Buckets with deaths that are not forgotten yet.
    died: Buckets,
    /// Those of them with so many that their events are sent carefully.
    deadly: Buckets,
    /// Events still to be sent carefully.
    left: usize,
    /// What was read since the take-over and may have been out when the owner before died, with its turn in the order.
    inherited: HashMap<i64, u64>,
    /// All that was there at the take-over has been read.
    read_through: bool,
    stage: Stage,
}

impl Careful {
    pub(super) fn new(window: usize) -> Self {
        Self {
            window,
            died: Buckets::NONE,
            deadly: Buckets::NONE,
            left: 0,
            inherited: HashMap::new(),
            read_through: false,
            stage: Stage::Idle,
        }
    }

    /// These are ours from now on, and will be read from zero.
    pub(super) fn takes(&mut self, gained: &Ownership) {
        let with = |least: u32| gained.deaths.iter().filter(move |(_, deaths)| **deaths >= least).map(|(b, _)| *b);
        let (died, deadly): (Buckets, Buckets) = (with(1).collect(), with(CAREFUL_FROM).collect());
        if !died.is_empty() {
            self.died = self.died.and(died);
            self.read_through = false;
        }
        if !deadly.is_empty() {
            self.deadly = self.deadly.and(deadly);
            self.left = self.window;
        }
    }

    /// These are ours no longer; their deaths are their next owner's business.
    pub(super) fn gives(&mut self, drained: Buckets) {
        (self.died, self.deadly) = (self.died.without(drained), self.deadly.without(drained));
    }

    /// The bucket of an event that is neither in the order nor at the publisher.
    pub(super) fn holds(&self) -> Option<u16> {
        match &self.stage {
            Stage::Draining(held) | Stage::Queued(held) => held.as_ref().map(|(pending, _)| pending.bucket),
            Stage::Idle | Stage::Charging(_) | Stage::Sent { .. } => None,
        }
    }

    /// The buckets whose events are sent carefully now.
    pub(super) fn buckets(&self) -> Buckets {
        if self.left == 0 { Buckets::NONE } else { self.deadly }
    }

    /// No other event may be sent.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    /// The next careful event shall go as soon as nothing else is out.
    pub(super) fn drain(&mut self, held: Option<(Pending, Purpose)>) {
        self.stage = Stage::Draining(held);
    }

    /// Nothing else is out: whether to queue for the process's turn.
    pub(super) fn queue(&mut self) -> bool {
        let Stage::Draining(held) = &mut self.stage else { return false };
        self.stage = Stage::Queued(held.take());
        true
    }

    /// The turn has come; what was taken out already.
    pub(super) fn dequeue(&mut self) -> Option<(Pending, Purpose)> {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Draining(held) | Stage::Queued(held) => held,
            Stage::Idle | Stage::Charging(_) | Stage::Sent { .. } => None,
        }
    }

    pub(super) fn charging(&mut self, turn: Turn) {
        self.stage = Stage::Charging(turn);
    }

    /// Its crash is charged: it may be sent.
    pub(super) fn charged(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Charging(turn) => Stage::Sent { _turn: turn },
            other => other,
        };
    }

    /// It was not sent after all.
    pub(super) fn called_off(&mut self) {
        self.stage = Stage::Idle;
    }

    /// It was sent and the process lives. Whether care ends with it.
    pub(super) fn outlived(&mut self) -> bool {
        self.stage = Stage::Idle;
        let was_careful = !self.buckets().is_empty();
        self.left = self.left.saturating_sub(1);
        was_careful && self.left == 0
    }

    /// Events were read, with their turns in the order; `complete` when nothing more was there.
    pub(super) fn inherits<'a>(&mut self, read: impl Iterator<Item = (&'a Claimed, u64)>, complete: bool) {
        if self.died.is_empty() || self.read_through {
            return;
        }
        let died = |(claimed, _): &(&Claimed, u64)| self.died.contains(claimed.bucket);
        self.inherited.extend(read.filter(died).map(|(claimed, turn)| (claimed.envelope.id, turn)));
        self.read_through = complete;
    }

    /// This event is finished, or is no longer in memory.
    pub(super) fn is_done(&mut self, id: i64) {
        self.inherited.remove(&id);
    }

    /// Leaves out what can't have been out when the owner before died, or has been answered since: what waits for a
    /// retry or an operator, and what is no longer in memory. `is_going` knows the turns of all others.
    pub(super) fn prune(&mut self, is_going: impl Fn(u64) -> bool) {
        self.inherited.retain(|_, turn| is_going(*turn));
    }

    /// The buckets whose deaths may be forgotten: everything that was taken over has been outlived.
    pub(super) fn outlived_buckets(&self) -> Option<Buckets> {
        let outlived = !self.died.is_empty() && self.read_through && self.inherited.is_empty();
        outlived.then_some(self.died)
    }

    /// The table says so too: an ordinary owner of these from now on.
    pub(super) fn forgotten(&mut self, buckets: Buckets) {
        self.gives(buckets);
    }

    pub(super) fn is_counting(&self) -> bool {
        !self.died.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    use outbox_core::{Envelope, EventId, Headers, Payload, Selection};
    use uuid::Uuid;

    use super::*;

    /// Of four buckets with so many deaths.
    fn ownership(deaths: [u32; 4]) -> Ownership {
        Ownership {
            selection: Selection::everything("orders"),
            owner: Uuid::nil(),
            lease: Duration::from_secs(15),
            tokens: (0..4).map(|bucket| (bucket, 1)).collect(),
            deaths: (0..4).zip(deaths).filter(|(_, deaths)| *deaths > 0).collect::<BTreeMap<_, _>>(),
        }
    }

    fn careful(deaths: [u32; 4], window: usize) -> Careful {
        let mut careful = Careful::new(window);
        careful.takes(&ownership(deaths));
        careful
    }

    fn buckets(buckets: &[u16]) -> Buckets {
        buckets.iter().copied().collect()
    }

    fn read(id: i64) -> Claimed {
        let envelope = Envelope {
            id,
            event_id: EventId::from_uuid(Uuid::nil()),
            aggregate_type: "a".to_owned(),
            aggregate_id: "1".to_owned(),
            event_type: "e".to_owned(),
            payload: Payload::raw_json("1"),
            headers: Headers::new(),
            created_at: SystemTime::UNIX_EPOCH,
        };
        Claimed { envelope, key: 7, bucket: 1, retrying: None, defect: None }
    }

    #[test]
    fn care_is_for_buckets_that_died_twice_and_ends_after_a_window() {
        let mut twice = careful([0, 1, 2, 5], 2);
        assert_eq!(twice.buckets(), buckets(&[2, 3]));
        assert!(!twice.outlived());
        assert!(twice.outlived(), "the second of two");
        assert_eq!(twice.buckets(), Buckets::NONE);
        assert!(!twice.outlived(), "it ends once");
        assert_eq!(careful([0, 1, 1, 0], 2).buckets(), Buckets::NONE);
        assert!(!careful([0; 4], 2).is_counting());
    }

    #[test]
    fn deaths_are_forgotten_when_all_that_was_taken_over_is_outlived() {
        let mut careful = careful([0, 1, 2, 0], 2);
        let events = [read(1), read(2), read(3)];
        careful.inherits(events[..2].iter().map(|event| (event, 7)), false);
        careful.is_done(1);
        careful.is_done(2);
        assert_eq!(careful.outlived_buckets(), None, "there may be more to read");
        careful.inherits(events[2..].iter().map(|event| (event, 8)), true);
        assert_eq!(careful.outlived_buckets(), None);
        careful.prune(|turn| turn == 8);
        assert_eq!(careful.outlived_buckets(), None);
        careful.prune(|_| false);
        assert_eq!(careful.outlived_buckets(), Some(buckets(&[1, 2])));
        careful.inherits(events.iter().map(|event| (event, 9)), true);
        assert!(careful.outlived_buckets().is_some(), "what came later was not taken over");
        careful.forgotten(buckets(&[1, 2]));
        assert!(careful.outlived_buckets().is_none() && careful.buckets().is_empty() && !careful.is_counting());
    }

    #[test]
    fn buckets_that_come_later_are_read_and_outlived_too() {
        let mut careful = careful([1; 4], 2);
        careful.inherits(std::iter::empty(), true);
        let mut more = ownership([0; 4]);
        (more.tokens, more.deaths) = (BTreeMap::from([(9, 1)]), BTreeMap::from([(9, 2)]));
        careful.takes(&more);
        assert_eq!((careful.outlived_buckets(), careful.buckets()), (None, buckets(&[9])));
        careful.gives(buckets(&[0, 9]));
        assert_eq!(careful.buckets(), Buckets::NONE);
        careful.inherits(std::iter::empty(), true);
        assert_eq!(careful.outlived_buckets(), Some(buckets(&[1, 2, 3])));
    }

    #[test]
    fn one_careful_event_at_a_time() {
        let mut careful = careful([2; 4], 2);
        careful.drain(None);
        assert!(careful.is_busy() && careful.queue() && !careful.queue());
        assert!(careful.holds().is_none() && careful.dequeue().is_none());
        assert!(!careful.is_busy());
    }
}
