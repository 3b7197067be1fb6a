//! What makes ids mean something else is reported, and a new lane reads all from zero; and ids of any size.

use std::time::Duration;

use outbox_core::{Change, ReadRequest, ReadScope, Selection, Store as _, StoreErrorKind, WriteBack, WriteBackStatus};
use outbox_testkit::proxy::FaultProxy;
use outbox_testkit::services::postgres::{Mode, Options};

use crate::database::{Database, run};
use crate::lane::{ROUTE, Reader, confirmed, connect, forward, ids, insert, migrated, silent};

/// Reads until the store answers otherwise than that it can't be reached.
async fn next_error(reader: &mut Reader) -> (StoreErrorKind, String) {
    for _ in 0..20 {
        let error = reader.lane.read(forward(10)).await.unwrap_err();
        if error.kind() != StoreErrorKind::Unavailable {
            return (error.kind(), error.to_string());
        }
    }
    panic!("the server is back and can't be reached");
}

async fn reopened(reader: &mut Reader) -> Vec<i64> {
    reader.lane = reader.store.open_lane(&reader.ownership).await.unwrap();
    reader.ids(100).await
}

#[tokio::test]
async fn ids_that_start_again() {
    let Some(database) = Database::migrated("resets").await else { return };
    let mut conn = database.connect().await;
    let mut reader = Reader::open(database.url()).await;
    let mut read = Vec::new();
    for _ in 0..5 {
        read.push(insert(&mut conn, "a").await);
    }
    assert_eq!(reader.ids(100).await, read);
    // The second time more ids are taken than before: the value alone would not tell.
    for taken in [2, 9] {
        run(&mut conn, "TRUNCATE outbox.events RESTART IDENTITY").await.unwrap();
        for _ in 0..taken {
            insert(&mut conn, "a").await;
        }
        for _ in 0..2 {
            let (kind, detail) = next_error(&mut reader).await;
            assert!(kind == StoreErrorKind::Restarted && detail.contains("reset"), "{kind:?} {detail}");
        }
        assert_eq!(reopened(&mut reader).await, (1..=taken).collect::<Vec<i64>>());
        reader.assert_quiet().await;
    }
    run(&mut conn, "SELECT setval('outbox.events_id_seq', 3)").await.unwrap();
    assert_eq!(next_error(&mut reader).await.0, StoreErrorKind::Restarted);
    // Without a restart of the sequence nothing is wrong with the ids that come.
    run(&mut conn, "SELECT setval('outbox.events_id_seq', 100); TRUNCATE outbox.events").await.unwrap();
    assert_eq!(reopened(&mut reader).await, [0; 0]);
    run(&mut conn, "TRUNCATE outbox.events").await.unwrap();
    run(&mut conn, "VACUUM FULL outbox.events").await.unwrap();
    let next = insert(&mut conn, "a").await;
    assert_eq!(reader.ids(100).await, [next]);
}

#[tokio::test]
async fn a_server_that_restarts_or_crashes() {
    let Some(mut server) = silent(Options::default()) else { return };
    let mut conn = migrated(&server).await;
    let mut reader = Reader::open(&server.url()).await;
    let first = insert(&mut conn, "a").await;
    assert_eq!(reader.ids(100).await, [first]);

    server.restart(Mode::Fast).unwrap();
    let (kind, detail) = next_error(&mut reader).await;
    assert!(kind == StoreErrorKind::Restarted && detail.contains("restarted or replaced"), "{kind:?} {detail}");
    let mut conn = connect(&server).await;
    assert_eq!(reopened(&mut reader).await, [first]);

    // One session is killed: the server ends all others and starts again under the same pid and start time.
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut conn).await.unwrap();
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
    let again = async {
        while server.psql("SELECT 1").is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
    let (kind, detail) = next_error(&mut reader).await;
    assert!(kind == StoreErrorKind::Restarted && detail.contains("crash"), "{kind:?} {detail}");
    assert_eq!(reopened(&mut reader).await, [first]);
    reader.assert_quiet().await;
}

#[tokio::test]
async fn ids_of_any_size_go_every_way() {
    let Some(database) = Database::migrated("large_ids").await else { return };
    let mut conn = database.connect().await;
    let mut reader = Reader::open(database.url()).await;
    for from in [3_000_000_000, (1 << 53) + 1, 9_223_372_036_854_775_000] {
        run(&mut conn, &format!("ALTER SEQUENCE outbox.events_id_seq RESTART {from}")).await.unwrap();
        reader.lane = reader.store.open_lane(&reader.ownership).await.unwrap();
        let mut written = Vec::new();
        for _ in 0..4 {
            written.push(insert(&mut conn, "a").await);
        }
        assert_eq!(written, (from..from + 4).collect::<Vec<i64>>());
        let events = reader.read(100).await.events;
        assert_eq!(ids(&events), written);
        let change = |index: usize, change| WriteBack {
            id: written[index],
            event_id: events[index].envelope.event_id,
            bucket: events[index].bucket,
            attempts: 1,
            kind: "failed",
            error: "no".to_owned(),
            change,
        };
        let delay = Duration::from_secs(60);
        let changes = [change(0, Change::Retry { delay }), change(1, Change::Dead), change(2, Change::Retry { delay })];
        let statuses = reader.store.write_back(&reader.ownership, &changes).await.unwrap();
        assert_eq!(statuses, [WriteBackStatus::Done; 3]);
        let last = written[3];
        let (scope, dropped) = (ReadScope::Keys { keys: vec![events[3].key], after: 0, through: last }, vec![last]);
        let again = reader.lane.read(ReadRequest { scope, dropped, ..forward(10) }).await.unwrap();
        assert_eq!((ids(&again.events), again.covered_through), (vec![last], last));
        reader.assert_quiet().await;
        let mut settled: Vec<_> = [0, 2, 3].iter().map(|index| confirmed(&events[*index])).collect();
        settled.iter_mut().for_each(|event| event.retried = true);
        reader.store.settle(ROUTE, &settled).await.unwrap();
        let left: i64 =
            sqlx::query_scalar("SELECT (SELECT count(*) FROM outbox.events) + (SELECT count(*) FROM outbox.retries)")
                .fetch_one(&mut conn)
                .await
                .unwrap();
        assert_eq!(left, 0);
    }
}

/// Its lock table names none of the primary's writers and its rows lag behind, so that whatever it said of them would
/// let events be passed over; and a promotion keeps the sessions and the time of its start.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_tells_nothing_before_its_promotion() {
    let Some(mut primary) = silent(Options::default()) else { return };
    let mut conn = migrated(&primary).await;
    let standby = primary.start_standby(&format!("127.0.0.1:{}", primary.port())).unwrap();
    let address = FaultProxy::start(format!("127.0.0.1:{}", primary.port())).await.unwrap();
    let mut reader = Reader::open(&address.url_for(&primary.url())).await;
    let first = insert(&mut conn, "a").await;
    let events = reader.read(100).await.events;
    assert_eq!(ids(&events), [first]);

    address.set_upstream(format!("127.0.0.1:{}", standby.port()));
    address.cut();
    let waiting = [(first, events[0].envelope.event_id)];
    for _ in 0..2 {
        let errors = [
            reader.lane.read(forward(10)).await.unwrap_err(),
            reader.lane.sweep(0).await.unwrap_err(),
            reader.store.retry_states(ROUTE, &waiting).await.unwrap_err(),
            reader.store.renew(&reader.ownership).await.unwrap_err(),
            reader.store.acquire(&Selection::everything("other"), Duration::from_secs(5)).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        }
    }
    assert!(reader.lane.read(forward(10)).await.unwrap_err().to_string().contains("replica"));

    let second = insert(&mut conn, "a").await;
    primary.stop(Mode::Fast).unwrap();
    standby.promote().unwrap();
    assert_eq!(next_error(&mut reader).await.0, StoreErrorKind::Restarted);
    assert_eq!(reopened(&mut reader).await, [first, second]);
    assert!(reader.store.renew(&reader.ownership).await.unwrap().is_held());
}
