//! Leases, tokens, take-over and release.

use std::sync::Arc;

use outbox_core::{Change, Claimed, Ownership, Store, WriteBack, WriteBackStatus};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{LEASE, ROUTE, StoreHarness, event, identities, open, own, read_all, reader, settle, try_own};

/// Eight relays ask at once, five times over: one gets the route, and the tokens of every bucket grow each time.
pub async fn a_route_has_one_owner_among_many_relays(harness: &dyn StoreHarness) {
    let mut relays: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..8 {
        relays.push(harness.relay().await);
    }
    let mut before: Option<Ownership> = None;
    for round in 0..5 {
        let barrier = Arc::new(Barrier::new(relays.len()));
        let mut asking = JoinSet::new();
        for relay in &relays {
            let (relay, barrier) = (Arc::clone(relay), Arc::clone(&barrier));
            asking.spawn(async move {
                barrier.wait().await;
                let owned = try_own(&*relay).await;
                owned.map(|ownership| (relay, ownership))
            });
        }
        let mut owners: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
        assert_eq!(owners.len(), 1, "owners in round {round}");
        let (owner, ownership) = owners.remove(0);
        if let Some(before) = &before {
            assert_newer(&ownership, before);
        }
        assert!(owner.renew(&ownership).await.expect("renew failed"));
        owner.release(&ownership).await.expect("release failed");
        before = Some(ownership);
    }
}

fn assert_newer(now: &Ownership, before: &Ownership) {
    assert_eq!(now.tokens.len(), before.tokens.len());
    let grown = now.tokens.iter().zip(before.tokens.iter()).all(|(now, before)| now > before);
    assert!(grown, "every token grows with a change of owner: {before:?}, then {now:?}");
}

/// A second relay waits while the lease lasts, then takes over, and its lane has all that is unsettled, from zero.
pub async fn a_route_is_taken_over_when_its_lease_ends(harness: &dyn StoreHarness) {
    let inserted = harness.insert((0..10).map(|number| event("a", number)).collect()).await;
    let (first, before, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    settle(&*first, &events[..3]).await;

    let second = harness.relay().await;
    assert!(try_own(&*second).await.is_none());
    harness.end_leases(ROUTE).await;
    let now = own(&*second).await;
    assert_newer(&now, &before);
    assert_ne!(now.owner, before.owner);
    let mut lane = open(&*second, &now).await;
    let events = read_all(&mut *lane).await;
    assert_eq!(identities(&events), inserted[3..]);
    assert!(events.iter().all(|event| event.retrying.is_none()), "a take-over charges nothing");
    assert!(!first.renew(&before).await.expect("renew failed"), "what is lost stays lost");
    assert!(second.renew(&now).await.expect("renew failed"));
}

/// A renewal of an ended lease either holds the route again or says that it is lost; never half of both.
pub async fn a_renewal_extends_or_reports_the_loss(harness: &dyn StoreHarness) {
    let (first, second) = (harness.relay().await, harness.relay().await);
    let ownership = own(&*first).await;
    assert!(first.renew(&ownership).await.expect("renew failed"));
    harness.end_leases(ROUTE).await;
    let extended = first.renew(&ownership).await.expect("renew failed");
    let taken = try_own(&*second).await;
    assert_ne!(extended, taken.is_some(), "the renewal said {extended}, the other relay got {taken:?}");

    harness.end_leases(ROUTE).await;
    let third = harness.relay().await;
    own(&*third).await;
    for _ in 0..2 {
        assert!(!first.renew(&ownership).await.expect("renew failed"));
    }
}

/// After a release another relay need not wait, finds everything, and no event has been charged.
pub async fn a_released_route_is_free_at_once_and_charges_nothing(harness: &dyn StoreHarness) {
    let inserted = harness.insert(vec![event("a", 1), event("b", 1), event("a", 2)]).await;
    let (first, before, mut lane) = reader(harness).await;
    assert_eq!(identities(&read_all(&mut *lane).await), inserted);
    first.release(&before).await.expect("release failed");

    let second = harness.relay().await;
    let now = own(&*second).await;
    assert_newer(&now, &before);
    let mut lane = open(&*second, &now).await;
    let events = read_all(&mut *lane).await;
    assert_eq!(identities(&events), inserted);
    assert!(events.iter().all(|event| event.retrying.is_none()));
    assert_eq!(harness.retries().await, []);
    assert!(!first.renew(&before).await.expect("renew failed"), "a released route is not renewed");
}

/// What an owner of the past writes back is fenced: no retry row, no dead letter, the event stays.
pub async fn a_stale_token_changes_nothing(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("b", 1)]).await;
    let (first, stale, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    harness.end_leases(ROUTE).await;
    let second = harness.relay().await;
    let now = own(&*second).await;

    let changes = [change(&events[0], Change::Retry { delay: LEASE }), change(&events[1], Change::Dead)];
    let statuses = first.write_back(&stale, &changes).await.expect("write_back failed");
    assert_eq!(statuses, [WriteBackStatus::Fenced; 2]);
    assert_eq!(harness.retries().await, []);
    assert_eq!(harness.dead_letters().await, []);
    assert_eq!(harness.remaining().await.len(), 2);

    let statuses = second.write_back(&now, &changes).await.expect("write_back failed");
    assert_eq!(statuses, [WriteBackStatus::Done; 2]);
}

/// A confirm that comes after the take-over still deletes its event: it did arrive.
pub async fn a_stale_owner_still_settles(harness: &dyn StoreHarness) {
    let inserted = harness.insert(vec![event("a", 1), event("a", 2)]).await;
    let (first, _, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    harness.end_leases(ROUTE).await;
    let second = harness.relay().await;
    let now = own(&*second).await;
    settle(&*first, &events[..1]).await;
    let mut lane = open(&*second, &now).await;
    assert_eq!(identities(&read_all(&mut *lane).await), inserted[1..]);
}

/// A release that comes after the take-over does not take the route from its new owner.
pub async fn a_stale_owner_can_not_release(harness: &dyn StoreHarness) {
    let first = harness.relay().await;
    let stale = own(&*first).await;
    harness.end_leases(ROUTE).await;
    let second = harness.relay().await;
    let now = own(&*second).await;
    first.release(&stale).await.expect("a release of what is lost is no error");
    assert!(try_own(&*first).await.is_none());
    assert!(second.renew(&now).await.expect("renew failed"));
}

fn change(event: &Claimed, change: Change) -> WriteBack {
    WriteBack {
        id: event.envelope.id,
        event_id: event.envelope.event_id,
        bucket: event.bucket,
        attempts: 1,
        kind: "failed",
        error: "refused".to_owned(),
        change,
    }
}
