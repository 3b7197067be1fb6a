//! Several routes in one relay: which event goes where, and that one destination's trouble is nobody else's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outbox_core::{ErrorKind, NewEvent, Payload, PublishError, Publisher};
use outbox_relay::{Filter, Relay, RelayHealth, RouteConfig, RunError};
use outbox_testkit::memory::{Call, Delivered, Fault, Hold, MemoryPublisher, MemoryStore, Scripted};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rig::{MILLI, SECOND, elapse};

fn of(aggregate_type: &str, aggregate_id: impl ToString, event_type: &str) -> NewEvent {
    NewEvent::new(aggregate_type, aggregate_id.to_string(), event_type, Payload::raw_json("{}"))
}

fn config(name: &str, aggregate_types: &[&str]) -> RouteConfig {
    let filter = Filter::default().aggregate_types(aggregate_types.iter().copied()).expect("patterns");
    let mut config = RouteConfig::new(name).with_filter(filter);
    config.full_sweep_interval = 24 * 3600 * SECOND;
    config
}

fn to(publisher: &Arc<MemoryPublisher>) -> Arc<dyn Publisher> {
    Arc::<MemoryPublisher>::clone(publisher)
}

struct Running {
    health: RelayHealth,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

fn run(store: &MemoryStore, routes: Vec<(RouteConfig, Arc<dyn Publisher>)>) -> Running {
    let mut relay = Relay::builder(Arc::new(store.clone()));
    for (config, publisher) in routes {
        relay = relay.route(config, publisher);
    }
    let relay = relay.build().expect("valid configs");
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    Running { health, shutdown: shutdown.clone(), task: tokio::spawn(relay.run(shutdown)) }
}

impl Running {
    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.expect("run does not panic").expect("run ends well");
    }
}

fn assert_all_of(publisher: &MemoryPublisher, aggregate_type: &str, events: usize) {
    publisher.view(|view| {
        let kinds: BTreeSet<_> = view.delivered().iter().map(|event| event.aggregate_type.as_str()).collect();
        assert_eq!(kinds, BTreeSet::from([aggregate_type]));
        assert_eq!((view.delivered().len(), view.copies(), view.inversions().len()), (events, 0, 0));
    });
}

#[tokio::test(start_paused = true)]
async fn each_event_goes_to_its_route() {
    let store = MemoryStore::new();
    let (carts, rest) = (Arc::new(MemoryPublisher::new()), Arc::new(MemoryPublisher::new()));
    for number in 0..400 {
        store.insert(&of(["cart", "order"][number % 2], number % 7, "changed"));
    }
    let running = run(&store, vec![(config("carts", &["cart"]), to(&carts)), (config("rest", &[]), to(&rest))]);
    store.wait_until(|view| view.pending() == 0).await;
    assert_all_of(&carts, "cart", 200);
    assert_all_of(&rest, "order", 200);
    assert_eq!(running.health.unrouted(), None);
    running.stop().await;
    assert_eq!((store.view(|view| view.owner("carts")), store.view(|view| view.owner("rest"))), (None, None));
}

/// A destination that is down, one that throttles and one that is misconfigured, each for an hour: the fourth is as
/// fast as alone, and nothing that is held in memory grows.
#[tokio::test(start_paused = true)]
async fn a_route_in_trouble_for_an_hour_costs_the_others_nothing() {
    let store = MemoryStore::new();
    let refusing = |kind: ErrorKind| {
        Arc::new(MemoryPublisher::new().with_script(move |event, _| {
            let error = PublishError::new(kind, "no");
            Scripted::Fail(if kind == ErrorKind::Misconfigured {
                error.with_topic(&event.aggregate_type)
            } else {
                error
            })
        }))
    };
    let kinds = [("down", ErrorKind::Unavailable), ("slow", ErrorKind::Throttled), ("lost", ErrorKind::Misconfigured)];
    let well = Arc::new(MemoryPublisher::new());
    let mut routes: Vec<(RouteConfig, Arc<dyn Publisher>)> = Vec::new();
    for (name, kind) in kinds {
        let mut config = config(name, &[name]);
        (config.queue_events, config.window, config.batch_size) = (100, 50, 50);
        routes.push((config, refusing(kind)));
    }
    routes.push((config("well", &["well"]), to(&well)));
    for number in 0..4_000 {
        store.insert(&of(["down", "slow", "lost", "well"][number % 4], number % 600, "changed"));
    }
    let running = run(&store, routes);
    let begun = Instant::now();
    well.wait_for(1_000).await;
    assert!(begun.elapsed() < SECOND, "the well route took {:?}", begun.elapsed());
    for part in 1..=6 {
        elapse(600 * SECOND).await;
        let (inserted, before) = (Instant::now(), 1_000 + (part - 1) * 100);
        for number in 0..400 {
            store.insert(&of(["down", "slow", "lost", "well"][number % 4], number % 600, "changed"));
        }
        well.wait_for(before + 100).await;
        assert!(inserted.elapsed() < 200 * MILLI, "in part {part} it took {:?}", inserted.elapsed());
        for route in &running.health.routes()[..3] {
            let gauges = route.gauges();
            let held = gauges.in_flight.load(Relaxed) + gauges.waiting.load(Relaxed);
            assert!(held <= 151, "{} holds {held} events", route.name());
            assert!(gauges.spilled_aggregates.load(Relaxed) <= 600, "{}", route.name());
            assert!(route.status().not_ready().is_some(), "{} is in trouble and says nothing", route.name());
        }
        assert_eq!(running.health.routes()[3].status().not_ready(), None);
    }
    assert_all_of(&well, "well", 1_600);
    store.view(|view| assert_eq!((view.retries().len(), view.dead_letters().len(), view.pending()), (0, 0, 4_800)));
    running.stop().await;
}

/// A route whose publisher never answers waits by itself.
#[tokio::test(start_paused = true)]
async fn a_route_whose_publisher_hangs_holds_nobody_up() {
    let store = MemoryStore::new();
    let hold = Hold::new();
    let held = hold.clone();
    let hanging = Arc::new(MemoryPublisher::new().with_script(move |_, _| Scripted::hold(&held, Scripted::Confirm)));
    let well = Arc::new(MemoryPublisher::new());
    let running = run(&store, vec![(config("hangs", &["a"]), hanging), (config("well", &[]), to(&well))]);
    for number in 0..2_000 {
        store.insert(&of(["a", "b"][number % 2], number, "changed"));
    }
    well.wait_for(1_000).await;
    assert!(running.health.routes()[0].gauges().in_flight.load(Relaxed) > 0);
    hold.release();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_no_route_takes_waits_and_is_told_of() {
    let store = MemoryStore::new();
    let orders = Arc::new(MemoryPublisher::new());
    let running = run(&store, vec![(config("orders", &["order"]), to(&orders))]);
    let first = store.insert(&of("stock", 1, "counted"));
    let second = store.insert(&of("stock", 2, "counted"));
    for number in 0..50 {
        store.insert(&of("order", number, "changed"));
    }
    orders.wait_for(50).await;
    elapse(20 * SECOND).await;
    let told = || running.health.unrouted().map(|event| (event.id, event.event_id, event.event_type));
    let counted = "counted".to_owned();
    assert_eq!(told(), Some((first.id, first.event_id, counted.clone())));
    assert_eq!(running.health.routes()[0].status().not_ready(), None, "it is no reason to be not ready");
    let (reads, lanes) = (store.calls(Call::Read), store.calls(Call::OpenLane));
    elapse(100 * SECOND).await;
    let polls = 100_000 / 45;
    assert!(store.calls(Call::Read) - reads < polls + 30, "the search is slow");
    assert_eq!(store.calls(Call::OpenLane), lanes);
    // Removed, it makes room for the next one; at last there is none.
    store.delete_event(first.id);
    elapse(20 * SECOND).await;
    assert_eq!(told(), Some((second.id, second.event_id, counted)));
    store.delete_event(second.id);
    elapse(20 * SECOND).await;
    assert_eq!(told(), None);
    let late = store.insert(&of("stock", 3, "counted"));
    elapse(20 * SECOND).await;
    assert_eq!(told().map(|(id, ..)| id), Some(late.id));
    assert_eq!(store.view(|view| view.ids()), [late.id], "never dropped");
    running.stop().await;
}

/// The search begins anew after a restart of the database and goes on through its outages.
#[tokio::test(start_paused = true)]
async fn the_search_for_unrouted_events_survives_the_database() {
    let store = MemoryStore::new();
    let orders = Arc::new(MemoryPublisher::new());
    let running = run(&store, vec![(config("orders", &["order"]), orders)]);
    let first = store.insert(&of("stock", 1, "counted"));
    elapse(20 * SECOND).await;
    store.set_down(outbox_core::StoreErrorKind::Unavailable);
    elapse(5 * SECOND).await;
    store.set_up();
    elapse(30 * SECOND).await;
    assert_eq!(running.health.unrouted().map(|event| event.id), Some(first.id));
    store.restart();
    elapse(30 * SECOND).await;
    assert_eq!(running.health.unrouted().map(|event| event.id), Some(first.id));
    running.stop().await;
}

/// A rolling change of routes: the new relay stands by, ready, until the last of the old ones has gone; nothing is sent
/// twice, and nothing is left.
#[tokio::test(start_paused = true)]
async fn changed_routes_wait_for_the_old_ones() {
    let store = MemoryStore::new();
    let old: [_; 2] = std::array::from_fn(|_| Arc::new(MemoryPublisher::new()));
    let new: [_; 2] = std::array::from_fn(|_| Arc::new(MemoryPublisher::new()));
    let relay = |store: &MemoryStore, first: &[&str], publishers: &[Arc<MemoryPublisher>; 2]| {
        let [first_to, second_to] = publishers.clone();
        run(store, vec![(config("first", first), first_to), (config("rest", &[]), second_to)])
    };
    let before = relay(&store, &["cart"], &old);
    let wave =
        |from: usize| (from..from + 300).map(|n| store.insert(&of(["cart", "order", "bag"][n % 3], n % 40, "changed")));
    assert_eq!(wave(0).count(), 300);
    store.wait_until(|view| view.pending() == 0).await;
    let after = relay(&store.another_relay(), &["cart", "bag"], &new);
    elapse(30 * SECOND).await;
    for route in after.health.routes() {
        let status = route.status();
        assert!(!status.owner && status.not_ready().is_none(), "{status:?}");
        let difference = status.standby.expect("it says what it waits for");
        assert_eq!(
            difference,
            r#"`first` matches aggregate_type = ["cart", "bag"] instead of aggregate_type = ["cart"]"#
        );
    }
    assert_eq!(wave(300).count(), 300);
    store.wait_until(|view| view.pending() == 0).await;
    assert_eq!(new.iter().map(|publisher| publisher.view(|view| view.delivered().len())).sum::<usize>(), 0);
    before.stop().await;
    assert_eq!(wave(600).count(), 300);
    store.wait_until(|view| view.pending() == 0).await;
    assert!(after.health.routes().iter().all(|route| route.status().owner && route.status().standby.is_none()));
    let all = |publishers: &[Arc<MemoryPublisher>; 2]| {
        let counts = publishers.iter().map(|publisher| publisher.view(|view| (view.delivered().len(), view.copies())));
        counts.collect::<Vec<_>>()
    };
    assert_eq!((all(&old), all(&new)), (vec![(200, 0), (400, 0)], vec![(200, 0), (100, 0)]));
    let is_bag = |event: &Delivered| event.aggregate_type == "bag";
    assert_eq!(new[0].view(|view| view.delivered().iter().filter(|event| is_bag(event)).count()), 100);
    after.stop().await;
}

/// Never alive and idle: a dead core task of one route ends all, the others in order.
#[tokio::test(start_paused = true)]
async fn a_dead_route_ends_the_relay_with_an_error() {
    let store = MemoryStore::new();
    let (first, second) = (Arc::new(MemoryPublisher::new()), Arc::new(MemoryPublisher::new()));
    // The first acquisition is that of the first route.
    store.script(Call::Acquire, Fault::Panic);
    let running = run(&store, vec![(config("first", &["a"]), first), (config("second", &[]), to(&second))]);
    let ended = running.task.await.expect("the panic is caught");
    let error = ended.expect_err("a core task died").to_string();
    assert!(error.starts_with("route `first` ended: it panicked"), "{error}");
    assert!(running.health.routes()[1].status().ended && second.view(|view| view.closed()));
    assert!(!running.shutdown.is_cancelled(), "the caller's token is the caller's");
    assert_eq!(store.view(|view| view.owner("second")), None, "given back");
}

#[test]
fn what_is_wrong_is_told_for_all_routes_at_once() {
    let publisher = || Arc::new(MemoryPublisher::new());
    let mut zero = config("a", &["x"]);
    (zero.window, zero.batch_size) = (0, 0);
    let build = |configs: Vec<RouteConfig>| {
        let mut relay = Relay::builder(Arc::new(MemoryStore::new()));
        for config in configs {
            relay = relay.route(config, publisher());
        }
        relay.build().map(|_| ()).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let all = build(vec![zero, config("b", &[]), config("b", &["y"])]).unwrap_err();
    let expected = [
        "route[0].window: must be at least 1, got 0",
        "route[0].batch_size: must be at least 1, got 0",
        "route[2].name: `b` is the name of an earlier route",
        "route[2].match: can never get an event: `b` takes everything that it matches",
    ];
    assert_eq!(all, expected);
    assert_eq!(build(Vec::new()).unwrap_err(), ["route: there is no route"]);
}
