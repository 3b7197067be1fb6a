//! Random schedules of producers and one relay, run through the lane's own memory: nothing lost, nothing twice, the
//! order of each aggregate kept. The broken variants show that the model sees what each part of the design is for.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::*;
use server::{Random, Server, Transaction};

#[path = "memory_tests_owners.rs"]
mod owners;
#[path = "memory_tests_server.rs"]
mod server;

/// How the relay of a schedule works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// As [`PgLane`](crate::read::PgLane) does.
    Design,
    /// Reads above the cursor only.
    NoLookBack,
    /// Looks at the lock's holders before the sequence.
    HoldersFirst,
    /// Keeps long writers aside and never comes back for them.
    AsideForgotten,
    /// Takes its snapshot before it makes the note.
    SnapshotFirst,
    /// Keeps the cursor where it was when a page was full.
    CursorKept,
    /// Forgets events when they are settled, not with the next request.
    ForgetsAtOnce,
    /// Takes the end of a filtered read's reach for the end of the table.
    ReachIsTheEnd,
    /// Leaves the cursor where it was when a look-back was made in parts.
    CursorNotPutBack,
    /// Gains buckets and goes on reading from where it is.
    GainsWithoutRewind,
    /// Gives a bucket back while its events are at the broker.
    GivesBackUndrained,
    /// Takes in rows that were read in an earlier ownership of their bucket.
    StaleRowsTakenIn,
    /// Keeps to the memory of what it had of a bucket that it gave back.
    RemembersWhatItGaveBack,
    /// Goes on with reads of spilled keys that it began before it gained buckets.
    KeepsWhatItSpilled,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Wrong {
    lost: usize,
    twice: usize,
    disordered: usize,
    swept: usize,
}

/// What the relay is in the middle of.
#[derive(Debug)]
enum Phase {
    Idle,
    Value(i64),
    Noted,
    Snapshot(Snapshot, BTreeMap<i64, u64>),
    Keys { table: BTreeMap<i64, u64>, after: i64 },
}

struct Schedule {
    random: Random,
    variant: Variant,
    server: Server,
    producers: Vec<Option<Transaction>>,
    unborn: u64,
    aggregates: u64,
    memory: Memory,
    phase: Phase,
    limit: usize,
    /// Of a filtered read; `None` without a filter.
    reach: Option<i64>,
    /// Every so many-th aggregate is ours, the others are another route's.
    routes: u64,
    /// No other relay shares the route: going back to zero would hide what goes wrong without it.
    alone: bool,
    /// Of our aggregates those that another relay owns for the time being; each is a bucket of its own.
    away: BTreeSet<u64>,
    /// Being given back, until none of their events is at the broker.
    leaving: BTreeSet<u64>,
    /// How often each was given back: the token.
    tokens: BTreeMap<u64, u64>,
    /// What the lane keeps to, and the tokens when it last turned.
    turned: BTreeSet<u64>,
    gained: bool,
    /// Tokens when the read under way began.
    read_tokens: BTreeMap<u64, u64>,
    /// Read by the other relay and not settled yet.
    theirs: Vec<i64>,
    now: Instant,
    early_holders: Option<Vec<Holder>>,
    early_snapshot: Option<(Snapshot, BTreeMap<i64, u64>)>,
    forget: Vec<i64>,
    dropped: Vec<i64>,
    /// Aggregates of which events were dropped, with the first and the last.
    spilled: BTreeMap<u64, (i64, i64)>,
    reread_from: Option<i64>,
    delivered: Vec<(i64, u64)>,
    returned: usize,
    unsettled: Vec<i64>,
    spills: bool,
    wrong: Wrong,
}

impl Schedule {
    fn new(seed: u64, variant: Variant, start: Instant) -> Self {
        let mut random = Random(seed);
        let producers = (0..random.pick(&[2, 3, 4])).map(|_| None).collect();
        // Some cross the end of an epoch of transaction ids.
        let first_xid = random.pick(&[800, (1 << 32) - 6, (3 << 32) - 3]);
        let reach = random.pick(&[None, Some(1), Some(2), Some(5), Some(50)]);
        let routes = if reach.is_some() { random.pick(&[1, 2, 2, 3]) } else { 1 };
        Self {
            variant,
            server: Server::new(first_xid),
            producers,
            unborn: 6 + random.below(9),
            aggregates: random.pick(&[1, 2, 3]),
            memory: Memory::default(),
            phase: Phase::Idle,
            limit: random.pick(&[1, 2, 5, 100]),
            reach,
            routes,
            alone: random.one_in(2),
            away: BTreeSet::new(),
            leaving: BTreeSet::new(),
            tokens: BTreeMap::new(),
            turned: BTreeSet::new(),
            gained: false,
            read_tokens: BTreeMap::new(),
            theirs: Vec::new(),
            now: start,
            early_holders: None,
            early_snapshot: None,
            returned: 0,
            forget: Vec::new(),
            dropped: Vec::new(),
            spilled: BTreeMap::new(),
            reread_from: None,
            delivered: Vec::new(),
            unsettled: Vec::new(),
            spills: random.one_in(2),
            random,
            wrong: Wrong::default(),
        }
    }

    fn run(mut self) -> Wrong {
        for _ in 0..60 + self.random.below(140) {
            match self.random.below(20) {
                0..=10 => self.produce(),
                11..=15 => self.relay(),
                16 => self.change_owner(),
                17 => self.sweep(),
                _ => self.settle(),
            }
            let milliseconds = self.random.pick(&[1, 20, 20, 700]);
            self.now += Duration::from_millis(milliseconds);
        }
        self.unborn = 0;
        while self.producers.iter().any(Option::is_some) {
            self.produce();
        }
        // What is not read once nothing new has come for so long never will be.
        self.spills = false;
        let leaving = self.leaving.clone();
        let stays = |id: &i64| self.server.table.get(id).is_none_or(|aggregate| !leaving.contains(aggregate));
        let (unsettled, settled) = std::mem::take(&mut self.unsettled).into_iter().partition(stays);
        self.unsettled = unsettled;
        self.settled(settled);
        self.give_back();
        if self.random.one_in(2) {
            self.theirs_settle(true);
            for aggregate in std::mem::take(&mut self.away) {
                self.gain(aggregate);
            }
        }
        let mut quiet = 0;
        // A read is four steps, and one with the least reach passes one id.
        let enough = if self.reach.is_some() { 40 + 8 * self.server.sequence } else { 40 };
        while quiet < enough || !self.spilled.is_empty() {
            let before = (self.returned, self.delivered.len(), self.theirs.len());
            self.relay();
            self.other_relay();
            let now = (self.returned, self.delivered.len(), self.theirs.len());
            quiet = if now == before && self.theirs.is_empty() { quiet + 1 } else { 0 };
        }
        self.sweep();
        self.judge()
    }

    fn judge(mut self) -> Wrong {
        let ids: HashSet<i64> = self.delivered.iter().map(|(id, _)| *id).collect();
        self.wrong.twice = self.delivered.len() - ids.len();
        let ours = self.server.committed.iter().filter(|(_, aggregate)| self.is_routes(**aggregate));
        self.wrong.lost = ours.filter(|(id, _)| !ids.contains(id)).count();
        let (mut seen, mut last) = (HashSet::new(), BTreeMap::new());
        for (id, aggregate) in self.delivered.iter().filter(|(id, _)| seen.insert(*id)) {
            let last = last.entry(*aggregate).or_insert(0);
            self.wrong.disordered += usize::from(*last > *id);
            *last = (*last).max(*id);
        }
        assert!(ids.iter().all(|id| self.server.committed.contains_key(id)), "invented");
        self.wrong
    }

    /// Whether its events are delivered by this relay or by the other one of the same route.
    fn is_routes(&self, aggregate: u64) -> bool {
        aggregate.is_multiple_of(self.routes)
    }

    fn is_ours(&self, aggregate: u64) -> bool {
        self.is_routes(aggregate) && !self.away.contains(&aggregate) && !self.leaving.contains(&aggregate)
    }

    fn produce(&mut self) {
        let slot = usize::try_from(self.random.below(self.producers.len() as u64)).unwrap();
        match self.producers[slot].take() {
            Some(transaction) => self.producers[slot] = self.server.step(transaction),
            None if self.unborn > 0 => {
                self.unborn -= 1;
                self.producers[slot] = Some(self.server.begin(&mut self.random, self.aggregates));
            }
            None => {}
        }
    }

    /// The broker has confirmed some, and their DELETE commits.
    fn settle(&mut self) {
        let unsettled = std::mem::take(&mut self.unsettled);
        let (settled, unsettled) = unsettled.into_iter().partition(|_| self.random.below(5) < 2);
        self.unsettled = unsettled;
        self.settled(settled);
        // The other route is as quick or as slow.
        let theirs: Vec<i64> =
            self.server.table.iter().filter(|(_, aggregate)| !self.is_routes(**aggregate)).map(|(id, _)| *id).collect();
        for id in theirs {
            if self.random.below(5) < 2 {
                self.server.table.remove(&id);
            }
        }
        self.give_back();
        self.other_relay();
    }

    fn settled(&mut self, ids: Vec<i64>) {
        for id in ids {
            self.server.table.remove(&id);
            match self.variant {
                Variant::ForgetsAtOnce => self.memory.take_in(&[id], &[]),
                _ => self.forget.push(id),
            }
        }
    }

    fn sweep(&mut self) {
        self.turn();
        let through = self.memory.swept_through();
        let is_spilled = |id: i64, aggregate: u64| {
            self.spilled.get(&aggregate).is_some_and(|(first, last)| (*first..=*last).contains(&id))
        };
        let table =
            self.server.table.range(..=through).filter(|(_, of)| self.turned.contains(of) && self.is_current(**of));
        let found = table.filter(|(id, aggregate)| self.memory.is_unknown(**id) && !is_spilled(**id, **aggregate));
        self.wrong.swept += found.count();
    }

    /// One step of the relay: producers and settles go on between any two of them.
    fn relay(&mut self) {
        if matches!(self.phase, Phase::Idle) {
            self.turn();
            let (forget, dropped) = (std::mem::take(&mut self.forget), std::mem::take(&mut self.dropped));
            self.memory.take_in(&forget, &dropped);
            self.early_holders = (self.variant == Variant::HoldersFirst).then(|| self.server.listed());
            self.early_snapshot = (self.variant == Variant::SnapshotFirst).then(|| self.server.view());
        } else if self.random.one_in(25) {
            self.phase = Phase::Idle; // the read is dropped
            return;
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => match self.reread_from.filter(|_| self.random.one_in(2)) {
                Some(after) => Phase::Keys { table: self.server.table.clone(), after },
                None => Phase::Value(self.server.sequence),
            },
            Phase::Value(mut value) => {
                if self.variant == Variant::HoldersFirst {
                    value = self.server.sequence;
                }
                let holders = self.early_holders.take().unwrap_or_else(|| self.server.listed());
                self.memory.note(value, holders, self.now);
                Phase::Noted
            }
            Phase::Noted => {
                let (snapshot, table) = self.early_snapshot.take().unwrap_or_else(|| self.server.view());
                Phase::Snapshot(snapshot, table)
            }
            Phase::Snapshot(snapshot, table) => {
                self.forward(&snapshot, &table);
                Phase::Idle
            }
            Phase::Keys { table, after } => {
                self.keys(&table, after);
                Phase::Idle
            }
        };
    }

    fn page(&mut self, table: &BTreeMap<i64, u64>, start: &Start, take: impl Fn(i64, u64) -> bool) -> (Vec<i64>, End) {
        let rows = table.range(start.after.saturating_add(1)..=start.through.max(start.after.saturating_add(1)));
        let rows = rows.filter(|(id, _)| **id <= start.through);
        let rows = rows.filter(|(id, aggregate)| !start.leave_out.contains(id) && take(**id, **aggregate));
        let ids: Vec<i64> = rows.map(|(id, _)| *id).take(self.limit).collect();
        let end = if ids.len() >= self.limit { End::Limit } else { End::Nothing };
        self.returned += ids.len();
        (ids, end)
    }

    fn forward(&mut self, snapshot: &Snapshot, table: &BTreeMap<i64, u64>) {
        // Who does not own all looks at rows that are not its own, like a route with a filter.
        let owns_all = (0..self.aggregates).filter(|aggregate| self.is_routes(*aggregate)).count() == self.turned.len();
        let reach = self.reach.or((!owns_all).then_some(5));
        let mut start = self.memory.forward(snapshot, reach);
        let from = match self.variant {
            Variant::NoLookBack => self.memory.cursor(),
            Variant::AsideForgotten => start.after.max(self.memory.notes().low().min(self.memory.cursor())),
            _ => start.after,
        };
        start.after = from;
        let turned = self.turned.clone();
        let (ids, mut end) = self.page(table, &start, |_, aggregate| turned.contains(&aggregate));
        if reach.is_some() && end == End::Nothing {
            end = self.memory.filtered_end(&start);
        }
        let told = match (self.variant, end) {
            (Variant::CursorKept, End::Limit) => End::Nothing,
            (Variant::ReachIsTheEnd, End::Reach(_)) => End::NothingOfOurs,
            (Variant::CursorNotPutBack, End::Reach(through)) => End::Reach(through.max(self.memory.cursor())),
            (_, end) => end,
        };
        self.memory.forward_made(snapshot, &ids, told);
        for id in ids {
            let aggregate = table[&id];
            if !self.is_current(aggregate) {
                self.turn_away(id);
                continue;
            }
            let no_room = self.spills && self.random.one_in(6);
            if no_room || self.spilled.contains_key(&aggregate) {
                self.dropped.push(id);
                let (first, last) = self.spilled.entry(aggregate).or_insert((id, id));
                (*first, *last) = ((*first).min(id), (*last).max(id));
            } else {
                self.deliver(id, aggregate);
            }
        }
        if !self.spilled.is_empty() {
            self.reread_from = self.spilled.values().map(|(first, _)| first - 1).min();
        }
    }

    fn keys(&mut self, table: &BTreeMap<i64, u64>, after: i64) {
        let through = self.spilled.values().map(|(_, last)| *last).max().unwrap_or(0);
        let start = self.memory.keys(after);
        let turned = self.turned.clone();
        let spilled: BTreeSet<u64> = self.spilled.keys().copied().collect();
        let (ids, end) = self.page(table, &start, |id, aggregate| {
            id <= through && spilled.contains(&aggregate) && turned.contains(&aggregate)
        });
        self.memory.learn(&ids);
        for id in &ids {
            match self.is_current(table[id]) {
                true => self.deliver(*id, table[id]),
                false => self.turn_away(*id),
            }
        }
        match end {
            End::Limit => self.reread_from = ids.last().copied(),
            End::Nothing | End::NothingOfOurs | End::Reach(_) => {
                self.spilled.clear();
                self.reread_from = None;
            }
        }
    }

    fn deliver(&mut self, id: i64, aggregate: u64) {
        self.delivered.push((id, aggregate));
        self.unsettled.push(id);
    }
}

/// How many of these schedules lose, repeat, disorder, and leave something to the sweep.
fn count(variant: Variant, schedules: u64) -> (Wrong, Option<u64>) {
    let start = Instant::now();
    let (mut total, mut first) = (Wrong::default(), None);
    for seed in 0..schedules {
        let wrong = Schedule::new(seed, variant, start).run();
        total.lost += wrong.lost.min(1);
        total.twice += wrong.twice.min(1);
        total.disordered += wrong.disordered.min(1);
        total.swept += wrong.swept.min(1);
        if wrong != Wrong::default() {
            first = first.or(Some(seed));
        }
    }
    println!("{variant:?}: {schedules} schedules, with {total:?}, the first of them {first:?}");
    (total, first)
}

#[test]
fn no_schedule_loses_repeats_or_disorders() {
    let schedules = if std::env::var_os("OUTBOX_TEST_FULL").is_some() { 60_000 } else { 5_000 };
    assert_eq!(count(Variant::Design, schedules), (Wrong::default(), None));
}

#[test]
fn without_each_part_of_the_design_schedules_go_wrong() {
    let wrong = |variant| count(variant, 2_000).0;
    assert!(wrong(Variant::NoLookBack).lost > 0);
    assert!(wrong(Variant::HoldersFirst).lost > 0);
    assert!(wrong(Variant::AsideForgotten).lost > 0);
    assert!(wrong(Variant::SnapshotFirst).lost > 0);
    assert!(wrong(Variant::CursorKept).lost > 0);
    assert!(wrong(Variant::ForgetsAtOnce).twice > 0);
    assert!(wrong(Variant::ReachIsTheEnd).lost > 0);
    assert!(wrong(Variant::CursorNotPutBack).lost > 0);
    assert!(wrong(Variant::GainsWithoutRewind).lost > 0);
    assert!(wrong(Variant::GivesBackUndrained).twice > 0);
    assert!(wrong(Variant::StaleRowsTakenIn).twice > 0);
    assert!(wrong(Variant::RemembersWhatItGaveBack).lost > 0);
    assert!(wrong(Variant::KeepsWhatItSpilled).disordered > 0);
}
