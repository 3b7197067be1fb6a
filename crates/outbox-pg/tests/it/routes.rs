//! Several routes over one database: reads beside other routes' events, gaps in the ids, and the routes in force.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Acquisition, Filter, Lane, Ownership, ReadRequest, Routes, Store, StoreErrorKind};
use outbox_pg::{PgConfig, PgStore};
use outbox_testkit::services::postgres::Options;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;

use crate::database::{Database, number, run};
use crate::lane::{begin, forward, ids, migrated, silent};

const LEASE: Duration = Duration::from_secs(600);

fn filter(aggregate_types: &[&str]) -> Filter {
    Filter::default().aggregate_types(aggregate_types.iter().copied()).unwrap()
}

fn routes() -> Routes {
    Routes::new([("carts", filter(&["cart"])), ("rest", filter(&[]))]).unwrap()
}

fn store(url: &str) -> Arc<PgStore> {
    Arc::new(PgStore::new(&PgConfig::new(url), "test").unwrap())
}

async fn lane(store: &PgStore, routes: &Routes, name: &str) -> Box<dyn Lane> {
    let owned = store.acquire(&routes.selection(name).unwrap(), LEASE).await.unwrap().owned().unwrap();
    store.open_lane(&owned).await.unwrap()
}

async fn insert(conn: &mut PgConnection, aggregate_type: &str, events: u32) {
    let sql = format!(
        "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) \
         SELECT '{aggregate_type}', i, 'changed', '{{}}' FROM generate_series(1, {events}) AS i"
    );
    run(conn, &sql).await.unwrap();
}

/// Reads until a read is complete: the ids, and how many reads it took.
async fn read_all(lane: &mut dyn Lane) -> (Vec<i64>, usize) {
    let (mut found, mut reads) = (Vec::new(), 0);
    loop {
        let batch = lane.read(forward(1000)).await.unwrap();
        reads += 1;
        found.extend(ids(&batch.events));
        if batch.complete {
            return (found, reads);
        }
        assert!(reads < 1000, "no end");
    }
}

/// Ids that were handed out and never committed, or long deleted, are crossed in few reads however many they are.
#[tokio::test]
async fn a_wide_gap_in_the_ids_is_crossed_in_few_reads() {
    let Some(database) = Database::migrated("gap").await else { return };
    let mut conn = database.connect().await;
    insert(&mut conn, "cart", 1).await;
    run(&mut conn, "SELECT setval('outbox.events_id_seq', 10000000000)").await.unwrap();
    insert(&mut conn, "order", 3).await;
    insert(&mut conn, "cart", 1).await;
    let mut lane = lane(&store(database.url()), &routes(), "carts").await;
    let (found, reads) = read_all(&mut *lane).await;
    assert_eq!(found, [1, 10_000_000_004]);
    assert!(reads < 40, "{reads} reads");
}

/// What another route has published lies dead in the table while an old snapshot holds vacuum back: a reader that has
/// passed it does not walk over it again.
#[tokio::test]
async fn another_routes_dead_rows_cost_a_reader_nothing_once_passed() {
    let Some(server) = silent(Options::default()) else { return };
    let mut conn = migrated(&server).await;
    let mut old = begin(&server).await;
    run(&mut old, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.retries")
        .await
        .unwrap();
    let store = store(&server.url());
    let mut lane = lane(&store, &routes(), "carts").await;
    insert(&mut conn, "order", 300_000).await;
    run(&mut conn, "DELETE FROM outbox.events").await.unwrap();
    for _ in 0..3 {
        read_all(&mut *lane).await;
    }
    let mut fastest = Duration::MAX;
    for _ in 0..10 {
        let began = Instant::now();
        let batch = lane.read(forward(1000)).await.unwrap();
        fastest = fastest.min(began.elapsed());
        assert!(batch.complete && batch.events.is_empty());
        assert_eq!(batch.covered_through, 300_000, "past rows of which none is visible");
    }
    println!("a poll behind 300 000 dead rows takes {fastest:?}");
    insert(&mut conn, "cart", 1).await;
    assert_eq!(read_all(&mut *lane).await.0, [300_001]);
    old.close().await.unwrap();
}

/// A long writer of the own route, and a backlog of another one that grows meanwhile: its events come at its commit, in
/// order and once, though the look-back for them is longer than one read reaches.
#[tokio::test]
async fn a_long_writer_is_looked_back_for_across_another_routes_backlog() {
    let Some(server) = silent(Options::default()) else { return };
    let mut conn = migrated(&server).await;
    let store = store(&server.url());
    let mut lane = lane(&store, &routes(), "carts").await;
    let mut slow = begin(&server).await;
    insert(&mut slow, "cart", 3).await;
    let mut expected = vec![1, 2, 3];
    let began = Instant::now();
    let mut passed = 0;
    for round in 0..4 {
        insert(&mut conn, "order", 100_000).await;
        insert(&mut conn, "cart", 1).await;
        let id = 3 + (round + 1) * 100_001;
        assert_eq!(read_all(&mut *lane).await.0, [id]);
        passed = id;
    }
    // Long enough to be kept aside: then it no longer holds back what is passed for good.
    while began.elapsed() < Duration::from_millis(2_500) {
        assert_eq!(read_all(&mut *lane).await.0, [0; 0]);
    }
    insert(&mut slow, "cart", 1).await;
    expected.push(passed + 1);
    assert_eq!(read_all(&mut *lane).await.0, [0; 0]);
    run(&mut slow, "COMMIT").await.unwrap();
    let (mut found, mut late) = (Vec::new(), 0);
    loop {
        let batch = lane.read(ReadRequest { max_events: 2, ..forward(2) }).await.unwrap();
        late += batch.late;
        found.extend(ids(&batch.events));
        if batch.complete {
            break;
        }
    }
    assert_eq!(found, expected);
    // Behind a page that was full the others lie above the cursor again.
    assert!(late >= 1, "{late}");
    for _ in 0..3 {
        assert_eq!(read_all(&mut *lane).await.0, [0; 0], "an event was read twice");
    }
    assert!(lane.sweep(0).await.unwrap().unknown.is_empty());
}

/// Many relays of two lists of routes ask at once, over and over: never do routes of both lists have owners.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lists_of_routes_are_never_in_force_together() {
    let Some(database) = Database::migrated("in_force").await else { return };
    let lists = [routes(), Routes::new([("carts", filter(&["cart", "bag"])), ("rest", filter(&[]))]).unwrap()];
    let stores: Vec<_> = (0..4).map(|_| store(database.url())).collect();
    let mut conn = database.connect().await;
    let mut rounds_of = [0, 0];
    for round in 0..12 {
        let mut claims = JoinSet::new();
        for (place, store) in stores.iter().enumerate() {
            let (store, routes) = (Arc::clone(store), lists[(place + round) % 2].clone());
            for name in ["carts", "rest"] {
                let (store, selection) = (Arc::clone(&store), routes.selection(name).unwrap());
                claims.spawn(async move { (Arc::clone(&store), store.acquire(&selection, LEASE).await.unwrap()) });
            }
        }
        // With buckets or without: who has joined may get some.
        let joined = |(store, won)| match won {
            Acquisition::Owned(ownership) => Some((store, ownership)),
            Acquisition::Lost | Acquisition::OtherRoutes { .. } => None,
        };
        let owned: Vec<(Arc<PgStore>, Ownership)> = claims.join_all().await.into_iter().filter_map(joined).collect();
        let of_first = owned.iter().filter(|(_, owned)| *owned.selection.routes() == lists[0]).count();
        assert!(of_first == 0 || of_first == owned.len(), "round {round}: {of_first} of {}", owned.len());
        let buckets: usize = owned.iter().map(|(_, owned)| owned.tokens.len()).sum();
        assert!([64, 128].contains(&buckets), "round {round}: {buckets} of two routes");
        rounds_of[usize::from(of_first == 0)] += 1;
        let fingerprints = number(&mut conn, "SELECT count(DISTINCT config_fingerprint) FROM outbox.relays").await;
        assert_eq!(fingerprints, 1, "round {round}");
        let told = "SELECT count(*) FROM outbox.config_in_force WHERE fingerprint = (SELECT DISTINCT config_fingerprint \
                    FROM outbox.relays)";
        assert_eq!(number(&mut conn, told).await, 1, "round {round}");
        for (store, owned) in owned {
            store.release(&owned).await.unwrap();
        }
    }
    println!("rounds won by each list: {rounds_of:?}");
}

#[tokio::test]
async fn routes_that_can_not_be_read_are_waited_for_too() {
    let Some(database) = Database::migrated("unreadable").await else { return };
    let (first, second) = (store(database.url()), store(database.url()));
    let routes = routes();
    first.acquire(&routes.selection("carts").unwrap(), LEASE).await.unwrap().owned().unwrap();
    let mut conn = database.connect().await;
    // As a newer program could write.
    run(&mut conn, "UPDATE outbox.config_in_force SET routes = '{\"of\": \"the future\"}'").await.unwrap();
    let other = Routes::everything("all");
    let waits = second.acquire(&other.selection("all").unwrap(), LEASE).await.unwrap();
    assert_eq!(waits, Acquisition::OtherRoutes { in_force: None });
}

#[tokio::test]
async fn too_few_connections_for_the_routes_are_refused_with_their_number() {
    let Some(database) = Database::migrated("too_few").await else { return };
    let store = PgStore::new(&PgConfig::new(database.url()).with_max_connections(5), "test").unwrap();
    let routes = routes();
    let error = store.acquire(&routes.selection("rest").unwrap(), LEASE).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unprepared);
    let expected = "max_connections: must be at least 6 for 2 routes (three for each), got 5";
    assert_eq!(error.to_string(), expected);
}
