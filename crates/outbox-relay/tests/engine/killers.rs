//! Events that kill the process, as by an abort: the run ends at once and gives nothing back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{ErrorKind, StoreErrorKind};
use outbox_relay::{OnDead, Ordering, RouteConfig};
use outbox_testkit::memory::{Call, Fault, Hold, MemoryPublisher, MemoryStore, Scripted, StoreView};
use tokio::sync::watch;

use crate::rig::{ROUTE, SECOND, assert_nothing_charged, config, elapse, insert, run, settled};

/// A publisher that kills the process over events of this aggregate: the killer is held for ever, and the test told.
fn killing(aggregate: &'static str) -> (Arc<MemoryPublisher>, watch::Receiver<usize>) {
    let (died, deaths) = watch::channel(0);
    let publisher = MemoryPublisher::new().with_script(move |event, _| {
        if event.aggregate_id == aggregate {
            died.send_modify(|deaths| *deaths += 1);
            return Scripted::hold(&Hold::new(), Scripted::Confirm);
        }
        Scripted::Confirm
    });
    (Arc::new(publisher), deaths)
}

/// Starts runs as a supervisor would, until one outlives what it took over. How often the process died.
async fn supervise(
    config: &RouteConfig,
    store: &MemoryStore,
    publisher: &Arc<MemoryPublisher>,
    deaths: &mut watch::Receiver<usize>,
    is_over: impl Fn(&StoreView<'_>) -> bool,
) -> usize {
    for died in 0..20 {
        let running = run(config.clone(), store, publisher);
        tokio::select! {
            changed = deaths.changed() => changed.expect("the publisher is there"),
            () = store.wait_until(&is_over) => {
                running.stop().await;
                return died;
            }
        }
        running.kill().await;
        // Nobody takes over before the lease has ended.
        store.end_leases(ROUTE);
        elapse(SECOND).await;
    }
    panic!("20 deaths: {:?}", store.view(|view| view.retries()));
}

fn short_lease() -> RouteConfig {
    let mut config = config();
    config.lease = 3 * SECOND;
    config
}

#[tokio::test(start_paused = true)]
async fn a_killing_event_becomes_a_dead_letter_and_its_neighbours_go_on() {
    for ordering in [Ordering::Aggregate, Ordering::None] {
        let store = MemoryStore::new();
        let (publisher, mut deaths) = killing("killer");
        insert(&store, ["a", "b", "killer", "c", "a"]);
        let mut config = short_lease();
        config.ordering = ordering;
        let over = |view: &StoreView<'_>| view.pending() == 0;
        let died = supervise(&config, &store, &publisher, &mut deaths, over).await;
        assert!((4..=5).contains(&died), "{died} deaths");
        store.view(|view| {
            let [dead] = view.dead_letters() else { panic!("{:?}", view.dead_letters()) };
            assert_eq!((dead.envelope.id, dead.attempts, dead.kind.as_str()), (3, 0, "crash"));
            assert!(dead.reason.contains("3 relays in a row"), "{}", dead.reason);
            assert_eq!(view.retries(), [], "nobody else is charged");
            assert_eq!(view.deaths(ROUTE), 0);
        });
        publisher.view(|view| assert!(view.inversions().is_empty()));
        let mut arrived = publisher.delivered_ids();
        arrived.sort_unstable();
        arrived.dedup();
        assert_eq!(arrived, [1, 2, 4, 5]);
    }
}

// The killer waits for its turn while others, also those behind it in the table, are delivered.
#[tokio::test(start_paused = true)]
async fn neighbours_are_delivered_before_the_killer_is_convicted() {
    let store = MemoryStore::new();
    let (publisher, mut deaths) = killing("killer");
    insert(&store, ["killer", "killer"]);
    let neighbours = insert(&store, (0..50).map(|n| n % 10));
    let config = short_lease();
    let all_but_the_killers = |view: &StoreView<'_>| view.pending() == 2;
    let died = supervise(&config, &store, &publisher, &mut deaths, all_but_the_killers).await;
    assert!(died <= 3, "{died} deaths before the neighbours went out");
    store.view(|view| {
        assert_eq!(view.retries().iter().map(|row| row.id).collect::<Vec<_>>(), [1], "the one behind it never went");
        assert_eq!(view.dead_letters(), []);
    });
    let mut times = BTreeMap::new();
    publisher.view(|view| {
        assert_eq!(view.inversions(), []);
        neighbours.iter().for_each(|event| *times.entry(view.times(event.event_id)).or_insert(0) += 1);
    });
    assert!(times.keys().all(|times| (1..=4).contains(times)), "{times:?}");
    // A second killer behind the first: each is convicted by itself.
    let over = |view: &StoreView<'_>| view.pending() == 0;
    let (publisher, mut deaths) = killing("killer");
    supervise(&config, &store, &publisher, &mut deaths, over).await;
    let dead = store.view(|view| view.dead_letters().iter().map(|dead| dead.envelope.id).collect::<Vec<_>>());
    assert_eq!(dead, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn with_block_a_killing_event_stays_and_is_not_sent() {
    let store = MemoryStore::new();
    let (publisher, mut deaths) = killing("killer");
    insert(&store, ["killer", "a", "killer"]);
    let mut config = short_lease();
    config.on_dead = OnDead::Block;
    let blocked = |view: &StoreView<'_>| view.retry(1).is_some_and(|row| row.blocked) && view.pending() == 2;
    let died = supervise(&config, &store, &publisher, &mut deaths, blocked).await;
    assert!((4..=5).contains(&died), "{died} deaths");
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config, &store, &publisher);
    elapse(60 * SECOND).await;
    assert_eq!(publisher.view(|view| view.publishes()), 0, "neither a blocked event is sent nor one behind it");
    assert!(store.unblock(1));
    settled(&store).await;
    assert_eq!(publisher.delivered_ids(), [1, 3]);
    running.stop().await;
    assert_nothing_charged(&store);
}

/// A run that is careful from its start, with its events at hand.
fn twice_dead(config: &RouteConfig, store: &MemoryStore) -> impl Future<Output = ()> {
    let (config, store) = (config.clone(), store.clone());
    async move {
        let publisher =
            Arc::new(MemoryPublisher::new().with_script(|_, _| Scripted::hold(&Hold::new(), Scripted::Confirm)));
        for deaths in 1..=2 {
            let running = run(config.clone(), &store, &publisher);
            running.status(|status| status.owner).await;
            running.kill().await;
            store.end_leases(ROUTE);
            assert_eq!(store.view(|view| view.deaths(ROUTE)), deaths - 1, "counted by who takes over");
        }
    }
}

// kill -9 by an operator, again and again: only what was out pays, and a confirm takes it back.
#[tokio::test(start_paused = true)]
async fn an_ordinary_kill_charges_what_is_out_and_a_confirm_takes_it_back() {
    let store = MemoryStore::new();
    insert(&store, 0..20);
    let config = short_lease();
    twice_dead(&config, &store).await;
    let hold = Hold::new();
    let held = hold.clone();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |event, nth| match (event.id, nth) {
        (5, 1) => Scripted::hold(&held, Scripted::Confirm),
        _ => Scripted::Confirm,
    }));
    let running = run(config.clone(), &store, &publisher);
    hold.reached().await;
    store.view(|view| {
        let charged: Vec<_> = view.retries().iter().map(|row| (row.id, row.attempts, row.crashes)).collect();
        assert_eq!(charged, [(5, 0, 1)], "the one that is out, before it is out");
    });
    elapse(2 * SECOND).await;
    assert_eq!(publisher.delivered_ids(), [1, 2, 3, 4], "one at a time");
    running.kill().await;
    store.end_leases(ROUTE);
    let running = run(config, &store, &publisher);
    settled(&store).await;
    assert_eq!(publisher.delivered_ids().last(), Some(&5), "it went after the others");
    assert_nothing_charged(&store);
    store.wait_until(|view| view.deaths(ROUTE) == 0).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn care_ends_by_itself_after_a_window() {
    let store = MemoryStore::new();
    insert(&store, 0..30);
    let mut config = short_lease();
    config.window = 5;
    twice_dead(&config, &store).await;
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config, &store, &publisher);
    settled(&store).await;
    let publishes = publisher.view(|view| view.publishes());
    assert!((10..=20).contains(&publishes), "five alone, then as many as the window takes: {publishes}");
    assert_eq!(store.calls(Call::WriteBack), 5, "a charge each");
    store.wait_until(|view| view.deaths(ROUTE) == 0).await;
    running.stop().await;
    assert_nothing_charged(&store);
}

// A relay that never crashed twice pays nothing: no charge, no write but one that forgets the death.
#[tokio::test(start_paused = true)]
async fn one_death_changes_nothing() {
    let store = MemoryStore::new();
    insert(&store, 0..30);
    let publisher = Arc::new(MemoryPublisher::new());
    let config = short_lease();
    let running = run(config.clone(), &store, &publisher);
    running.status(|status| status.owner).await;
    running.kill().await;
    store.end_leases(ROUTE);
    let running = run(config, &store, &publisher);
    settled(&store).await;
    store.wait_until(|view| view.calls(Call::ForgetDeaths) == 1).await;
    assert_eq!((store.calls(Call::WriteBack), store.view(|view| view.deaths(ROUTE))), (0, 0));
    running.stop().await;
}

// Nothing is sent while the broker is away, so nothing may be charged for longer than it takes to find out.
#[tokio::test(start_paused = true)]
async fn an_unavailable_broker_charges_nothing() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Throttled, ErrorKind::Unconfirmed, ErrorKind::Misconfigured] {
        let store = MemoryStore::new();
        insert(&store, ["a", "a", "b"]);
        let config = short_lease();
        twice_dead(&config, &store).await;
        let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, nth| match nth {
            1..=4 => Scripted::fail(kind),
            _ => Scripted::Confirm,
        }));
        let running = run(config.clone(), &store, &publisher);
        publisher.wait_until(|view| view.publishes() >= 3).await;
        store.wait_until(|view| view.retries().is_empty()).await;
        running.stop().await;
        assert_nothing_charged(&store);
        let publisher = Arc::new(MemoryPublisher::new());
        let running = run(config, &store, &publisher);
        settled(&store).await;
        running.stop().await;
        assert_nothing_charged(&store);
        publisher.view(|view| assert_eq!(view.inversions(), [], "{kind:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_charged_attempt_takes_the_place_of_a_charged_crash() {
    let store = MemoryStore::new();
    insert(&store, ["a"]);
    let config = short_lease();
    twice_dead(&config, &store).await;
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, nth| match nth {
        1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    }));
    let running = run(config, &store, &publisher);
    store.wait_until(|view| view.retry(1).is_some_and(|row| (row.attempts, row.crashes) == (1, 0))).await;
    settled(&store).await;
    running.stop().await;
    assert_nothing_charged(&store);
}

// A deploy in the middle: the broker does not answer within the grace, and yet nobody is charged.
#[tokio::test(start_paused = true)]
async fn a_shutdown_takes_back_what_it_leaves_unanswered() {
    let store = MemoryStore::new();
    insert(&store, ["a", "b"]);
    let mut config = short_lease();
    config.shutdown_grace = 2 * SECOND;
    twice_dead(&config, &store).await;
    let hold = Hold::new();
    let held = hold.clone();
    let publisher = Arc::new(MemoryPublisher::new().with_script(move |_, _| Scripted::hold(&held, Scripted::Confirm)));
    let running = run(config, &store, &publisher);
    hold.reached().await;
    assert_eq!(store.view(|view| view.retries().len()), 1);
    running.stop().await;
    assert_nothing_charged(&store);
    assert_eq!(store.view(|view| view.deaths(ROUTE)), 0, "given back");
}

// The charge is fenced, its answer can be lost, and the database may refuse it.
#[tokio::test(start_paused = true)]
async fn a_charge_that_is_not_written_sends_nothing() {
    let store = MemoryStore::new();
    insert(&store, ["a", "b", "c"]);
    let config = short_lease();
    twice_dead(&config, &store).await;
    let hold = Hold::new();
    store.script(Call::WriteBack, Fault::Refuse(StoreErrorKind::Unavailable));
    store.script(Call::WriteBack, Fault::FailAfterWork(StoreErrorKind::Unavailable));
    store.script(Call::WriteBack, Fault::Refuse(StoreErrorKind::Failed));
    store.script(Call::WriteBack, Fault::HoldBefore(hold.clone()));
    let publisher = Arc::new(MemoryPublisher::new());
    let running = run(config.clone(), &store, &publisher);
    hold.reached().await;
    assert_eq!(publisher.view(|view| view.publishes()), 0);
    // Another relay takes over meanwhile.
    let second = store.another_relay();
    store.end_leases(ROUTE);
    let taking_over = run(config, &second, &publisher);
    taking_over.status(|status| status.owner).await;
    hold.release();
    running.status(|status| !status.owner).await;
    settled(&store).await;
    assert_eq!(publisher.view(|view| view.copies()), 0, "the fenced one sent nothing");
    assert_nothing_charged(&store);
    taking_over.stop().await;
    running.stop().await;
}

// The database is replaced in the middle: the relay gives the route back and joins anew, which is no death.
#[tokio::test(start_paused = true)]
async fn restarts_of_the_database_charge_nothing_and_end_care() {
    let store = MemoryStore::new();
    insert(&store, 0..40);
    let mut config = short_lease();
    config.window = 10;
    twice_dead(&config, &store).await;
    let publisher = Arc::new(MemoryPublisher::new().with_latency(Duration::from_millis(20)));
    let running = run(config, &store, &publisher);
    for so_far in [3, 6, 9] {
        publisher.wait_for(so_far).await;
        store.restart();
    }
    settled(&store).await;
    assert!((3..=10).contains(&store.calls(Call::WriteBack)), "{} charged", store.calls(Call::WriteBack));
    assert_nothing_charged(&store);
    assert_eq!(store.view(|view| view.deaths(ROUTE)), 0);
    publisher.view(|view| assert_eq!((view.inversions(), view.copies()), (vec![], 0)));
    running.stop().await;
}

// A suspect of cutting the connection is tried as one, also while the relay is careful.
#[tokio::test(start_paused = true)]
async fn a_suspect_is_convicted_also_while_the_relay_is_careful() {
    let store = MemoryStore::new();
    insert(&store, ["a", "b"]);
    let mut config = short_lease();
    (config.max_attempts, config.retry_max) = (3, SECOND);
    twice_dead(&config, &store).await;
    let publisher = Arc::new(MemoryPublisher::new().with_script(|event, _| match event.id {
        1 => Scripted::fail(ErrorKind::Unconfirmed),
        _ => Scripted::Confirm,
    }));
    let running = run(config, &store, &publisher);
    settled(&store).await;
    store.view(|view| {
        let dead: Vec<_> = view.dead_letters().iter().map(|dead| (dead.envelope.id, dead.attempts)).collect();
        assert_eq!(dead, [(1, 3)]);
        assert_eq!(view.retries(), []);
    });
    running.stop().await;
}

// One of two relays dies of it, is started again, and joins the other: the deaths go with the buckets.
#[tokio::test(start_paused = true)]
async fn among_relays_that_share_a_route_the_killer_is_found_too() {
    for first in ["a", "killer"] {
        let store = MemoryStore::new();
        let (one, two) = (store.clone(), store.another_relay());
        let ((publisher, mut deaths), (other, mut other_deaths)) = (killing("killer"), killing("killer"));
        let config = short_lease();
        insert(&store, [first]);
        let (mut running, mut beside) = (run(config.clone(), &one, &publisher), run(config.clone(), &two, &other));
        elapse(10 * SECOND).await;
        insert(&store, (0..40).map(|n| if n == 20 { "killer".to_owned() } else { (n % 8).to_string() }));
        let mut died = 0;
        loop {
            tokio::select! {
                changed = deaths.changed() => {
                    changed.expect("it is there");
                    running.kill().await;
                    elapse(SECOND).await;
                    running = run(config.clone(), &one, &publisher);
                }
                changed = other_deaths.changed() => {
                    changed.expect("it is there");
                    beside.kill().await;
                    elapse(SECOND).await;
                    beside = run(config.clone(), &two, &other);
                }
                () = store.wait_until(|view| view.pending() == 0) => break,
            }
            died += 1;
            assert!(died < 15, "{died} deaths");
        }
        let killers = if first == "killer" { 2 } else { 1 };
        assert!((4 * killers..=6 * killers).contains(&died), "{died} deaths of {killers} killers");
        store.view(|view| {
            let kinds: Vec<_> =
                view.dead_letters().iter().map(|dead| (dead.kind.as_str(), &*dead.envelope.aggregate_id)).collect();
            assert_eq!(kinds, vec![("crash", "killer"); killers]);
            assert_eq!(view.retries(), []);
        });
        for publisher in [&publisher, &other] {
            publisher.view(|view| assert_eq!(view.inversions(), []));
        }
        running.stop().await;
        beside.stop().await;
    }
}
