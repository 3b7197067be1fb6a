//! Everything at once: producers, three relays, a database and a broker, each behind proxies, and a schedule of faults that
//! follows from a seed. At the end the history tells whether the promises held.
//!
//! `cargo xtask chaos` runs it longer, with other seeds and another broker.

mod schedule;

use std::time::Duration;

use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::services::nats::Version;
use outbox_testkit::services::postgres;
use sqlx::Connection as _;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::Instant;
use uuid::Uuid;

use self::schedule::{Fault, Schedule, Side};
use crate::database::Database;
use crate::deadline::{pass, seconds, until, within};
use crate::destination::{ByUrl, NatsStream, RabbitMqQueue};
use crate::load::{self, Load};
use crate::relay::{Relay, RelayConfig};

const RELAYS: usize = 3;
/// The events that a relay may have at the broker: what may come twice for each fault.
const WINDOW: usize = 300;
/// After the last fault.
const HEALS_WITHIN: Duration = Duration::from_secs(60);

/// What is asked for, from the environment.
struct Wanted {
    seed: u64,
    length: Duration,
    broker: String,
}

impl Wanted {
    fn from_env() -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
        Self {
            seed: number("OUTBOX_CHAOS_SEED").unwrap_or(1),
            length: seconds(number("OUTBOX_CHAOS_SECONDS").unwrap_or(15)),
            broker: std::env::var("OUTBOX_CHAOS_BROKER").unwrap_or_else(|_| "rabbitmq".to_owned()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_promises_hold() {
    let wanted = Wanted::from_env();
    match wanted.broker.as_str() {
        "rabbitmq" => {
            if let Some(destination) = RabbitMqQueue::own().await {
                run(wanted, destination).await;
            }
        }
        "nats" => {
            if let Some(destination) = NatsStream::own(Version::New).await {
                run(wanted, destination).await;
            }
        }
        other => panic!("OUTBOX_CHAOS_BROKER must be rabbitmq or nats, got `{other}`"),
    }
}

/// A relay with its ways to the database and to the broker.
struct Member {
    config: RelayConfig,
    to_database: FaultProxy,
    to_broker: FaultProxy,
    relay: Option<Relay>,
}

impl Member {
    async fn new(db: &Database, destination: &impl ByUrl) -> Option<Self> {
        let to_database = FaultProxy::start(authority(&db.url())).await.unwrap();
        let to_broker = FaultProxy::start(authority(&destination.url())).await.unwrap();
        let config = destination.lead(RelayConfig::new(&to_database.url_for(&db.url()))?);
        let key = format!("route.0.{}.url", destination.kind());
        let config = config.with(&key, &to_broker.url_for(&destination.url()));
        let config = config.with("relay.window", &WINDOW.to_string());
        let relay = Some(config.start().await);
        Some(Self { config, to_database, to_broker, relay })
    }

    fn proxy(&self, side: Side) -> &FaultProxy {
        match side {
            Side::Database => &self.to_database,
            Side::Broker => &self.to_broker,
        }
    }

    fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a relay runs between faults")
    }

    async fn mode_for(&self, side: Side, mode: Mode, length: Duration) {
        self.proxy(side).set_mode(mode);
        pass(length).await;
        if mode == Mode::CutReplies {
            self.proxy(side).cut();
        }
        self.proxy(side).set_mode(Mode::Pass);
    }
}

struct Scene<D> {
    db: Database,
    destination: D,
    members: Vec<Member>,
}

async fn run<D: ByUrl>(wanted: Wanted, mut destination: D) {
    let Wanted { seed, length, broker } = wanted;
    let schedule = Schedule::new(seed, length, RELAYS);
    println!("seed {seed}, {length:?}, {broker}, {RELAYS} relays:\n{schedule}");
    let Some(db) = Database::own_with(postgres::Options::default().durable()).await else { return };
    // Each relay's start and each restart of a server takes time beside the schedule.
    within(length * 4 + seconds(200), async {
        load::prepare(&db).await;
        destination.make().await;
        let mut members = Vec::new();
        for _ in 0..RELAYS {
            let Some(member) = Member::new(&db, &destination).await else { return };
            members.push(member);
        }
        let mut scene = Scene { db, destination, members };
        // One load is steady and small, so that the server is nearly silent whenever the other one is not there.
        let small = Load { events: usize::MAX, writers: 2, aggregates: 20, batch: 1, pause_ms: 0..120 };
        let big = Load { events: usize::MAX, writers: 10, aggregates: 40, batch: 2, pause_ms: 0..25 };
        let mut steady = load::spawn(&scene.db.url(), &small);
        let mut busy = load::spawn(&scene.db.url(), &big);
        let begun = Instant::now();
        for (number, (pause, fault)) in schedule.steps().iter().enumerate() {
            pass(*pause).await;
            println!("{:>8.1?} {number}: {fault:?}", begun.elapsed());
            if let Fault::Quiet(length) = fault {
                busy.shutdown().await;
                pass(*length).await;
                busy = load::spawn(&scene.db.url(), &big);
            } else {
                scene.happens(*fault).await;
            }
        }
        busy.shutdown().await;
        steady.shutdown().await;
        scene.judge(&schedule).await;
    })
    .await;
}

impl<D: ByUrl> Scene<D> {
    async fn happens(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(place) => {
                let member = &mut self.members[place];
                member.relay.take().expect("a relay runs between faults").kill9().await;
                member.relay = Some(member.config.start().await);
            }
            Fault::Deploy(place) => {
                let member = &mut self.members[place];
                let old = member.relay.take().expect("a relay runs between faults");
                assert_eq!(old.stop().await, Some(0), "a deploy ends in order");
                member.relay = Some(member.config.start().await);
            }
            Fault::Freeze(place, length) => {
                let relay = self.members[place].relay();
                relay.signal("STOP");
                pass(length).await;
                relay.signal("CONT");
            }
            Fault::KillBroker(length) => {
                self.destination.go_down().await;
                pass(length).await;
                self.destination.come_back().await;
            }
            Fault::CrashDatabase => {
                block_in_place(|| self.db.server().restart(postgres::Mode::Immediate)).unwrap();
            }
            Fault::Cut(place, side) => self.members[place].proxy(side).cut(),
            Fault::Silence(place, side, length) => {
                self.members[place].mode_for(side, Mode::Blackhole, length).await;
            }
            Fault::LoseReplies(place, side, length) => {
                self.members[place].mode_for(side, Mode::CutReplies, length).await;
            }
            Fault::Slow(place, side, length) => {
                let slow = Mode::Latency(Duration::from_millis(40));
                self.members[place].mode_for(side, slow, length).await;
            }
            Fault::LateCommit(length) => self.late(length, true).await,
            Fault::LateRollback(length) => self.late(length, false).await,
            Fault::Quiet(_) => {} // a matter of the load
        }
    }

    /// A transaction over an aggregate of its own, and beside it one of the same aggregate that waits for it.
    async fn late(&self, length: Duration, commits: bool) {
        let aggregate = format!("late-{}", Uuid::now_v7().simple());
        let mut conn = self.db.connect().await;
        let mut tx = conn.begin().await.unwrap();
        load::write(&mut tx, &aggregate).await.unwrap();
        let (url, next) = (self.db.url(), aggregate.clone());
        let mut waiting = JoinSet::new();
        waiting.spawn(async move {
            let mut conn = sqlx::PgConnection::connect(&url).await.unwrap();
            let mut tx = conn.begin().await.unwrap();
            load::write(&mut tx, &next).await.unwrap();
            tx.commit().await.unwrap();
        });
        pass(length).await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        waiting.join_next().await.expect("it was spawned").unwrap();
    }

    async fn judge(mut self, schedule: &Schedule) {
        let (db, healed) = (&self.db, Instant::now());
        until(HEALS_WITHIN, "the outbox is empty", || async { db.count("events").await == 0 }).await;
        println!("everything was delivered {:?} after the last fault", healed.elapsed());
        let charged = (db.count("retries").await, db.count("dead_letters").await);
        for member in &mut self.members {
            let relay = member.relay.take().expect("a relay runs between faults");
            assert!(relay.is_alive());
            assert_eq!(relay.logged("only the full sweep found this event"), 0);
            assert_eq!(relay.stop().await, Some(0));
        }
        let verdict = load::history(db).await.judge(self.destination.arrived().await);
        let most = schedule.doubts(RELAYS) * WINDOW;
        println!("{verdict} (at most {most} duplicates by {} faults)", schedule.steps().len());
        assert!(verdict.committed > 100, "{verdict}");
        assert!(verdict.holds(), "{verdict}");
        assert!(verdict.duplicates <= most, "{verdict}");
        assert_eq!(charged, (0, 0), "no fault of these charges an event");
    }
}

/// `host:port` of a URL.
fn authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority).to_owned()
}
