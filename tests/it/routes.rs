//! Several routes in one relay: a destination in trouble costs the others nothing, and routes are changed without a
//! copy or a loss.

use std::time::{Duration, Instant};

use outbox_testkit::proxy::{FaultProxy, Mode};

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Consumer, Queue, broker};
use crate::relay::{Relay, RelayConfig};

/// One event of each aggregate type in turn, all in the ledger.
const FILL: &str = "
    WITH made AS (
      INSERT INTO ledger (event_id, aggregate, version)
      SELECT gen_random_uuid(), (ARRAY['cart-', 'order-'])[1 + n % 2] || n % 50, n FROM generate_series(1, $1) AS n
      RETURNING *
    )
    INSERT INTO outbox.events (event_id, aggregate_type, aggregate_id, event_type, payload)
    SELECT event_id, split_part(aggregate, '-', 1), aggregate, 'changed', json_build_object('version', version)
      FROM made ORDER BY version";

async fn fill(db: &Database, events: i64) {
    sqlx::query(FILL).bind(events).execute(&mut db.connect().await).await.unwrap();
}

async fn left(db: &Database, aggregate_type: &str) -> i64 {
    db.number(&format!("SELECT count(*) FROM outbox.events WHERE aggregate_type = '{aggregate_type}'")).await
}

/// Carts to the first exchange, everything else to the second.
fn two_routes(config: RelayConfig, carts: (&str, &str), rest: (&str, &str)) -> RelayConfig {
    let config = config.with("route.0.name", "carts").with("route.0.match.aggregate_type", "cart");
    let config = config.with("route.0.rabbitmq.url", carts.0).with("route.0.rabbitmq.exchange", carts.1);
    let config = config.with("route.1.name", "rest");
    config.with("route.1.rabbitmq.url", rest.0).with("route.1.rabbitmq.exchange", rest.1)
}

/// What `/readyz` tells of one route: whether it is ready, and as what.
async fn route(relay: &Relay, place: usize) -> (bool, bool, String) {
    let (_, body) = relay.probe("/readyz").await;
    let route = &body["routes"][place];
    let text = |name: &str| route[name].as_str().unwrap_or_default().to_owned();
    let why = format!("{}{}", text("reason"), text("standby"));
    (route["ready"] == true, route["owner"] == true, why)
}

async fn wait_owner(relay: &Relay, place: usize) {
    until(seconds(20), "the relay owns the route", || async { route(relay, place).await.1 }).await;
}

fn both(consumers: [&Consumer; 2]) -> Vec<outbox_core::EventId> {
    consumers.iter().flat_map(|consumer| consumer.events()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_of_one_route_leaves_the_other_at_full_speed() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("routes_missing").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(120), async {
        let (missing, there) = (Queue::bare(&url).await, Queue::declared(&url).await);
        let consumer = there.consume().await;
        load::prepare(&db).await;
        fill(&db, 20_000).await;
        let began = Instant::now();
        let relay = two_routes(config, (&url, &missing.name), (&url, &there.name)).start().await;
        consumer.wait_for(10_000, seconds(60)).await;
        println!("10 000 events beside a missing exchange in {:?}", began.elapsed());
        until(seconds(10), "the other route is empty", || async { left(&db, "order").await == 0 }).await;
        assert_eq!(
            (left(&db, "cart").await, db.count("retries").await, db.count("dead_letters").await),
            (10_000, 0, 0)
        );
        until(seconds(10), "the relay tells what is missing", || async {
            let (ready, owner, reason) = route(&relay, 0).await;
            !ready && owner && reason.contains(&missing.name)
        })
        .await;
        assert_eq!(route(&relay, 1).await, (true, true, String::new()));

        missing.declare_exchange().await;
        missing.declare_queue(&[]).await;
        let late = missing.consume().await;
        late.wait_for(10_000, seconds(60)).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(both([&late, &consumer]));
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
        let wrong = |consumer: &Consumer, kind: &str| {
            consumer.messages().iter().filter(|message| message.headers["aggregate-type"] != kind).count()
        };
        assert_eq!((wrong(&late, "cart"), wrong(&consumer, "order")), (0, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_broker_of_one_route_leaves_the_other_at_full_speed() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("routes_silent").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(150), async {
        let (silent, well) = (Queue::declared(&url).await, Queue::declared(&url).await);
        let (silent_consumer, consumer) = (silent.consume().await, well.consume().await);
        let (_, rest) = url.split_once('@').unwrap();
        let proxy = FaultProxy::start(rest.split('/').next().unwrap()).await.unwrap();
        load::prepare(&db).await;
        let config = two_routes(config, (&proxy.url_for(&url), &silent.name), (&url, &well.name));
        let relay = config.with("relay.window", "500").start().await;
        wait_owner(&relay, 0).await;
        proxy.set_mode(Mode::Blackhole);
        fill(&db, 20_000).await;
        let began = Instant::now();
        consumer.wait_for(10_000, seconds(60)).await;
        println!("10 000 events beside a silent broker in {:?}", began.elapsed());
        until(seconds(10), "the other route is empty", || async { left(&db, "order").await == 0 }).await;
        // Several time-outs and probes later nothing has changed.
        until(seconds(60), "the silent one is noticed", || async { !route(&relay, 0).await.0 }).await;
        assert_eq!(route(&relay, 1).await, (true, true, String::new()));
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        proxy.set_mode(Mode::Pass);
        until(seconds(60), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(relay.stop().await, Some(0));
        let history = load::history(&db).await;
        let all = || both([&silent_consumer, &consumer]);
        until(seconds(10), "everything was consumed", || async { history.judge(all()).lost == 0 }).await;
        let verdict = history.judge(all());
        assert!(verdict.holds() && verdict.duplicates <= 500, "{verdict}");
        assert_eq!(consumer.copies(), 0, "what went well was sent once");
    })
    .await;
}

/// A rolling change of routes under load: the relay with the new ones stands by, ready, until the old one has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn routes_are_changed_without_a_copy_or_a_loss() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("routes_changed").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(150), async {
        let (first, second) = (Queue::declared(&url).await, Queue::declared(&url).await);
        let (first_consumer, second_consumer) = (first.consume().await, second.consume().await);
        load::prepare(&db).await;
        // The aggregates of the load are orders: to the second exchange before, to the first one after.
        let old = two_routes(config, (&url, &first.name), (&url, &second.name));
        let new = old.clone().with("route.0.match.aggregate_type", "cart,order");
        let before = old.start().await;
        wait_owner(&before, 0).await;
        wait_owner(&before, 1).await;
        let load = Load { writers: 4, ..Load::ordinary(4_000) };
        let writers = load::spawn(&db.url(), &load);
        second_consumer.wait_for(500, seconds(30)).await;
        let after = new.start().await;
        until(seconds(10), "the new relay stands by", || async {
            let (ready, owner, why) = route(&after, 0).await;
            ready && !owner && why.contains(r#"`carts` matches aggregate_type = ["cart", "order"] instead of"#)
        })
        .await;
        let told = || after.logged("relays with other routes are at work");
        until(seconds(10), "each route tells of it", || async { told() >= 2 }).await;
        second_consumer.wait_for(second_consumer.count() + 500, seconds(30)).await;
        assert_eq!(first_consumer.count(), 0, "the old routes are in force");
        assert_eq!(told(), 2, "once for each route in a minute");
        assert_eq!(before.stop().await, Some(0));
        let stopped = Instant::now();
        wait_owner(&after, 0).await;
        wait_owner(&after, 1).await;
        let took = stopped.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        println!("the new routes are in force {took:?} after the stop of the old ones");
        load::finish(writers).await;
        until(seconds(30), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        assert_eq!(after.stop().await, Some(0));
        let history = load::history(&db).await;
        let all = || both([&second_consumer, &first_consumer]);
        until(seconds(10), "everything was consumed", || async { history.judge(all()).lost == 0 }).await;
        let verdict = history.judge(all());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
        assert!(first_consumer.count() > 500 && second_consumer.count() > 500, "both were in force for a while");
        assert_eq!(db.number("SELECT count(owner) FROM outbox.buckets").await, 0);
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
    })
    .await;
}

/// Events that no route takes wait, are told of once a minute, and go when a route takes them.
#[tokio::test(flavor = "multi_thread")]
async fn events_without_a_route_wait_for_one() {
    let Some(db) = Database::shared("routes_unrouted").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        load::prepare(&db).await;
        fill(&db, 1_000).await;
        let config = config.with("route.0.name", "carts").with("route.0.stdout", "{}");
        let relay = config.clone().with("route.0.match.aggregate_type", "cart").start().await;
        until(seconds(20), "the carts are gone", || async { left(&db, "cart").await == 0 }).await;
        until(seconds(20), "the first of the others is told of", || async {
            let (status, body) = relay.probe("/readyz").await;
            let unrouted = &body["unrouted"];
            status == 200 && unrouted["aggregate_type"] == "order" && unrouted["event_type"] == "changed"
        })
        .await;
        assert_eq!(relay.logged("no route takes this event"), 1);
        assert_eq!((relay.logged("\\\"version\\\""), left(&db, "order").await), (0, 500), "no payload is logged");
        assert_eq!(relay.output().lines().count(), 500);
        assert_eq!(relay.stop().await, Some(0));

        let relay = config.start().await;
        until(seconds(20), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        let (_, body) = relay.probe("/readyz").await;
        assert!(body["unrouted"].is_null(), "{body}");
        assert_eq!(relay.output().lines().count(), 500);
        assert_eq!(relay.stop().await, Some(0));
    })
    .await;
}
