//! What a route says about itself.

use std::sync::Arc;

use outbox_core::StoreErrorKind;
use outbox_relay::{Route, RouteConfig};
use outbox_testkit::memory::{Call, Fault, MemoryPublisher, MemoryStore};

use crate::rig::{SECOND, config, elapse, insert, run, settled};

#[tokio::test(start_paused = true)]
async fn not_ready_until_both_sides_have_answered_and_whenever_one_is_away() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    store.set_down(StoreErrorKind::Unavailable);
    publisher.set_down();
    let running = run(config(), &store, &publisher);
    assert_eq!(running.health.status().not_ready().as_deref(), Some("database: not reached yet"));
    let not_ready = |reason: &'static str| {
        move |status: &outbox_relay::RouteStatus| status.not_ready().is_some_and(|text| text.contains(reason))
    };
    running.status(not_ready("database: refused by the test")).await;
    store.set_up();
    running.status(not_ready("destination: ")).await;
    running.status(not_ready("the destination is down")).await;
    publisher.set_up();
    running.status(|status| status.not_ready().is_none()).await;
    // An idle route notices the database's absence by itself; the broker's when it sends.
    store.set_down(StoreErrorKind::Unavailable);
    running.status(not_ready("database: ")).await;
    store.set_up();
    running.status(|status| status.not_ready().is_none()).await;
    publisher.set_down();
    insert(&store, ["a"]);
    running.status(not_ready("the destination is down")).await;
    publisher.set_up();
    settled(&store).await;
    running.status(|status| status.not_ready().is_none()).await;
    let health = running.health.clone();
    running.stop().await;
    assert_eq!(health.status().not_ready().as_deref(), Some("the route has ended"));
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_ready() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new());
    let owner = run(config(), &store, &publisher);
    owner.status(|status| status.owner).await;
    // What it should give back it can't.
    (0..1_000).for_each(|_| store.script(Call::GiveBack, Fault::Refuse(StoreErrorKind::Unavailable)));
    let standby = run(config(), &store.another_relay(), &publisher);
    standby.status(|status| status.not_ready().is_none()).await;
    elapse(30 * SECOND).await;
    let status = standby.health.status();
    assert!(!status.owner && status.not_ready().is_none());
    owner.stop().await;
    standby.status(|status| status.owner).await;
    standby.stop().await;
}

#[tokio::test]
async fn a_bad_config_is_refused_with_everything_that_is_wrong() {
    let mut config = RouteConfig::new("");
    (config.window, config.lease) = (0, SECOND);
    let refused = Route::new(config, Arc::new(MemoryStore::new()), Arc::new(MemoryPublisher::new()));
    let fields: Vec<_> = refused.unwrap_err().into_iter().map(|error| error.field).collect();
    assert_eq!(fields, ["name", "window", "lease"]);
}
