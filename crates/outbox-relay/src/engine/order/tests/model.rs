//! What the order must not distinguish itself from: a table of rows, a reader that knows what it has returned, and a
//! broker. Each step checks what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use outbox_core::{Envelope, Headers, Payload, Retrying};
use uuid::Uuid;

use super::super::*;
use outbox_core::{EventId, RetryState};

const MILLI: Duration = Duration::from_millis(1);
pub(super) const TOPICS: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Row {
    key: u64,
    due: Option<Instant>,
    visible: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Answer {
    Confirm,
    Dead,
    GiveBack,
    Retry(u64),
    /// Its topic is paused.
    Park,
    /// The answer was lost.
    Cut,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Insert {
        key: u64,
        count: usize,
        delay: Option<u64>,
    },
    /// Takes an id now and becomes visible with `Reveal`.
    Late {
        key: u64,
    },
    Reveal,
    Read {
        reread: bool,
        most: usize,
    },
    EndRead {
        lost: bool,
    },
    Take {
        events: usize,
        kib: usize,
    },
    TakeSuspect,
    TakeParked(usize),
    Answer {
        batch: usize,
        answers: Vec<Answer>,
    },
    Advance(u64),
    Unpause(usize),
    Refresh,
    Delete(usize),
}

pub(super) struct Model {
    pub(super) order: Order,
    ordering: Ordering,
    several: bool,
    budget: usize,
    pub(super) now: Instant,
    rows: BTreeMap<i64, Row>,
    last_id: i64,
    known: HashSet<i64>,
    dropped: HashSet<i64>,
    reading: Option<(Option<Reread>, Vec<Claimed>, i64)>,
    pub(super) out: Vec<Vec<Pending>>,
    paused: BTreeSet<usize>,
}

fn topic(key: u64) -> usize {
    usize::try_from(key).unwrap() % TOPICS
}

fn name(topic: usize) -> Arc<str> {
    Arc::from(format!("topic-{topic}"))
}

fn claimed(id: i64, key: u64, retrying: Option<Retrying>, payload: usize) -> Claimed {
    let envelope = Envelope {
        id,
        event_id: EventId::from_uuid(Uuid::from_u128(u128::from(id.cast_unsigned()))),
        aggregate_type: "a".to_owned(),
        aggregate_id: key.to_string(),
        event_type: "e".to_owned(),
        payload: Payload::raw_json(vec![b'1'; payload]),
        headers: Headers::new(),
        created_at: SystemTime::UNIX_EPOCH,
    };
    Claimed { envelope, key, bucket: 0, retrying, defect: None }
}

impl Model {
    pub(super) fn new(ordering: Ordering, several: bool, budget: usize) -> Self {
        let mut config = RouteConfig::new("test");
        (config.ordering, config.queue_events) = (ordering, budget);
        Self {
            order: Order::new(&config),
            ordering,
            several,
            budget,
            now: Instant::now(),
            rows: BTreeMap::new(),
            last_id: 0,
            known: HashSet::new(),
            dropped: HashSet::new(),
            reading: None,
            out: Vec::new(),
            paused: BTreeSet::new(),
        }
    }

    fn insert(&mut self, key: u64, delay: Option<u64>, visible: bool) {
        // Who writes an aggregate's event holds its lock: no other event of it until then.
        if self.rows.values().any(|row| row.key == key && !row.visible) {
            return;
        }
        self.last_id += 1;
        let due = delay.map(|delay| self.now + MILLI * u32::try_from(delay).unwrap());
        self.rows.insert(self.last_id, Row { key, due, visible });
    }

    fn read(&mut self, reread: bool, most: usize) {
        if self.reading.is_some() {
            return;
        }
        let request = if reread { self.order.begin_reread(self.now) } else { None };
        if reread && request.is_none() {
            return;
        }
        for id in self.order.take_dropped() {
            assert!(self.known.remove(&id), "{id} was dropped without having been read");
            self.dropped.insert(id);
        }
        let wanted = |id: i64, row: &Row| match &request {
            Some(request) => request.keys.contains(&row.key) && id > request.after && id <= request.through,
            None => !self.dropped.contains(&id),
        };
        let found = self.rows.iter().filter(|(id, row)| row.visible && !self.known.contains(id) && wanted(**id, row));
        let found: Vec<(i64, Row)> = found.take(most).map(|(id, row)| (*id, *row)).collect();
        let complete = found.len() < most;
        let events: Vec<Claimed> = found
            .iter()
            .map(|(id, row)| {
                let due_in = row.due.map(|due| due.saturating_duration_since(self.now));
                let retrying = due_in.map(|due_in| Retrying { attempts: 1, crashes: 0, blocked: false, due_in });
                claimed(*id, row.key, retrying, usize::try_from(*id % 7).unwrap() * 100)
            })
            .collect();
        let through = request.as_ref().map_or(0, |request| request.through);
        let covered = if complete { through } else { found.last().map_or(through, |(id, _)| *id) };
        self.reading = Some((request, events, covered));
    }

    fn end_read(&mut self, lost: bool) {
        match self.reading.take() {
            None => {}
            Some((None, _, _)) if lost => {}
            Some((Some(request), _, _)) if lost => {
                self.order.end_reread(&request, request.after, Vec::new(), self.now);
            }
            Some((request, events, covered)) => {
                for event in &events {
                    self.known.insert(event.envelope.id);
                    self.dropped.remove(&event.envelope.id);
                }
                match request {
                    Some(request) => self.order.end_reread(&request, covered, events, self.now),
                    None => self.order.admit(events, self.now),
                }
            }
        }
    }

    fn take(&mut self, events: usize, bytes: usize) {
        let idle = self.out.is_empty();
        let room = Room { events, bytes, first_may_exceed: idle, several_per_key: self.several };
        let paused = |head: &Pending| Some(topic(head.store_key)).filter(|t| self.paused.contains(t)).map(name);
        let batch = self.order.take(room, self.now, paused);
        let load: usize = batch.iter().map(|pending| pending.bytes).sum();
        assert!(batch.len() <= events && (load <= bytes || (idle && batch.len() == 1)));
        self.hand_over(batch);
    }

    fn hand_over(&mut self, batch: Vec<Pending>) {
        if batch.is_empty() {
            return;
        }
        let mut in_batch: HashSet<i64> = HashSet::new();
        for pending in &batch {
            let (id, key) = (pending.id(), pending.store_key);
            let is_out = |id: i64| self.out.iter().flatten().any(|out| out.id() == id);
            assert!(!is_out(id) && in_batch.insert(id), "{id} is out twice");
            let row = self.rows.get(&id).unwrap_or_else(|| panic!("{id} is done and was handed over again"));
            assert!(row.due.is_none_or(|due| due <= self.now), "{id} is not due");
            if self.ordering == Ordering::Aggregate {
                let others: Vec<i64> =
                    self.out.iter().flatten().filter(|o| o.store_key == key).map(Pending::id).collect();
                assert!(others.is_empty(), "{id} goes while {others:?} of its key are out");
                let mut earlier =
                    self.rows.range(..id).filter(|(other, row)| row.key == key && !in_batch.contains(other));
                assert_eq!(earlier.next().map(|(id, _)| *id), None, "goes before {id}");
            }
        }
        let mut keys = HashSet::new();
        assert!(self.several || batch.iter().all(|pending| keys.insert(pending.key)), "two of a key in one batch");
        self.out.push(batch);
    }

    fn answer(&mut self, batch: usize, answers: &[Answer]) {
        if self.out.is_empty() {
            return;
        }
        let batch = self.out.swap_remove(batch % self.out.len());
        let mut failed = HashSet::new();
        let mut answered = Vec::new();
        for (at, pending) in batch.into_iter().enumerate() {
            let mut answer = answers[at % answers.len()];
            if failed.contains(&pending.key) {
                answer = Answer::GiveBack;
            } else if !matches!(answer, Answer::Confirm | Answer::Dead) {
                failed.insert(pending.key);
            }
            answered.push((pending, answer));
        }
        let mut keys = BTreeSet::new();
        for (mut pending, answer) in answered.into_iter().rev() {
            keys.insert(pending.key);
            let (id, key, store_key) = (pending.id(), pending.key, pending.store_key);
            match answer {
                Answer::Confirm | Answer::Dead => {
                    self.rows.remove(&id);
                    self.order.finish(key, store_key);
                    if answer == Answer::Confirm && self.paused.remove(&topic(store_key)) {
                        self.order.unpark(&name(topic(store_key)), self.now);
                    }
                    continue;
                }
                Answer::GiveBack => {}
                Answer::Retry(delay) => {
                    let due = self.now + MILLI * u32::try_from(delay).unwrap();
                    pending.not_before = Some(due);
                    self.rows.get_mut(&id).unwrap().due = Some(due);
                }
                Answer::Park => drop(self.paused.insert(topic(store_key))),
                Answer::Cut => pending.cuts = pending.cuts.saturating_add(1),
            }
            self.order.give_back(pending);
        }
        for key in keys {
            self.order.evaluate(key, self.now);
        }
    }

    fn unpause(&mut self, topic: usize) {
        self.paused.remove(&topic);
        self.order.unpark(&name(topic), self.now);
    }

    fn refresh(&mut self) {
        for asked in self.order.waiting(0, usize::MAX) {
            let state = match self.rows.get(&asked.id) {
                None => RetryState::Gone,
                Some(Row { due: None, .. }) => RetryState::Clear,
                Some(Row { due: Some(due), .. }) => {
                    let due_in = due.saturating_duration_since(self.now);
                    RetryState::Waiting(Retrying { attempts: 1, crashes: 0, blocked: false, due_in })
                }
            };
            if let Some(gone) = self.order.refresh(&asked, state, self.now) {
                self.order.finish(gone.key, gone.store_key);
                self.order.evaluate(gone.key, self.now);
            }
        }
    }

    pub(super) fn step(&mut self, step: &Step) {
        match step {
            Step::Insert { key, count, delay } => (0..*count).for_each(|_| self.insert(*key, *delay, true)),
            Step::Late { key } => self.insert(*key, None, false),
            Step::Reveal => self.rows.values_mut().for_each(|row| row.visible = true),
            Step::Read { reread, most } => self.read(*reread, *most),
            Step::EndRead { lost } => self.end_read(*lost),
            Step::Take { events, kib } => self.take(*events, *kib * 1024),
            Step::TakeSuspect => {
                let suspect = self.order.take_suspect();
                self.hand_over(suspect.into_iter().collect());
            }
            Step::TakeParked(topic) => {
                if self.paused.contains(topic) {
                    match self.order.take_parked(&name(*topic)) {
                        Some(head) => self.hand_over(vec![head]),
                        None => self.unpause(*topic),
                    }
                }
            }
            Step::Answer { batch, answers } => self.answer(*batch, answers),
            Step::Advance(millis) => {
                self.now += MILLI * u32::try_from(*millis).unwrap();
                self.order.wake(self.now);
            }
            Step::Unpause(topic) => self.unpause(*topic),
            Step::Refresh => self.refresh(),
            // Only a waiting event: the engine learns of others when it settles them.
            Step::Delete(at) => {
                let waiting = self.order.waiting(0, usize::MAX);
                if let Some(asked) = waiting.get(at % waiting.len().max(1)) {
                    self.rows.remove(&asked.id);
                    self.refresh();
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        let load = |stuck: bool| {
            let keys = self.order.keys.values().filter(|key| key.place.is_stuck() == stuck);
            keys.fold(Load::default(), |load, key| {
                assert_eq!(key.bytes, key.queue.iter().map(|pending| pending.bytes).sum::<usize>());
                assert!(key.queue.iter().is_sorted_by_key(Pending::id));
                Load { events: load.events + key.queue.len(), bytes: load.bytes + key.bytes }
            })
        };
        assert_eq!((self.order.active(), self.order.stuck()), (load(false), load(true)));
        let waiting = self.order.keys.values().filter(|key| matches!(key.place, Place::Waiting(_) | Place::Parked(_)));
        let waiting: usize = waiting.map(|key| key.queue.len()).sum();
        assert!(waiting <= self.budget + TOPICS * EVENTS_PER_KEY, "{waiting} wait, the budget is {}", self.budget);
        let out: usize = self.order.keys.values().map(|key| key.out).sum();
        assert_eq!(out, self.out.iter().map(Vec::len).sum::<usize>());
    }

    /// From now on everything works: nothing may be left behind.
    pub(super) fn drain(&mut self) {
        self.step(&Step::Reveal);
        self.step(&Step::EndRead { lost: true });
        for round in 0.. {
            while !self.out.is_empty() {
                self.step(&Step::Answer { batch: 0, answers: vec![Answer::Confirm] });
            }
            if self.rows.is_empty() {
                break;
            }
            assert!(round < 2_000, "never taken: {:?}", self.rows.iter().take(5).collect::<Vec<_>>());
            for topic in 0..TOPICS {
                self.step(&Step::Unpause(topic));
            }
            self.step(&Step::Take { events: 100, kib: 1024 });
            self.step(&Step::TakeSuspect);
            for reread in [true, false] {
                self.step(&Step::Read { reread, most: 50 });
                self.step(&Step::EndRead { lost: false });
            }
            if self.out.is_empty() && self.order.next_due().is_some() && !self.order.wants_reread() {
                self.step(&Step::Advance(1_000));
            }
        }
        assert_eq!((self.order.active(), self.order.stuck()), (Load::default(), Load::default()));
        assert!(self.order.keys.is_empty(), "keys are forgotten");
    }
}
