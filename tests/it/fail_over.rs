//! The database moves to another server, which has everything or lacks the end; or it takes no writes for a while.

use std::collections::HashSet;

use outbox_core::EventId;
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::services::postgres::{self, Postgres};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::database::{Database, run};
use crate::deadline::{seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Consumer, Queue, broker};
use crate::relay::{Relay, RelayConfig};

const WINDOW: usize = 300;

/// A relay that finds its database by an address that moves, as behind a virtual IP or a DNS name.
struct Scene {
    db: Database,
    address: FaultProxy,
    config: RelayConfig,
    consumer: Consumer,
    _queue: Queue,
}

impl Scene {
    async fn set() -> Option<Self> {
        let url = broker()?;
        let db = Database::own().await?;
        let address = FaultProxy::start(db.authority()).await.unwrap();
        let queue = Queue::declared(&url).await;
        let config = RelayConfig::new(&address.url_for(&db.url()))?.with_rabbitmq(&url, &queue.name);
        let config = config.with("relay.window", &WINDOW.to_string());
        let consumer = queue.consume().await;
        load::prepare(&db).await;
        Some(Self { db, address, config, consumer, _queue: queue })
    }

    async fn relay(&self) -> Relay {
        let relay = self.config.start().await;
        relay.wait_owner(seconds(20)).await;
        relay
    }

    /// A standby that follows by `upstream`.
    fn standby(&mut self, upstream: &str) -> Postgres {
        block_in_place(|| self.db.server().start_standby(upstream)).unwrap()
    }

    /// The address leads to another server; whoever is connected to the old one is cut off.
    fn lead_to(&self, port: u16) {
        self.address.set_upstream(format!("127.0.0.1:{port}"));
        self.address.cut();
    }

    async fn more_arrive(&self, messages: usize) {
        self.consumer.wait_for(self.consumer.count() + messages, seconds(40)).await;
    }

    async fn drained(&self, relay: &Relay) {
        until(seconds(60), "the outbox is empty", || async { self.db.count("events").await == 0 }).await;
        until(seconds(10), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        assert!(relay.is_alive());
        assert_eq!((self.db.count("retries").await, self.db.count("dead_letters").await), (0, 0));
    }
}

async fn waits_because(relay: &Relay, reason: &str) {
    until(seconds(30), reason, || async {
        let told = relay.reason().await;
        told.starts_with("database: ") && told.contains(reason)
    })
    .await;
}

/// A clean switch. For a while the address leads to the replica, which is no source for a relay before its promotion.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_to_a_replica_that_has_everything() {
    within(seconds(200), async {
        let Some(mut scene) = Scene::set().await else { return };
        let upstream = scene.db.authority();
        let standby = scene.standby(&upstream);
        let relay = scene.relay().await;
        let url = scene.address.url_for(&scene.db.url());
        let mut writers = load::spawn(&url, &Load { writers: 6, pause_ms: 0..11, ..Load::ordinary(6_000) });
        scene.more_arrive(1_500).await;

        block_in_place(|| scene.db.server().stop(postgres::Mode::Fast)).unwrap();
        scene.lead_to(standby.port());
        waits_because(&relay, "the server is a replica").await;
        assert!(writers.try_join_next().is_none(), "the switch came too late");
        let _old = scene.db.moves_to(standby);
        block_in_place(|| scene.db.server().promote()).unwrap();
        let promoted = Instant::now();
        scene.more_arrive(1).await;
        println!("delivery went on {:?} after the promotion", promoted.elapsed());

        load::finish(writers).await;
        let history = load::history(&scene.db).await;
        scene.drained(&relay).await;
        assert_eq!(relay.stop().await, Some(0));
        let consumer = &scene.consumer;
        until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        let verdict = history.judge(consumer.events());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates <= WINDOW, "{verdict}");
    })
    .await;
}

/// Whether the standby has the row of the relay's ownership.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Replicated,
    Unknown,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_replica_that_is_behind() {
    ids_come_again(Owner::Replicated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_replica_that_does_not_know_the_owner() {
    ids_come_again(Owner::Unknown).await;
}

/// What the replica lacks is lost with its business data, and its ids come again: what exists on the new primary is
/// delivered, also under the id of something that the relay knows, has in flight, or has delivered.
async fn ids_come_again(owner: Owner) {
    within(seconds(200), async {
        let Some(mut scene) = Scene::set().await else { return };
        let link = FaultProxy::start(scene.db.authority()).await.unwrap();
        let standby = scene.standby(&link.addr().to_string());
        load::fill(&scene.db, 500, 50).await;
        let early = match owner {
            Owner::Replicated => Some(scene.relay().await),
            Owner::Unknown => None,
        };
        if owner == Owner::Replicated {
            until(seconds(20), "the outbox is empty", || async { scene.db.count("events").await == 0 }).await;
        }
        // Caught up with all that there is; the relay goes on renewing beside it.
        let end = scene.db.psql("SELECT pg_current_wal_lsn()");
        let caught_up = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
        until(seconds(20), "the standby has caught up", || async {
            block_in_place(|| standby.psql(&caught_up)).unwrap() == "t"
        })
        .await;
        link.apply(Mode::Closed).await;
        let relay = match early {
            Some(relay) => relay,
            None => scene.relay().await,
        };

        // On the old primary alone; the aggregates are those of later.
        let load = Load { writers: 8, pause_ms: 0..4, ..Load::ordinary(1_000_000) };
        let writers = load::spawn(&scene.db.url(), &load);
        scene.more_arrive(1_500).await;
        block_in_place(|| scene.db.server().kill9()).unwrap();
        scene.address.apply(Mode::Closed).await;
        drop(writers);
        let mut old = scene.db.moves_to(standby);
        block_in_place(|| scene.db.server().promote()).unwrap();
        // Delivered, but their deletion is among what the replica lacks.
        let back = usize::try_from(scene.db.count("events").await).unwrap();
        assert_eq!(back, if owner == Owner::Replicated { 0 } else { 500 });
        let first = scene.db.number("SELECT nextval('outbox.events_id_seq')").await;

        // The new primary has overtaken the old one before the relay sees it: only the server itself tells of the change.
        load::finish(load::spawn(&scene.db.url(), &Load { events: 4_000, ..load.clone() })).await;
        let port = scene.db.server().port();
        scene.lead_to(port);
        scene.address.apply(Mode::Pass).await;
        let led = Instant::now();
        scene.more_arrive(1).await;
        println!("delivery went on {:?} after the address led to the new primary", led.elapsed());
        load::finish(load::spawn(&scene.db.url(), &Load { events: 500, ..load })).await;
        scene.drained(&relay).await;
        assert_eq!(relay.stop().await, Some(0));

        block_in_place(|| old.start_again()).unwrap();
        let last = block_in_place(|| old.psql("SELECT last_value FROM outbox.events_id_seq")).unwrap();
        let again = last.parse::<i64>().unwrap() - first;
        assert!(again > 500, "only {again} ids came again");
        assert!(scene.db.number("SELECT last_value FROM outbox.events_id_seq").await > first + again);
        let history = load::history(&scene.db).await;
        let consumer = &scene.consumer;
        until(seconds(20), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        let verdict = history.judge(consumer.events());
        println!("{again} ids came again, {back} events came back: {verdict}");
        assert_eq!((verdict.lost, verdict.order_violations, verdict.contradictory), (0, 0, 0), "{verdict}");
        assert!(verdict.duplicates <= back + WINDOW, "{verdict}");
        // What else arrived was committed on the old primary.
        let told = block_in_place(|| old.psql("SELECT event_id FROM ledger")).unwrap();
        let committed: HashSet<EventId> = told.lines().map(|id| EventId::from_uuid(id.parse().unwrap())).collect();
        let here = scene.db.psql("SELECT event_id FROM ledger");
        let here: HashSet<EventId> = here.lines().map(|id| EventId::from_uuid(id.parse().unwrap())).collect();
        let strange = consumer.events().into_iter().filter(|id| !here.contains(id) && !committed.contains(id));
        assert_eq!(strange.count(), 0, "an event was invented");
        assert!(verdict.invented > 500, "{verdict}");
    })
    .await;
}

/// As an administrator or a provider does when a disk is nearly full.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_writes_for_a_while() {
    within(seconds(150), async {
        let Some(scene) = Scene::set().await else { return };
        let relay = scene.relay().await;
        let mut conn = scene.db.connect().await;
        let url = scene.address.url_for(&scene.db.url());
        let writers = load::spawn(&url, &Load { writers: 6, pause_ms: 0..11, ..Load::ordinary(5_000) });
        for (set, reset) in [
            // Sessions that are there follow the one; the other holds for new ones.
            ("ALTER SYSTEM SET default_transaction_read_only = on", "ALTER SYSTEM RESET default_transaction_read_only"),
            (
                "ALTER DATABASE postgres SET default_transaction_read_only = on",
                "ALTER DATABASE postgres RESET default_transaction_read_only",
            ),
        ] {
            scene.more_arrive(800).await;
            let before = scene.consumer.count();
            run(&mut conn, set).await;
            run(&mut conn, "SELECT pg_reload_conf()").await;
            scene.address.cut();
            waits_because(&relay, "the database is read-only").await;
            assert_eq!(relay.probe("/livez").await.0, 200);
            until(seconds(20), "no lease is left", || async {
                scene.db.number("SELECT count(*) FROM outbox.relays WHERE lease_end > now()").await == 0
            })
            .await;
            assert!(scene.consumer.count() <= before + 2 * WINDOW, "it went on without a lease");
            run(&mut conn, "SET default_transaction_read_only = off").await;
            run(&mut conn, reset).await;
            run(&mut conn, "SELECT pg_reload_conf()").await;
            let writable = Instant::now();
            scene.more_arrive(1).await;
            println!("delivery went on {:?} after writes were allowed again", writable.elapsed());
        }
        load::finish(writers).await;
        let history = load::history(&scene.db).await;
        scene.drained(&relay).await;
        assert_eq!(relay.stop().await, Some(0));
        let consumer = &scene.consumer;
        until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 }).await;
        let verdict = history.judge(consumer.events());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates <= 2 * WINDOW, "{verdict}");
    })
    .await;
}

/// A relay that is led to a replica from the beginning tells so, and works as soon as it is the primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_begins_at_a_replica() {
    within(seconds(100), async {
        let Some(mut scene) = Scene::set().await else { return };
        load::fill(&scene.db, 100, 10).await;
        let upstream = scene.db.authority();
        let standby = scene.standby(&upstream);
        scene.lead_to(standby.port());
        let relay = scene.config.start().await;
        waits_because(&relay, "the server is a replica").await;
        block_in_place(|| scene.db.server().stop(postgres::Mode::Fast)).unwrap();
        let _old = scene.db.moves_to(standby);
        block_in_place(|| scene.db.server().promote()).unwrap();
        scene.consumer.wait_for(100, seconds(20)).await;
        scene.drained(&relay).await;
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&scene.db).await.judge(scene.consumer.events());
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
    })
    .await;
}
