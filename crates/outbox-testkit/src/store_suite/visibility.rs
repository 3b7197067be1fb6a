//! What is read and when: commits, rollbacks, and commits that come late.

use outbox_core::Lane;

use super::{StoreHarness, event, forward, identities, read, read_all, reader, settle};

/// An event of an open transaction is invisible, and no read that happens meanwhile makes it lost.
pub async fn nothing_is_visible_before_its_commit(harness: &dyn StoreHarness) {
    let (_, _, mut lane) = reader(harness).await;
    let mut transaction = harness.begin().await;
    let id = transaction.insert(event("a", 1)).await;
    assert!(read_all(&mut *lane).await.is_empty());
    assert!(read_all(&mut *lane).await.is_empty());
    transaction.commit().await;
    assert_eq!(identities(&read_all(&mut *lane).await), [id]);
}

/// An event of a transaction that was rolled back, or dropped, never appears.
pub async fn nothing_is_visible_after_a_rollback(harness: &dyn StoreHarness) {
    let (_, _, mut lane) = reader(harness).await;
    let mut transaction = harness.begin().await;
    transaction.insert(event("a", 1)).await;
    let after = harness.insert(vec![event("a", 2)]).await;
    assert_eq!(identities(&read_all(&mut *lane).await), after);
    transaction.rollback().await;
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty());
    }
    assert_eq!(harness.remaining().await.len(), 1);
}

/// A transaction takes an id, reads pass it, it commits, its aggregate goes on: the next read has both in order.
pub async fn a_late_commit_is_read_next_in_order_with_its_successor(harness: &dyn StoreHarness) {
    let (_, _, mut lane) = reader(harness).await;
    let mut slow = harness.begin().await;
    let late = slow.insert(event("a", 1)).await;
    let passed = harness.insert(vec![event("b", 1)]).await;
    let first = read(&mut *lane, forward(100)).await;
    assert_eq!((identities(&first.events), first.late), (passed, 0));
    slow.commit().await;
    let successor = harness.insert(vec![event("a", 2)]).await[0];

    let next = read(&mut *lane, forward(100)).await;
    assert_eq!(identities(&next.events), [late, successor]);
    assert_eq!(next.late, 1);
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty());
    }
}

/// Many events are read, settled and forgotten while one transaction stays open; its commit is in the next read.
pub async fn a_transaction_open_for_long_is_read_after_its_commit(harness: &dyn StoreHarness) {
    const ROUNDS: usize = 20;
    let (store, _, mut lane) = reader(harness).await;
    let mut slow = harness.begin().await;
    let late = slow.insert(event("slow", 1)).await;
    let mut forget = Vec::new();
    for round in 0..ROUNDS {
        let inserted = harness.insert(vec![event("a", round), event("b", round)]).await;
        let mut request = forward(100);
        request.forget = std::mem::take(&mut forget);
        let batch = read(&mut *lane, request).await;
        assert_eq!((identities(&batch.events), batch.late), (inserted, 0), "round {round}");
        settle(&*store, &batch.events).await;
        forget = batch.events.iter().map(|event| event.envelope.id).collect();
    }
    slow.commit().await;
    let batch = read(&mut *lane, forward(100)).await;
    assert_eq!((identities(&batch.events), batch.late), (vec![late], 1));
    assert_quiet(&mut *lane).await;
}

/// Events that one late transaction wrote before and after others passed are all read, each once, in order.
pub async fn a_late_transaction_of_several_events_is_read_whole(harness: &dyn StoreHarness) {
    let (_, _, mut lane) = reader(harness).await;
    let mut slow = harness.begin().await;
    let first = slow.insert(event("a", 1)).await;
    let passed = harness.insert(vec![event("b", 1)]).await;
    assert_eq!(identities(&read_all(&mut *lane).await), passed);
    let second = slow.insert(event("a", 2)).await;
    let passed = harness.insert(vec![event("b", 2)]).await;
    assert_eq!(identities(&read_all(&mut *lane).await), passed);
    let third = slow.insert(event("a", 3)).await;
    slow.commit().await;

    // The limit cuts the look-back: what it left out must not be passed.
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.extend(identities(&read(&mut *lane, forward(1)).await.events));
    }
    assert_eq!(seen, [first, second, third]);
    assert_quiet(&mut *lane).await;
}

async fn assert_quiet(lane: &mut dyn Lane) {
    for _ in 0..3 {
        assert!(read_all(lane).await.is_empty(), "an event was read twice");
    }
}
