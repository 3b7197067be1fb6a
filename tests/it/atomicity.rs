//! Field report B04, end to end: an event arrives exactly when its business row was committed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use outbox_pg::Outbox;
use outbox_testkit::services::postgres::Binaries;
use sqlx::{Connection as _, PgConnection};
use tokio::task::block_in_place;
use uuid::Uuid;

use crate::database::{Database, run};
use crate::deadline::{seconds, until, within};
use crate::embedded::{Embedded, config};
use crate::load::{self, event};
use crate::recorder::Recorder;

/// Writes the business row and the event of one version.
async fn write(conn: &mut PgConnection, version: i64) {
    let id = Uuid::now_v7();
    let sql = "INSERT INTO ledger VALUES ($1, 'a', $2)";
    sqlx::query(sql).bind(id).bind(version).execute(&mut *conn).await.unwrap();
    Outbox::default().enqueue(conn, &event(id, "a", version)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_exists_exactly_when_its_transaction_committed() {
    let Some(db) = Database::shared("atomicity").await else { return };
    within(seconds(60), async {
        load::prepare(&db).await;
        let recorder = Recorder::new();
        let relay = Embedded::start(&db.url(), config(), &recorder).await;
        let mut conn = db.connect().await;
        // Rolled back.
        let mut tx = conn.begin().await.unwrap();
        write(&mut tx, 1).await;
        tx.rollback().await.unwrap();
        // An inner block rolled back, the outer one committed.
        let mut tx = conn.begin().await.unwrap();
        write(&mut tx, 2).await;
        let mut inner = tx.begin().await.unwrap();
        write(&mut inner, 3).await;
        inner.rollback().await.unwrap();
        tx.commit().await.unwrap();
        // Dropped.
        let mut tx = conn.begin().await.unwrap();
        write(&mut tx, 4).await;
        drop(tx);
        // Failed after the event was written.
        let mut tx = conn.begin().await.unwrap();
        write(&mut tx, 5).await;
        let twice = "INSERT INTO ledger SELECT * FROM ledger";
        assert!(sqlx::query(twice).execute(&mut *tx).await.is_err());
        assert!(tx.commit().await.is_err() || db.number("SELECT count(*) FROM ledger").await == 1);
        // A later one, so that there is something to wait for.
        let mut tx = conn.begin().await.unwrap();
        write(&mut tx, 6).await;
        tx.commit().await.unwrap();
        recorder.wait_distinct(2, seconds(10)).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        relay.stop().await;
        let verdict = load::history(&db).await.judge(recorder.arrivals());
        assert!(verdict.holds() && verdict.committed == 2 && verdict.duplicates == 0, "{verdict}");
    })
    .await;
}

/// A producer in a process of its own.
struct Producer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Producer {
    fn start(url: &str) -> Self {
        let psql = Binaries::find(None).map_or_else(|_| "psql".into(), |binaries| binaries.path("psql"));
        let mut command = Command::new(psql);
        command.args(["-X", "-q", "-A", "-t", "-d", url]).stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn say(&mut self, sql: &str) {
        writeln!(self.input, "{sql}").unwrap();
    }

    fn writes(&mut self, version: i64) {
        self.say(&format!(
            "BEGIN; WITH made AS (INSERT INTO ledger VALUES (gen_random_uuid(), 'a', {version}) RETURNING event_id)
             INSERT INTO outbox.events (event_id, aggregate_type, aggregate_id, event_type, payload)
             SELECT event_id, 'order', 'a', 'order.changed', '1' FROM made;"
        ));
    }

    /// Waits until everything said so far was done.
    fn done(&mut self) {
        self.say("SELECT 'done';");
        let mut line = String::new();
        block_in_place(|| self.output.read_line(&mut line)).unwrap();
        assert_eq!(line, "done\n");
    }

    fn kill9(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_killed_around_its_commit() {
    let Some(db) = Database::shared("producer_kill").await else { return };
    within(seconds(60), async {
        load::prepare(&db).await;
        let recorder = Recorder::new();
        let relay = Embedded::start(&db.url(), config(), &recorder).await;
        let mut before = Producer::start(&db.url());
        before.writes(1);
        before.done();
        before.kill9();
        let mut after = Producer::start(&db.url());
        after.writes(2);
        after.say("COMMIT;");
        after.done();
        after.kill9();
        // Killed with the COMMIT on its way: either is right, as long as row and event agree.
        for version in 3..13 {
            let mut during = Producer::start(&db.url());
            during.writes(version);
            during.done();
            during.say("COMMIT;");
            during.kill9();
        }
        let gone =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'psql'";
        until(seconds(20), "the producers' sessions have ended", || async { db.number(gone).await == 0 }).await;
        run(&mut db.connect().await, "SELECT 1").await;
        let history = load::history(&db).await;
        until(seconds(10), "the outbox is empty", || async { db.count("events").await == 0 }).await;
        relay.stop().await;
        let verdict = history.judge(recorder.arrivals());
        println!("{verdict}");
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
        let versions = db.psql("SELECT string_agg(version::text, ' ' ORDER BY version) FROM ledger WHERE version < 3");
        assert_eq!(versions, "2");
    })
    .await;
}
