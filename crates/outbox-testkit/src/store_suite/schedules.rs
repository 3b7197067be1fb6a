//! Random schedules of producers and one reader: nothing lost, nothing twice, order kept.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{Claimed, EventId, Lane, ReadRequest, Store};

use super::{OpenTransaction, StoreHarness, event, forward, identities, read, reader, settle};

const SEEDS: u64 = 12;
const STEPS: usize = 150;
const AGGREGATES: usize = 3;
const WRITERS: usize = 4;

/// Producers lock an aggregate, insert, and commit or roll back much later, in any interleaving with reads of any
/// size and with settles. In the end every committed event was read once, no other was read, and each aggregate's
/// events were read in the order of their inserts.
pub async fn random_schedules_lose_nothing_and_keep_order(harness: &dyn StoreHarness) {
    let (store, ownership, _) = reader(harness).await;
    for seed in 1..=SEEDS {
        let lane = super::open(&*store, &ownership).await;
        let mut schedule = Schedule::new(seed, harness, &*store, lane);
        for _ in 0..STEPS {
            schedule.step().await;
        }
        schedule.finish().await;
        assert_eq!(harness.remaining().await, [], "seed {seed}");
    }
}

struct Writer {
    transaction: Box<dyn OpenTransaction>,
    /// Locked by this writer until it ends, with what it wrote to them.
    written: Vec<(usize, EventId)>,
}

struct Schedule<'a> {
    seed: u64,
    random: u64,
    harness: &'a dyn StoreHarness,
    store: &'a dyn Store,
    lane: Box<dyn Lane>,
    writers: [Option<Writer>; WRITERS],
    /// By aggregate, in insert order, which is commit order since the aggregate is locked.
    committed: BTreeMap<usize, Vec<EventId>>,
    read: Vec<Claimed>,
    unsettled: Vec<Claimed>,
    forget: Vec<i64>,
}

impl<'a> Schedule<'a> {
    fn new(seed: u64, harness: &'a dyn StoreHarness, store: &'a dyn Store, lane: Box<dyn Lane>) -> Self {
        Self {
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            harness,
            store,
            lane,
            writers: [const { None }; WRITERS],
            committed: BTreeMap::new(),
            read: Vec::new(),
            unsettled: Vec::new(),
            forget: Vec::new(),
        }
    }

    /// Xorshift: the same schedule for the same seed on every machine.
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // The remainder fits: `bound` was a usize.
        usize::try_from(self.random % (bound as u64)).unwrap_or(0)
    }

    async fn step(&mut self) {
        match self.below(20) {
            0..=10 => self.write().await,
            11..=16 => {
                let limit = [1, 2, 5, 100][self.below(4)];
                self.read(limit).await;
            }
            _ => self.settle_some().await,
        }
    }

    async fn write(&mut self) {
        let slot = self.below(WRITERS);
        let Some(mut writer) = self.writers[slot].take() else {
            let transaction = self.harness.begin().await;
            self.writers[slot] = Some(Writer { transaction, written: Vec::new() });
            return;
        };
        if writer.written.len() < 3 && self.below(3) > 0 {
            let aggregate = self.below(AGGREGATES);
            let others = self.writers.iter().flatten().flat_map(|writer| &writer.written);
            let locked = others.map(|(aggregate, _)| *aggregate).any(|locked| locked == aggregate);
            // A real producer would wait for the lock; here it comes again in a later step.
            if !locked {
                let number = writer.written.len();
                let id = writer.transaction.insert(event(&format!("{}-{aggregate}", self.seed), number)).await;
                writer.written.push((aggregate, id));
            }
            self.writers[slot] = Some(writer);
        } else if self.below(8) == 0 {
            writer.transaction.rollback().await;
        } else {
            self.commit(writer).await;
        }
    }

    async fn commit(&mut self, writer: Writer) {
        writer.transaction.commit().await;
        for (aggregate, id) in writer.written {
            self.committed.entry(aggregate).or_default().push(id);
        }
    }

    async fn read(&mut self, limit: usize) -> bool {
        let request = ReadRequest { forget: std::mem::take(&mut self.forget), ..forward(limit) };
        let batch = read(&mut *self.lane, request).await;
        self.read.extend(batch.events.iter().cloned());
        let nothing = batch.events.is_empty();
        self.unsettled.extend(batch.events);
        nothing
    }

    async fn settle_some(&mut self) {
        let count = self.below(self.unsettled.len() + 1);
        let confirmed: Vec<_> = self.unsettled.drain(..count).collect();
        settle(self.store, &confirmed).await;
        self.forget.extend(confirmed.iter().map(|event| event.envelope.id));
    }

    async fn finish(mut self) {
        for slot in 0..WRITERS {
            if let Some(writer) = self.writers[slot].take() {
                self.commit(writer).await;
                self.read(1).await;
            }
        }
        let mut quiet = 0;
        while quiet < 3 {
            quiet = if self.read(5).await { quiet + 1 } else { 0 };
        }
        settle(self.store, &self.unsettled).await;

        let seed = self.seed;
        let read = identities(&self.read);
        let distinct: BTreeSet<_> = read.iter().copied().collect();
        assert_eq!(distinct.len(), read.len(), "seed {seed}: an event was read twice");
        let committed: BTreeSet<_> = self.committed.values().flatten().copied().collect();
        assert_eq!(distinct, committed, "seed {seed}: what was read is not what was committed");
        for (aggregate, expected) in &self.committed {
            let name = format!("{seed}-{aggregate}");
            let of_it = self.read.iter().filter(|event| event.envelope.aggregate_id == name).cloned();
            assert_eq!(identities(&of_it.collect::<Vec<_>>()), *expected, "seed {seed}: order of {name}");
        }
    }
}
