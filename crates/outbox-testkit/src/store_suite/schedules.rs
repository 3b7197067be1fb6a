//! Random schedules of producers and readers: nothing lost, nothing twice, order kept.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{Claimed, EventId, Lane, NewEvent, Payload, ReadRequest, Routes, Selection, Store};

use super::routes::filter;
use super::{LEASE, OpenTransaction, ROUTE, StoreHarness, event, forward, identities, read, settle};

const SEEDS: u64 = 12;
const STEPS: usize = 150;
const AGGREGATES: usize = 3;
const WRITERS: usize = 4;

/// Producers lock an aggregate, insert, and commit or roll back much later, in any interleaving with reads of any
/// size and with settles. In the end every committed event was read once, no other was read, and each aggregate's
/// events were read in the order of their inserts.
pub async fn random_schedules_lose_nothing_and_keep_order(harness: &dyn StoreHarness) {
    run(harness, &Routes::everything(ROUTE)).await;
}

/// The same with two routes, each with a reader of its own: each event is read by its own route, and by no other.
pub async fn random_schedules_of_two_routes_lose_nothing_and_keep_order(harness: &dyn StoreHarness) {
    run(harness, &Routes::new([("carts", filter(&["cart"], &[])), ("rest", filter(&[], &[]))]).expect("sound")).await;
}

async fn run(harness: &dyn StoreHarness, routes: &Routes) {
    let store = harness.relay().await;
    let mut owned = Vec::new();
    for (name, _) in routes.iter() {
        let selection = routes.selection(name).expect("its own name");
        owned.push(store.acquire(&selection, LEASE).await.expect("acquire failed").owned().expect("free"));
    }
    for seed in 1..=SEEDS {
        let mut readers = Vec::new();
        for ownership in &owned {
            let (lane, selection) = (super::open(&*store, ownership).await, ownership.selection.clone());
            readers.push(Reader { lane, selection, forget: Vec::new() });
        }
        let mut schedule = Schedule::new(seed, harness, &*store, readers);
        for _ in 0..STEPS {
            schedule.step().await;
        }
        schedule.finish().await;
        assert_eq!(harness.remaining().await, [], "seed {seed}");
    }
}

/// One aggregate in three belongs to another route, where there is one.
fn of_aggregate(name: &str, aggregate: usize, number: usize) -> NewEvent {
    match aggregate % 3 {
        1 => NewEvent::new("cart", name, "order.changed", Payload::raw_json("{}")),
        _ => event(name, number),
    }
}

struct Reader {
    lane: Box<dyn Lane>,
    selection: Selection,
    forget: Vec<i64>,
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
    readers: Vec<Reader>,
    writers: [Option<Writer>; WRITERS],
    /// By aggregate, in insert order, which is commit order since the aggregate is locked.
    committed: BTreeMap<usize, Vec<EventId>>,
    read: Vec<Claimed>,
    /// With the place of their reader.
    unsettled: Vec<(usize, Claimed)>,
}

impl<'a> Schedule<'a> {
    fn new(seed: u64, harness: &'a dyn StoreHarness, store: &'a dyn Store, readers: Vec<Reader>) -> Self {
        Self {
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            harness,
            store,
            readers,
            writers: [const { None }; WRITERS],
            committed: BTreeMap::new(),
            read: Vec::new(),
            unsettled: Vec::new(),
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
                let reader = self.below(self.readers.len());
                self.read(reader, limit).await;
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
                let id = writer
                    .transaction
                    .insert(of_aggregate(&format!("{}-{aggregate}", self.seed), aggregate, number))
                    .await;
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

    async fn read(&mut self, place: usize, limit: usize) -> bool {
        let reader = &mut self.readers[place];
        let request = ReadRequest { forget: std::mem::take(&mut reader.forget), ..forward(limit) };
        let batch = read(&mut *reader.lane, request).await;
        for Claimed { envelope, .. } in &batch.events {
            let own = reader.selection.takes(&envelope.aggregate_type, &envelope.event_type);
            assert!(own, "seed {}: {} is of another route", self.seed, envelope.id);
        }
        self.read.extend(batch.events.iter().cloned());
        let nothing = batch.events.is_empty() && batch.complete;
        self.unsettled.extend(batch.events.into_iter().map(|event| (place, event)));
        nothing
    }

    async fn settle_some(&mut self) {
        let count = self.below(self.unsettled.len() + 1);
        let (places, confirmed): (Vec<_>, Vec<_>) = self.unsettled.drain(..count).unzip();
        settle(self.store, &confirmed).await;
        for (place, event) in places.into_iter().zip(confirmed) {
            self.readers[place].forget.push(event.envelope.id);
        }
    }

    async fn finish(mut self) {
        for slot in 0..WRITERS {
            if let Some(writer) = self.writers[slot].take() {
                self.commit(writer).await;
                self.read(0, 1).await;
            }
        }
        for place in 0..self.readers.len() {
            let mut quiet = 0;
            while quiet < 3 {
                quiet = if self.read(place, 5).await { quiet + 1 } else { 0 };
            }
        }
        let unsettled: Vec<_> = self.unsettled.drain(..).map(|(_, event)| event).collect();
        settle(self.store, &unsettled).await;

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
