//! Random producers and the server that they write to: sequence, locks, transactions, table.

use std::collections::{BTreeMap, BTreeSet};

use crate::notes::{Holder, Snapshot};

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub(super) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}

/// One step of a producer's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    LockAggregate(u64),
    TakeTableLock,
    TakeXid,
    Insert(u64),
    BecomeVisible,
    Abort,
    ReleaseTableLock,
}

#[derive(Debug)]
pub(super) struct Transaction {
    vxid: String,
    xid: Option<u64>,
    steps: Vec<Step>,
    rows: Vec<(i64, u64)>,
}

/// The server: sequence, locks, transactions, table.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) sequence: i64,
    next_vxid: u64,
    next_xid: u64,
    latest_completed: u64,
    running: BTreeSet<u64>,
    holders: Vec<(String, Option<u64>)>,
    locked: BTreeMap<u64, String>,
    /// Committed and not deleted, with the aggregate.
    pub(super) table: BTreeMap<i64, u64>,
    pub(super) committed: BTreeMap<i64, u64>,
}

impl Server {
    pub(super) fn new(first_xid: u64) -> Self {
        Self {
            sequence: 0,
            next_vxid: 0,
            next_xid: first_xid,
            latest_completed: first_xid - 1,
            running: BTreeSet::new(),
            holders: Vec::new(),
            locked: BTreeMap::new(),
            table: BTreeMap::new(),
            committed: BTreeMap::new(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.latest_completed + 1;
        let in_progress: Vec<String> = self.running.range(..xmax).map(u64::to_string).collect();
        let xmin = self.running.first().copied().unwrap_or(xmax).min(xmax);
        Snapshot::parse(&format!("{xmin}:{xmax}:{}", in_progress.join(","))).unwrap()
    }

    pub(super) fn view(&self) -> (Snapshot, BTreeMap<i64, u64>) {
        (self.snapshot(), self.table.clone())
    }

    pub(super) fn listed(&self) -> Vec<Holder> {
        let short = |xid: u64| u32::try_from(xid & u64::from(u32::MAX)).unwrap();
        self.holders.iter().map(|(vxid, xid)| Holder { vxid: vxid.clone(), xid: xid.map(short) }).collect()
    }

    /// Makes one step. `None` when the transaction is over.
    pub(super) fn step(&mut self, mut transaction: Transaction) -> Option<Transaction> {
        let step = *transaction.steps.last()?;
        let vxid = transaction.vxid.clone();
        match step {
            Step::LockAggregate(aggregate) => {
                let holder = self.locked.entry(aggregate).or_insert_with(|| vxid.clone());
                if *holder != vxid {
                    return Some(transaction); // waits
                }
            }
            Step::TakeTableLock => {
                if !self.holders.iter().any(|(holder, _)| *holder == vxid) {
                    self.holders.push((vxid, transaction.xid));
                }
            }
            Step::TakeXid => {
                if transaction.xid.is_none() {
                    transaction.xid = Some(self.next_xid);
                    self.running.insert(self.next_xid);
                    self.next_xid += 1;
                }
                for (_, xid) in self.holders.iter_mut().filter(|(holder, _)| *holder == vxid) {
                    *xid = transaction.xid;
                }
            }
            Step::Insert(aggregate) => {
                self.sequence += 1;
                transaction.rows.push((self.sequence, aggregate));
            }
            Step::BecomeVisible | Step::Abort => {
                if step == Step::BecomeVisible {
                    self.table.extend(transaction.rows.iter().copied());
                    self.committed.extend(transaction.rows.iter().copied());
                }
                if let Some(xid) = transaction.xid {
                    self.running.remove(&xid);
                    self.latest_completed = self.latest_completed.max(xid);
                }
                self.locked.retain(|_, holder| *holder != vxid);
            }
            Step::ReleaseTableLock => self.holders.retain(|(holder, _)| *holder != vxid),
        }
        transaction.steps.pop();
        (!transaction.steps.is_empty()).then_some(transaction)
    }

    pub(super) fn begin(&mut self, random: &mut Random, aggregates: u64) -> Transaction {
        self.next_vxid += 1;
        let mut steps = Vec::new();
        // Mostly the business row comes first and with it the transaction id.
        if random.below(3) > 0 {
            steps.push(Step::TakeXid);
        }
        if random.one_in(5) {
            steps.push(Step::TakeTableLock);
        }
        let mut wanted: Vec<u64> = (0..1 + random.below(2)).map(|_| random.below(aggregates)).collect();
        wanted.sort_unstable(); // as a producer does that can't deadlock
        for aggregate in wanted {
            steps.extend([Step::LockAggregate(aggregate), Step::TakeTableLock, Step::Insert(aggregate), Step::TakeXid]);
        }
        steps.push(if random.one_in(8) { Step::Abort } else { Step::BecomeVisible });
        steps.push(Step::ReleaseTableLock);
        steps.reverse();
        Transaction { vxid: format!("3/{}", self.next_vxid), xid: None, steps, rows: Vec::new() }
    }
}
