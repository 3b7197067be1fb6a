//! Limits, order, what a lane knows, reads by key, and sweeps.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use outbox_core::{EventId, Lane, NewEvent, Payload, ReadBatch, ReadRequest, ReadScope, SweepPage};

use super::{ROUTE, StoreHarness, event, forward, identities, read, read_all, reader, settle};

/// Pages of a backlog are never larger than asked for, and together they are the backlog in id order.
pub async fn events_come_in_id_order_within_the_row_limit(harness: &dyn StoreHarness) {
    let names = ["a", "b", "c"];
    let inserted = harness.insert((0..25).map(|number| event(names[number % 3], number)).collect()).await;
    let (_, _, mut lane) = reader(harness).await;
    let mut seen: Vec<EventId> = Vec::new();
    for expected in [10, 10, 5, 0] {
        let batch = read(&mut *lane, forward(10)).await;
        assert_eq!((batch.events.len(), batch.late), (expected, 0), "all was committed before the first read");
        assert!(batch.complete || expected == 10, "a read that ended by no limit is complete");
        assert!(!batch.complete || expected < 10 || seen.len() == 25, "more was there");
        seen.extend(identities(&batch.events));
    }
    assert_eq!(seen, inserted);
}

/// Bytes bound a batch; an event larger than the bound comes alone instead of never.
pub async fn batches_are_bounded_in_bytes_but_never_empty(harness: &dyn StoreHarness) {
    let of_size = |bytes: usize| NewEvent::new("order", "a", "order.changed", json_of(bytes));
    let mut events: Vec<_> = (0..10).map(|_| of_size(10_000)).collect();
    events.insert(5, of_size(200_000));
    let inserted = harness.insert(events).await;
    let (_, _, mut lane) = reader(harness).await;
    let (mut seen, mut reads) = (Vec::new(), 0);
    while seen.len() < inserted.len() {
        let batch = read(&mut *lane, ReadRequest { max_bytes: 35_000, ..forward(100) }).await;
        assert!(!batch.events.is_empty(), "the first event always passes");
        seen.extend(identities(&batch.events));
        assert!(!batch.complete || seen.len() == inserted.len(), "a read that ended by bytes is not complete");
        reads += 1;
    }
    assert_eq!(seen, inserted);
    assert!(reads >= 3, "{reads} reads for 300 000 bytes at 35 000 a read");

    let inserted = harness.insert(vec![event("a", 1), event("a", 2)]).await;
    for id in inserted {
        let batch = read(&mut *lane, ReadRequest { max_bytes: 1, ..forward(100) }).await;
        assert_eq!(identities(&batch.events), [id]);
    }
}

fn json_of(bytes: usize) -> Payload {
    Payload::raw_json(format!("\"{}\"", "x".repeat(bytes - 2)))
}

/// No event, no error, and the read says that nothing more is there.
pub async fn an_empty_outbox_reads_empty(harness: &dyn StoreHarness) {
    let (store, ownership, mut lane) = reader(harness).await;
    let batch = read(&mut *lane, forward(10)).await;
    assert!(batch.complete && batch.events.is_empty() && batch.late == 0);
    assert_eq!(lane.sweep(0).await.expect("sweep failed"), SweepPage::default());
    store.settle(ROUTE, &[]).await.expect("settling nothing failed");
    assert!(store.write_back(&ownership, &[]).await.expect("writing nothing back failed").is_empty());
    assert!(store.retry_states(ROUTE, &[]).await.expect("asking for nothing failed").is_empty());
}

/// An event that a lane has returned is not returned again, also where the look-back passes over it.
pub async fn a_known_event_is_not_read_again(harness: &dyn StoreHarness) {
    let (store, ownership, mut lane) = reader(harness).await;
    let mut open_below = harness.begin().await;
    open_below.insert(event("slow", 1)).await;
    let inserted = harness.insert(vec![event("a", 1), event("a", 2)]).await;
    let events = read_all(&mut *lane).await;
    assert_eq!(identities(&events), inserted);
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty());
    }
    // Settled and forgotten, it stays away; what was not settled is still known.
    settle(&*store, &events[..1]).await;
    let request = ReadRequest { forget: vec![events[0].envelope.id], ..forward(10) };
    assert!(read(&mut *lane, request).await.events.is_empty());
    open_below.rollback().await;
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty());
    }
    // Memory belongs to the lane: another one knows nothing.
    let mut second = super::open(&*store, &ownership).await;
    assert_eq!(identities(&read_all(&mut *second).await), inserted[1..]);
}

/// What the relay had no room for stays away from forward reads and comes back by its key, once.
pub async fn a_dropped_event_is_read_again_by_its_key_only(harness: &dyn StoreHarness) {
    let (_, _, mut lane) = reader(harness).await;
    // An open transaction keeps `low` down, so that the look-back comes across the dropped event.
    let mut open_below = harness.begin().await;
    open_below.insert(event("slow", 1)).await;
    harness.insert(vec![event("a", 1), event("b", 1), event("a", 2)]).await;
    let events = read_all(&mut *lane).await;
    let dropped = &events[2];
    let request = ReadRequest { dropped: vec![dropped.envelope.id], ..forward(10) };
    assert!(read(&mut *lane, request).await.events.is_empty());
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty());
    }
    for expected in [vec![dropped.envelope.event_id], Vec::new()] {
        let batch = read_keys(&mut *lane, vec![dropped.key], 0, dropped.envelope.id, 10).await;
        assert_eq!(identities(&batch.events), expected);
        assert!(batch.complete && batch.covered_through == dropped.envelope.id && batch.late == 0);
    }
    open_below.rollback().await;
    assert!(read_all(&mut *lane).await.is_empty());
}

/// A read by keys returns the unknown events of these keys in the range, in id order, in pages, and nothing else.
pub async fn keys_are_read_exactly_and_in_pages(harness: &dyn StoreHarness) {
    let names = ["a", "b", "c"];
    harness.insert((0..12).map(|number| event(names[number % 3], number)).collect()).await;
    let (_, _, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let of = |name: usize| events.iter().skip(name).step_by(3).collect::<Vec<_>>();
    let (a, b, c) = (of(0), of(1), of(2));
    let dropped = a.iter().chain(&b).map(|event| event.envelope.id).collect();
    read(&mut *lane, ReadRequest { dropped, ..forward(10) }).await;

    let through = a[2].envelope.id;
    let first = read_keys(&mut *lane, vec![a[0].key], 0, through, 2).await;
    assert_eq!(identities(&first.events), [a[0].envelope.event_id, a[1].envelope.event_id]);
    assert!(!first.complete && (a[1].envelope.id..through).contains(&first.covered_through));
    let second = read_keys(&mut *lane, vec![a[0].key], first.covered_through, through, 2).await;
    assert_eq!(identities(&second.events), [a[2].envelope.event_id]);
    assert!(second.complete && second.covered_through == through);

    // Known events of a key do not come, an event at `after` does not come, and an empty range is no error.
    let both = vec![b[0].key, c[0].key];
    let last = events[11].envelope.id;
    let batch = read_keys(&mut *lane, both, b[0].envelope.id, last, 10).await;
    assert_eq!(identities(&batch.events), b[1..].iter().map(|event| event.envelope.event_id).collect::<Vec<_>>());
    assert!(batch.complete && batch.covered_through == last);
    assert!(read_keys(&mut *lane, Vec::new(), 0, last, 10).await.events.is_empty());
    assert!(read_keys(&mut *lane, vec![a[0].key], last, last, 10).await.events.is_empty());
}

pub(super) async fn read_keys(
    lane: &mut dyn Lane,
    keys: Vec<u64>,
    after: i64,
    through: i64,
    max_events: usize,
) -> ReadBatch {
    read(lane, ReadRequest { scope: ReadScope::Keys { keys, after, through }, ..forward(max_events) }).await
}

/// A read whose future is dropped half-way has returned nothing: its events come with a later read.
pub async fn a_dropped_read_is_made_again(harness: &dyn StoreHarness) {
    let inserted = harness.insert(vec![event("a", 1), event("a", 2)]).await;
    let (_, _, mut lane) = reader(harness).await;
    let mut seen = Vec::new();
    for polls in 0..3 {
        let mut call = pin!(lane.read(forward(10)));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..polls {
            if let std::task::Poll::Ready(batch) = call.as_mut().poll(&mut context) {
                seen.extend(identities(&batch.expect("read failed").events));
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    seen.extend(identities(&read_all(&mut *lane).await));
    assert_eq!(seen, inserted);
}

/// After reads that passed everything, known events are no finding, nor are settled ones.
pub async fn a_sweep_finds_nothing_when_all_is_well(harness: &dyn StoreHarness) {
    let (store, _, mut lane) = reader(harness).await;
    harness.insert((0..30).map(|number| event("a", number)).collect()).await;
    let events = read_all(&mut *lane).await;
    settle(&*store, &events[..10]).await;
    let forget = events[..10].iter().map(|event| event.envelope.id).collect();
    read(&mut *lane, ReadRequest { forget, ..forward(10) }).await;
    read_all(&mut *lane).await;
    assert_eq!(sweep_all(&mut *lane).await, []);
}

/// An event that appears where no event can, below `low`, is found by the sweep with its key.
pub async fn a_sweep_finds_what_reads_can_not(harness: &dyn StoreHarness) {
    let (_, _, mut lane) = reader(harness).await;
    let mut gap = harness.begin().await;
    gap.insert(event("a", 1)).await;
    harness.insert(vec![event("a", 2)]).await;
    gap.rollback().await;
    let after = read_all(&mut *lane).await;
    for _ in 0..3 {
        read_all(&mut *lane).await;
    }
    let hidden = after[0].envelope.id - 1;
    if harness.insert_with_id(hidden, event("a", 1)).await.is_none() {
        println!("NOT CLAIMED: a_sweep_finds_what_reads_can_not (ids can't be chosen)");
        return;
    }
    assert!(read_all(&mut *lane).await.is_empty(), "below `low` a forward read does not look");
    assert_eq!(sweep_all(&mut *lane).await, [(hidden, after[0].key)]);
}

pub(super) async fn sweep_all(lane: &mut dyn Lane) -> Vec<(i64, u64)> {
    let (mut found, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = lane.sweep(after).await.expect("sweep failed");
        found.extend(page.unknown);
        assert!(page.next.is_none_or(|next| next > after), "a sweep must go on");
        next = page.next;
    }
    found
}
