//! Leases, tokens, take-over and release.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{
    Acquisition, Buckets, Change, Claimed, Ownership, ReadRequest, Renewal, Selection, Standing, Store, WriteBack,
    WriteBackStatus,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    LEASE, ROUTE, StoreHarness, event, forward, identities, open, own, read, read_all, reader, settle, try_own,
};

/// Eight relays ask at once, give back what is too much and take what is free until each has its share: no bucket ever
/// has two owners, in the end none is without one, and tokens grow with each change of owner.
pub async fn each_bucket_has_one_owner_among_many_relays(harness: &dyn StoreHarness) {
    let barrier = Arc::new(Barrier::new(8));
    let mut asking = JoinSet::new();
    for _ in 0..8 {
        let (relay, barrier) = (harness.relay().await, Arc::clone(&barrier));
        asking.spawn(async move {
            barrier.wait().await;
            let ownership = join(&*relay).await;
            (relay, ownership)
        });
    }
    let mut members = asking.join_all().await;
    assert_disjoint(&members);
    let mut tokens: BTreeMap<u16, (Uuid, i64)> = BTreeMap::new();
    for _ in 0..10 {
        let mut working = JoinSet::new();
        for (relay, ownership) in members {
            working.spawn(async move {
                let ownership = to_share(&*relay, ownership).await;
                (relay, ownership)
            });
        }
        members = working.join_all().await;
        assert_disjoint(&members);
        for (_, Ownership { owner, tokens: held, .. }) in &members {
            for (bucket, token) in held {
                let (before, last) = tokens.insert(*bucket, (*owner, *token)).unwrap_or((*owner, *token));
                assert!(*token > last || (*token == last && *owner == before), "bucket {bucket}: {last}, then {token}");
            }
        }
    }
    let shares: Vec<usize> = members.iter().map(|(_, ownership)| ownership.tokens.len()).collect();
    assert_eq!(shares, [8; 8], "64 buckets and 8 relays");
}

fn assert_disjoint(members: &[(Arc<dyn Store>, Ownership)]) {
    let owned: usize = members.iter().map(|(_, ownership)| ownership.tokens.len()).sum();
    let all = members.iter().fold(Buckets::NONE, |all, (_, ownership)| all.and(ownership.buckets()));
    assert_eq!(owned, all.len(), "a bucket has two owners: {members:?}");
}

/// Joins the relays of the route, for whatever is free.
async fn join(store: &dyn Store) -> Ownership {
    match store.acquire(&Selection::everything(ROUTE), LEASE).await.expect("acquire failed") {
        Acquisition::Owned(ownership) => ownership,
        other => panic!("it did not join: {other:?}"),
    }
}

async fn standing(store: &dyn Store, ownership: &Ownership) -> Standing {
    match store.renew(ownership).await.expect("renew failed") {
        Renewal::Held(standing) => standing,
        Renewal::Lost => panic!("lost: {ownership:?}"),
    }
}

/// As an engine does that has nothing in flight: gives back what is too much, or takes what is missing.
async fn to_share(store: &dyn Store, ownership: Ownership) -> Ownership {
    let Standing { share, .. } = standing(store, &ownership).await;
    let surplus: Buckets = ownership.buckets().iter().skip(share).collect();
    if !surplus.is_empty() {
        store.give_back(&ownership, surplus).await.expect("give_back failed");
        return ownership.only(ownership.buckets().without(surplus));
    }
    match store.take_more(&ownership).await.expect("take_more failed") {
        Acquisition::Owned(now) => now,
        other => panic!("{other:?}"),
    }
}

/// Whoever joins gets its share from those who have too much, and those who stay get what a leaver had; each relay is
/// told how many there are and how much is its own.
pub async fn relays_share_a_route_fairly(harness: &dyn StoreHarness) {
    let (first, second, third) = (harness.relay().await, harness.relay().await, harness.relay().await);
    let mut a = join(&*first).await;
    assert_eq!(standing(&*first, &a).await, Standing { relays: 1, share: 64, free: 0 });
    assert_eq!(a.buckets(), Buckets::ALL);
    let mut b = join(&*second).await;
    let mut c = join(&*third).await;
    assert!(b.tokens.is_empty() && c.tokens.is_empty());
    assert_eq!(standing(&*first, &a).await, Standing { relays: 3, share: 22, free: 0 }, "the oldest has one more");
    assert_eq!(standing(&*third, &c).await, Standing { relays: 3, share: 21, free: 0 });
    a = to_share(&*first, a).await;
    assert_eq!(standing(&*second, &b).await, Standing { relays: 3, share: 21, free: 42 });
    (b, c) = (to_share(&*second, b).await, to_share(&*third, c).await);
    assert_eq!([&a, &b, &c].map(|ownership| ownership.tokens.len()), [22, 21, 21]);
    second.release(&b).await.expect("release failed");
    assert_eq!(standing(&*first, &a).await, Standing { relays: 2, share: 32, free: 21 });
    (a, c) = (to_share(&*first, a).await, to_share(&*third, c).await);
    assert_eq!([&a, &c].map(|ownership| ownership.tokens.len()), [32, 32]);
    assert_eq!(a.buckets().and(c.buckets()), Buckets::ALL);
}

/// What was given back is free for another with a newer token; its giver may not write about it any more, may about
/// the rest, and can't free it again by a call that comes late, not even for itself.
pub async fn a_part_that_is_given_back_is_free_and_fenced(harness: &dyn StoreHarness) {
    harness.insert((0..200).map(|number| event(&number.to_string(), 1)).collect()).await;
    let (first, before, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let second = harness.relay().await;
    let joined = join(&*second).await;
    let given: Buckets = (0..32).collect();
    first.give_back(&before, given).await.expect("give_back failed");
    let kept = before.only(Buckets::ALL.without(given));
    let Acquisition::Owned(now) = second.take_more(&joined).await.expect("take_more failed") else { panic!() };
    assert_eq!(now.buckets(), given);
    assert!(now.tokens.iter().all(|(bucket, token)| token > &before.tokens[bucket]), "{before:?}, then {now:?}");

    first.give_back(&before, given).await.expect("a late call is no error");
    assert_eq!(standing(&*second, &now).await.free, 0);
    second.give_back(&now, given).await.expect("give_back failed");
    let Acquisition::Owned(again) = second.take_more(&joined).await.expect("take_more failed") else { panic!() };
    second.give_back(&now, given).await.expect("a late call is no error");
    assert_eq!(standing(&*second, &again).await.free, 0, "it was taken anew");

    let (theirs, ours): (Vec<_>, Vec<_>) = events.iter().partition(|event| given.contains(event.bucket));
    let changes = [change(theirs[0], Change::Dead), change(ours[0], Change::Dead)];
    let (done, fenced) = (WriteBackStatus::Done, WriteBackStatus::Fenced);
    assert_eq!(first.write_back(&before, &changes).await.expect("write_back failed"), [fenced, done]);
    let changes = [change(theirs[1], Change::Dead), change(ours[1], Change::Dead)];
    assert_eq!(first.write_back(&kept, &changes).await.expect("write_back failed"), [fenced, done]);
    assert_eq!(second.write_back(&again, &changes[..1]).await.expect("write_back failed"), [done]);
}

/// A reader returns the events of its buckets only. When it gains some it returns what it does not know of them, from
/// the first on and in order, and nothing that it knows.
pub async fn a_gained_bucket_is_read_from_zero(harness: &dyn StoreHarness) {
    let inserted = harness.insert((0..300).map(|number| event(&(number % 100).to_string(), number)).collect()).await;
    let store = harness.relay().await;
    let ownership = own(&*store).await;
    let all = read_all(&mut *open(&*store, &ownership).await).await;
    assert_eq!(identities(&all), inserted);
    let some: Buckets = (0..40).collect();
    let mut lane = open(&*store, &ownership.only(some)).await;
    let of = |buckets: Buckets| {
        identities(&all).into_iter().zip(&all).filter(move |(_, event)| buckets.contains(event.bucket))
    };
    let ids = |buckets: Buckets| of(buckets).map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(identities(&read_all(&mut *lane).await), ids(some));
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty());
    }
    // Given back, some of it settled by others, and gained again with the rest.
    let (lost, kept): (Buckets, Buckets) = ((0..10).collect(), (10..40).collect());
    let forget = of(lost).map(|(_, event)| event.envelope.id).collect();
    lane.turn_to(kept, Buckets::NONE);
    assert!(read(&mut *lane, ReadRequest { forget, ..forward(1000) }).await.events.is_empty());
    let settled: Vec<_> = of(lost).map(|(_, event)| event.clone()).take(5).collect();
    settle(&*store, &settled).await;
    let later = harness.insert((300..400).map(|number| event(&(number % 100).to_string(), number)).collect()).await;
    lane.turn_to(Buckets::ALL, Buckets::ALL.without(kept));
    let mut expected = ids(Buckets::ALL.without(kept));
    expected.retain(|id| !identities(&settled).contains(id));
    expected.extend(later);
    let mut events = Vec::new();
    while events.len() < expected.len() {
        let batch = read(&mut *lane, forward(17)).await;
        assert!(!batch.events.is_empty(), "{} of {}", events.len(), expected.len());
        events.extend(batch.events);
    }
    assert_eq!(identities(&events), expected);
    for _ in 0..3 {
        assert!(read_all(&mut *lane).await.is_empty(), "an event was read twice");
    }
}

/// Buckets that a relay owns without its knowledge, since the answer was lost, are free to it and to nobody else.
pub async fn a_take_whose_answer_was_lost_is_made_again(harness: &dyn StoreHarness) {
    let (first, second) = (harness.relay().await, harness.relay().await);
    let a = join(&*first).await;
    let b = join(&*second).await;
    first.give_back(&a, (0..32).collect()).await.expect("give_back failed");
    let Acquisition::Owned(lost) = second.take_more(&b).await.expect("take_more failed") else { panic!() };
    assert_eq!(standing(&*second, &b).await, Standing { relays: 2, share: 32, free: 32 });
    assert_eq!(standing(&*first, &a.only((32..64).collect())).await.free, 0);
    let Acquisition::Owned(now) = second.take_more(&b).await.expect("take_more failed") else { panic!() };
    assert_eq!(now.buckets(), lost.buckets());
    assert_newer(&now, &lost);
}

fn assert_newer(now: &Ownership, before: &Ownership) {
    assert_eq!(now.tokens.len(), before.tokens.len());
    let grown = now.tokens.iter().zip(before.tokens.iter()).all(|(now, before)| now.0 == before.0 && now.1 > before.1);
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
    assert!(!first.renew(&before).await.expect("renew failed").is_held(), "what is lost stays lost");
    assert!(second.renew(&now).await.expect("renew failed").is_held());
}

/// A renewal of an ended lease either holds the route again or says that it is lost; never half of both.
pub async fn a_renewal_extends_or_reports_the_loss(harness: &dyn StoreHarness) {
    let (first, second) = (harness.relay().await, harness.relay().await);
    let ownership = own(&*first).await;
    assert!(first.renew(&ownership).await.expect("renew failed").is_held());
    harness.end_leases(ROUTE).await;
    let extended = first.renew(&ownership).await.expect("renew failed").is_held();
    let taken = try_own(&*second).await;
    assert_ne!(extended, taken.is_some(), "the renewal said {extended}, the other relay got {taken:?}");

    harness.end_leases(ROUTE).await;
    let third = harness.relay().await;
    own(&*third).await;
    for _ in 0..2 {
        assert!(!first.renew(&ownership).await.expect("renew failed").is_held());
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
    assert!(!first.renew(&before).await.expect("renew failed").is_held(), "a released route is not renewed");
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
    assert!(second.renew(&now).await.expect("renew failed").is_held());
}

/// An owner that ends without a release is a death; they add up until one is released, or outlives what it took over.
pub async fn deaths_are_counted_until_a_release_or_until_outlived(harness: &dyn StoreHarness) {
    let relay = harness.relay().await;
    let mut owned = own(&*relay).await;
    assert!(relay.renew(&owned).await.expect("renew failed").is_held());
    for expected in 0..3 {
        assert_eq!(deaths(&owned), [expected; Buckets::COUNT]);
        harness.end_leases(ROUTE).await;
        owned = own(&*harness.relay().await).await;
    }
    let relay = harness.relay().await;
    relay.release(&owned).await.expect("release failed");
    let owned = own(&*relay).await;
    assert_eq!(deaths(&owned), [0; Buckets::COUNT], "a release is no death");

    harness.end_leases(ROUTE).await;
    let relay = harness.relay().await;
    let owned = own(&*relay).await;
    for buckets in [(0..32).collect(), (0..32).collect(), Buckets::NONE] {
        relay.forget_deaths(&owned, buckets).await.expect("forget_deaths failed");
    }
    // Given back among others a bucket keeps what it had: nobody says that anything was outlived.
    let last: Buckets = [63].into_iter().collect();
    relay.give_back(&owned, last).await.expect("give_back failed");
    harness.end_leases(ROUTE).await;
    let owned = own(&*harness.relay().await).await;
    let expected = |bucket: usize| if bucket < 32 || bucket == 63 { 1 } else { 2 };
    assert_eq!(deaths(&owned), (0..Buckets::COUNT).map(expected).collect::<Vec<_>>());
    assert_eq!(owned.only(last).deaths.len(), 1);
}

/// Of each bucket, in order.
fn deaths(ownership: &Ownership) -> Vec<u32> {
    assert_eq!(ownership.tokens.len(), Buckets::COUNT, "it owns all");
    ownership.tokens.keys().map(|bucket| ownership.deaths.get(bucket).copied().unwrap_or(0)).collect()
}

/// An owner of the past says nothing about what became of the events under the owner of now.
pub async fn a_stale_owner_can_not_forget_deaths(harness: &dyn StoreHarness) {
    let first = harness.relay().await;
    let stale = own(&*first).await;
    harness.end_leases(ROUTE).await;
    own(&*harness.relay().await).await;
    first.forget_deaths(&stale, Buckets::ALL).await.expect("about what is lost, it is no error");
    harness.end_leases(ROUTE).await;
    let now = own(&*harness.relay().await).await;
    assert_eq!(deaths(&now), [2; Buckets::COUNT]);
}

fn change(event: &Claimed, change: Change) -> WriteBack {
    WriteBack {
        id: event.envelope.id,
        event_id: event.envelope.event_id,
        bucket: event.bucket,
        attempts: 1,
        crashes: 0,
        kind: "failed",
        error: "refused".to_owned(),
        change,
    }
}
