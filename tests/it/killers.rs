//! Events that kill the relay's process, and relays that are killed for no fault of an event.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use outbox_core::{EventId, NewEvent, Payload};
use outbox_pg::Outbox;
use outbox_testkit::services::process::{Guard, Identity, private_dir};
use uuid::Uuid;

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load::{self, Load};

/// A relay that its own events may kill, started again and again as a supervisor would.
struct Killable {
    dir: PathBuf,
    guard: Guard,
    arguments: [String; 4],
}

impl Killable {
    fn new(db: &Database, killer: &str, window: usize) -> Self {
        let dir = private_dir("outbox-killable").unwrap();
        let guard = Guard::new(&dir).unwrap();
        let file = dir.join("arrived").to_str().unwrap().to_owned();
        fs::write(&file, "").unwrap();
        Self { dir, guard, arguments: [db.url(), file, killer.to_owned(), window.to_string()] }
    }

    fn start(&mut self) -> (Child, Identity) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_killable"));
        let child =
            command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let process = Identity::of(child.id()).expect("it runs");
        self.guard.watch(&process).unwrap();
        (child, process)
    }

    fn arrived(&self) -> Vec<EventId> {
        let text = fs::read_to_string(self.dir.join("arrived")).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| line.parse::<Uuid>().ok()).map(EventId::from_uuid).collect()
    }
}

/// What is left of the charges and deaths.
const LEFT: &str = "SELECT (SELECT count(*) FROM outbox.retries) + (SELECT max(deaths) FROM outbox.buckets)";

#[tokio::test(flavor = "multi_thread")]
async fn a_killing_event_is_a_dead_letter_after_a_few_deaths_and_all_others_arrive_in_order() {
    let Some(db) = Database::shared("killing_event").await else { return };
    let mut killable = Killable::new(&db, "killer", 50);
    within(seconds(200), async {
        let mut conn = db.connect().await;
        let names = (0..120).map(|n| if n == 60 { "killer".to_owned() } else { format!("a{}", n % 15) });
        let events: Vec<NewEvent> =
            names.map(|name| NewEvent::new("order", name, "e", Payload::raw_json("1"))).collect();
        let ids = Outbox::default().enqueue_many(&mut conn, &events).await.unwrap();
        let mut deaths = 0;
        let (mut child, process) = loop {
            let (mut child, process) = killable.start();
            let mut dead = None;
            until(seconds(40), "it dies, or all is done", || {
                dead = child.try_wait().unwrap();
                let over = async { db.count("events").await == 0 };
                let dead = dead.is_some();
                async move { dead || over.await }
            })
            .await;
            if dead.is_none() && child.try_wait().unwrap().is_none() {
                break (child, process);
            }
            deaths += 1;
            assert!(deaths <= 5, "the killer is not convicted after {deaths} deaths");
        };
        assert!((4..=5).contains(&deaths), "{deaths} deaths");
        until(seconds(10), "nobody is charged any more", || async { db.number(LEFT).await == 0 }).await;
        process.signal("TERM").unwrap();
        until(seconds(20), "it stops", || std::future::ready(child.try_wait().unwrap().is_some())).await;
        let dead = "SELECT count(*) FROM outbox.dead_letters WHERE aggregate_id = 'killer' AND reason_kind = 'crash' \
                      AND attempts = 0 AND reason LIKE '3 relays in a row%'";
        assert_eq!((db.number(dead).await, db.count("dead_letters").await), (1, 1));
        let mut first = Vec::new();
        for id in killable.arrived() {
            if !first.contains(&id) {
                first.push(id);
            }
        }
        assert_eq!(first.len(), 119);
        for aggregate in 0..15 {
            let of =
                |arrived: &EventId| ids.iter().position(|id| id == arrived).filter(|n| *n != 60 && n % 15 == aggregate);
            assert!(first.iter().filter_map(of).is_sorted(), "aggregate a{aggregate}");
        }
        println!("{deaths} deaths, {} copies", killable.arrived().len() - first.len());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_ordinary_kills_in_a_row_charge_nobody_in_the_end() {
    let (events, kills) = (8_000, 10);
    let Some(db) = Database::shared("ordinary_kills").await else { return };
    let mut killable = Killable::new(&db, "nobody", 200);
    within(seconds(280), async {
        load::prepare(&db).await;
        load::fill(&db, 4_000, 300).await;
        let writers = load::spawn(&db.url(), &Load { pause_ms: 0..20, ..Load::ordinary(events - 4_000) });
        for kill in 0..kills {
            let (mut child, process) = killable.start();
            let before = killable.arrived().len();
            let more = some_up_to(150);
            until(seconds(60), "some arrive", || std::future::ready(killable.arrived().len() > before + more)).await;
            process.signal("KILL").unwrap();
            until(seconds(20), "it is dead", || std::future::ready(child.try_wait().unwrap().is_some())).await;
            let charged = db.number("SELECT count(*) FROM outbox.retries WHERE crashes > 0").await;
            assert!(charged <= kill + 1, "{charged} charged after {} kills", kill + 1);
        }
        let (mut child, process) = killable.start();
        load::finish(writers).await;
        until(seconds(100), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        until(seconds(10), "nobody is charged any more", || async { db.number(LEFT).await == 0 }).await;
        process.signal("TERM").unwrap();
        until(seconds(20), "it stops", || std::future::ready(child.try_wait().unwrap().is_some())).await;
        assert_eq!((db.count("retries").await, db.count("dead_letters").await), (0, 0));
        let verdict = load::history(&db).await.judge(killable.arrived());
        assert!(verdict.holds(), "{verdict}");
        println!("{kills} kills: {verdict}");
    })
    .await;
}

/// Below `most`, by the clock: when a kill comes is not to be the same in each run.
fn some_up_to(most: usize) -> usize {
    usize::try_from(Uuid::new_v4().as_u128() % (most as u128)).unwrap()
}
