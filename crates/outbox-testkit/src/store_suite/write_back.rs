//! What becomes of events: settled, waiting, dead, gone.

use std::time::Duration;

use outbox_core::{
    Change, Claimed, Confirmed, EventId, Payload, RetryState, Retrying, Store, WriteBack, WriteBackStatus,
};
use uuid::Uuid;

use super::{ROUTE, StoreHarness, StoredRetry, confirmed, event, identities, open, read_all, reader, settle};

const DELAY: Duration = Duration::from_secs(3600);

fn change(event: &Claimed, attempts: u32, change: Change) -> WriteBack {
    WriteBack {
        id: event.envelope.id,
        event_id: event.envelope.event_id,
        bucket: event.bucket,
        attempts,
        crashes: 0,
        kind: "failed",
        error: format!("attempt {attempts} was refused: zażółć"),
        change,
    }
}

fn stranger() -> EventId {
    EventId::from_uuid(Uuid::now_v7())
}

async fn state(store: &dyn Store, event: &Claimed) -> RetryState {
    let asked = [(event.envelope.id, event.envelope.event_id)];
    store.retry_states(ROUTE, &asked).await.expect("retry_states failed")[0]
}

/// Settled events are deleted, their neighbours stay.
pub async fn a_settled_event_is_gone(harness: &dyn StoreHarness) {
    let inserted = harness.insert((0..5).map(|number| event("a", number)).collect()).await;
    let (store, _, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    settle(&*store, &[events[1].clone(), events[3].clone()]).await;
    let remaining: Vec<_> = harness.remaining().await.iter().map(|event| event.event_id).collect();
    assert_eq!(remaining, [inserted[0], inserted[2], inserted[4]]);
}

/// Ids can come back after a restore: a confirm of another event under the same id deletes nothing.
pub async fn settling_is_by_id_and_identity(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("a", 2)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait = change(&events[0], 1, Change::Retry { delay: DELAY });
    store.write_back(&ownership, &[wait]).await.expect("write_back failed");
    let wrong = [
        Confirmed { event_id: stranger(), retried: true, ..confirmed(&events[0]) },
        Confirmed { id: events[0].envelope.id, ..confirmed(&events[1]) },
        Confirmed { id: i64::MAX, ..confirmed(&events[1]) },
    ];
    store.settle(ROUTE, &wrong).await.expect("settle failed");
    assert_eq!(harness.remaining().await.len(), 2);
    assert_eq!(harness.retries().await.len(), 1, "the retry row belongs to the event that is still there");
}

/// The answer to a settle can be lost, so it is made again.
pub async fn settling_twice_is_no_error(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("a", 2)]).await;
    let (store, _, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    settle(&*store, &events[..1]).await;
    settle(&*store, &events).await;
    settle(&*store, &events).await;
    assert_eq!(harness.remaining().await, []);
}

/// A retry is due after its delay by the database's clock, and a new lane is told how long that is and what it cost.
pub async fn a_retry_waits_for_its_delay(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("b", 1), event("c", 1)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait = [
        change(&events[0], 3, Change::Retry { delay: DELAY }),
        change(&events[1], 1, Change::Retry { delay: Duration::ZERO }),
    ];
    let statuses = store.write_back(&ownership, &wait).await.expect("write_back failed");
    assert_eq!(statuses, [WriteBackStatus::Done; 2]);
    assert!(read_all(&mut *lane).await.is_empty(), "the lane knows its waiting events");

    let mut second = open(&*store, &ownership).await;
    let again = read_all(&mut *second).await;
    assert_eq!(identities(&again), identities(&events), "waiting events are read, so that their aggregates wait");
    assert_waits(again[0].retrying, 3);
    assert_eq!(again[1].retrying, Some(Retrying { attempts: 1, crashes: 0, blocked: false, due_in: Duration::ZERO }));
    assert_eq!(again[2].retrying, None);
    let RetryState::Waiting(retrying) = state(&*store, &events[0]).await else { panic!("it waits") };
    assert_waits(Some(retrying), 3);
    assert_eq!(state(&*store, &events[2]).await, RetryState::Clear);
}

fn assert_waits(retrying: Option<Retrying>, attempts: u32) {
    let retrying = retrying.expect("the event has failed before");
    assert_eq!(retrying.attempts, attempts);
    let due_in = retrying.due_in;
    assert!(due_in <= DELAY && due_in > DELAY - Duration::from_secs(300), "due in {due_in:?}");
}

/// The answer to a write-back can be lost: the same attempt written twice counts once, a later one replaces it.
pub async fn a_repeated_retry_is_counted_once(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    for attempts in [1, 1, 2] {
        let wait = change(&events[0], attempts, Change::Retry { delay: DELAY });
        let (kind, error) = (wait.kind.to_owned(), wait.error.clone());
        let expected = StoredRetry { id: wait.id, attempts, crashes: 0, blocked: false, kind, error };
        let statuses = store.write_back(&ownership, &[wait]).await.expect("write_back failed");
        assert_eq!(statuses, [WriteBackStatus::Done]);
        assert_eq!(harness.retries().await, [expected]);
    }
}

/// A confirmed event leaves no retry row behind.
pub async fn settling_removes_the_retry_row(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("b", 1)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait: Vec<_> = events.iter().map(|event| change(event, 1, Change::Retry { delay: DELAY })).collect();
    store.write_back(&ownership, &wait).await.expect("write_back failed");
    let settled = Confirmed { retried: true, ..confirmed(&events[0]) };
    store.settle(ROUTE, &[settled]).await.expect("settle failed");
    let left: Vec<_> = harness.retries().await.iter().map(|retry| retry.id).collect();
    assert_eq!(left, [events[1].envelope.id]);
    assert_eq!(state(&*store, &events[0]).await, RetryState::Gone);
}

/// An operator makes an event due, clears its retry row, or deletes it: the relay is told.
pub async fn an_operators_change_is_seen(harness: &dyn StoreHarness) {
    harness.insert((0..4).map(|number| event("a", number)).collect()).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait: Vec<_> = events.iter().map(|event| change(event, 2, Change::Retry { delay: DELAY })).collect();
    store.write_back(&ownership, &wait).await.expect("write_back failed");
    harness.make_due(events[0].envelope.id).await;
    harness.clear_retry(events[1].envelope.id).await;
    harness.delete_event(events[2].envelope.id).await;

    let mut asked: Vec<_> = events.iter().map(|event| (event.envelope.id, event.envelope.event_id)).collect();
    asked.push((events[3].envelope.id, stranger()));
    let states = store.retry_states(ROUTE, &asked).await.expect("retry_states failed");
    assert_eq!(states.len(), 5, "one state for each, in order");
    assert_eq!(
        states[0],
        RetryState::Waiting(Retrying { attempts: 2, crashes: 0, blocked: false, due_in: Duration::ZERO })
    );
    assert_eq!(states[1..3], [RetryState::Clear, RetryState::Gone]);
    let RetryState::Waiting(untouched) = states[3] else { panic!("nobody touched it: {states:?}") };
    assert_waits(Some(untouched), 2);
    assert_eq!(states[4], RetryState::Gone, "an id with another identity is another event");
}

/// A charged crash is written before an event is sent. The next owner is told of it and waits for the delay; taken back,
/// it leaves what attempts have cost, or nothing.
pub async fn a_charged_crash_waits_and_is_taken_back(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("b", 1), event("c", 1)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let charge = |event: &Claimed, attempts, crashes| WriteBack {
        crashes,
        kind: "crash",
        ..change(event, attempts, Change::Retry { delay: DELAY })
    };
    let charges = [charge(&events[0], 0, 1), charge(&events[1], 3, 2), charge(&events[2], 0, 1)];
    let statuses = store.write_back(&ownership, &charges).await.expect("write_back failed");
    assert_eq!(statuses, [WriteBackStatus::Done; 3]);
    let told: Vec<_> = read_all(&mut *open(&*store, &ownership).await).await.iter().map(|e| e.retrying).collect();
    let told: Vec<_> = told.into_iter().flatten().map(|told| (told.attempts, told.crashes, told.blocked)).collect();
    assert_eq!(told, [(0, 1, false), (3, 2, false), (0, 1, false)]);
    assert_waits(read_all(&mut *open(&*store, &ownership).await).await[1].retrying, 3);

    harness.delete_event(events[2].envelope.id).await;
    // The answer can be lost: said again, it changes nothing more.
    for _ in 0..2 {
        let acquitted: Vec<_> = events.iter().map(|event| change(event, 0, Change::Acquit)).collect();
        let statuses = store.write_back(&ownership, &acquitted).await.expect("write_back failed");
        assert_eq!(statuses, [WriteBackStatus::Done, WriteBackStatus::Done, WriteBackStatus::Gone]);
        assert_eq!(state(&*store, &events[0]).await, RetryState::Clear);
        let due = Retrying { attempts: 3, crashes: 0, blocked: false, due_in: Duration::ZERO };
        assert_eq!(state(&*store, &events[1]).await, RetryState::Waiting(due));
        let left: Vec<_> = harness.retries().await.iter().map(|retry| (retry.id, retry.attempts)).collect();
        assert_eq!(left, [(events[1].envelope.id, 3)], "what is gone leaves nothing");
    }
}

/// A blocked event stays in its place, with its error, over a take-over; the relay is told when an operator lets it go.
pub async fn a_blocked_event_stays_until_an_operator_lets_it_go(harness: &dyn StoreHarness) {
    let inserted = harness.insert(vec![event("a", 1), event("a", 2)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait = change(&events[0], 1, Change::Retry { delay: DELAY });
    store.write_back(&ownership, &[wait]).await.expect("write_back failed");
    let block = WriteBack { crashes: 3, ..change(&events[0], 2, Change::Block) };
    for _ in 0..2 {
        let statuses = store.write_back(&ownership, std::slice::from_ref(&block)).await.expect("write_back failed");
        assert_eq!(statuses, [WriteBackStatus::Done]);
        let (id, kind, error) = (block.id, block.kind.to_owned(), block.error.clone());
        let stored = StoredRetry { id, attempts: 2, crashes: 3, blocked: true, kind, error };
        assert_eq!(harness.retries().await, [stored]);
    }
    assert_eq!(harness.dead_letters().await, []);

    harness.end_leases(ROUTE).await;
    let second = harness.relay().await;
    let ownership = super::own(&*second).await;
    let again = read_all(&mut *open(&*second, &ownership).await).await;
    assert_eq!(identities(&again), inserted, "it is read, so that its aggregate waits");
    let told = again[0].retrying.expect("it is blocked");
    assert_eq!((told.attempts, told.crashes, told.blocked), (2, 3, true));
    let RetryState::Waiting(told) = state(&*second, &events[0]).await else { panic!("it is blocked") };
    assert!(told.blocked);
    harness.unblock(block.id).await;
    let free = Retrying { attempts: 0, crashes: 0, blocked: false, due_in: Duration::ZERO };
    assert_eq!(state(&*second, &events[0]).await, RetryState::Waiting(free));
    settle(&*second, &again[..1]).await;
    assert_eq!(harness.retries().await, []);
}

/// A dead letter leaves `events` and `retries` and keeps its payload, attempts and reason; done again, it is gone.
pub async fn a_dead_letter_is_moved_with_its_reason(harness: &dyn StoreHarness) {
    let inserted = harness.insert(vec![event("a", 7), event("a", 8)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait = change(&events[0], 1, Change::Retry { delay: DELAY });
    store.write_back(&ownership, &[wait]).await.expect("write_back failed");
    let dead = change(&events[0], 2, Change::Dead);
    for expected in [WriteBackStatus::Done, WriteBackStatus::Gone] {
        let statuses = store.write_back(&ownership, std::slice::from_ref(&dead)).await.expect("write_back failed");
        assert_eq!(statuses, [expected]);
        let letters = harness.dead_letters().await;
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].event_id, inserted[0]);
        assert_eq!((letters[0].attempts, &*letters[0].kind, &letters[0].reason), (2, "failed", &dead.error));
        assert_eq!(letters[0].payload, Payload::raw_json("{\"number\":7}"));
        assert_eq!(harness.retries().await, []);
        assert_eq!(harness.remaining().await.len(), 1);
    }
    assert_eq!(state(&*store, &events[0]).await, RetryState::Gone);
}

/// An event that somebody deleted meanwhile is reported gone, and its retry row does not stay for ever.
pub async fn a_change_of_what_is_gone_removes_the_left_over_retry_row(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("b", 1)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let wait: Vec<_> = events.iter().map(|event| change(event, 1, Change::Retry { delay: DELAY })).collect();
    store.write_back(&ownership, &wait).await.expect("write_back failed");
    for gone in &events {
        harness.delete_event(gone.envelope.id).await;
    }
    let changes = [change(&events[0], 2, Change::Retry { delay: DELAY }), change(&events[1], 2, Change::Dead)];
    let statuses = store.write_back(&ownership, &changes).await.expect("write_back failed");
    assert_eq!(statuses, [WriteBackStatus::Gone; 2]);
    assert_eq!(harness.retries().await, []);
    assert_eq!(harness.dead_letters().await, []);
}

/// A change for another event under the same id touches nothing of the event that is there.
pub async fn a_change_is_by_id_and_identity(harness: &dyn StoreHarness) {
    harness.insert(vec![event("a", 1), event("b", 1)]).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    let changes = [
        WriteBack { event_id: stranger(), ..change(&events[0], 1, Change::Dead) },
        WriteBack { event_id: stranger(), ..change(&events[1], 1, Change::Retry { delay: DELAY }) },
    ];
    let statuses = store.write_back(&ownership, &changes).await.expect("write_back failed");
    assert_eq!(statuses, [WriteBackStatus::Gone; 2]);
    assert_eq!(harness.remaining().await.len(), 2);
    assert_eq!(harness.retries().await, []);
    assert_eq!(harness.dead_letters().await, []);
}

/// A large mixed write-back has one status for each change, in the order of the changes.
pub async fn many_changes_have_one_status_each(harness: &dyn StoreHarness) {
    const EVENTS: usize = 300;
    harness.insert((0..EVENTS).map(|number| event(&number.to_string(), number)).collect()).await;
    let (store, ownership, mut lane) = reader(harness).await;
    let events = read_all(&mut *lane).await;
    // Not in id order, and every third event is gone.
    let mut changes = Vec::new();
    let mut expected = Vec::new();
    for (number, event) in events.iter().enumerate().rev() {
        let (what, status) = match number % 3 {
            0 => (Change::Retry { delay: DELAY }, WriteBackStatus::Done),
            1 => (Change::Dead, WriteBackStatus::Done),
            _ => (Change::Dead, WriteBackStatus::Gone),
        };
        changes.push(change(event, 1, what));
        expected.push(status);
    }
    let gone: Vec<_> = events.iter().skip(2).step_by(3).cloned().collect();
    settle(&*store, &gone).await;
    assert_eq!(store.write_back(&ownership, &changes).await.expect("write_back failed"), expected);
    assert_eq!(harness.remaining().await.len(), EVENTS / 3);
    assert_eq!(harness.retries().await.len(), EVENTS / 3);
    assert_eq!(harness.dead_letters().await.len(), EVENTS / 3);
}
