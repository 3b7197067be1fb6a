//! Commits in another order than the ids, each on a server where nothing else happens.

use std::time::{Duration, Instant};

use outbox_testkit::services::postgres::{Options, Postgres};
use sqlx::PgConnection;

use crate::database::run;
use crate::lane::{Reader, begin, connect, ids, insert, migrated, silent, until};

async fn start() -> Option<(Postgres, PgConnection, Reader)> {
    let server = silent(Options::default())?;
    let conn = migrated(&server).await;
    let reader = Reader::open(&server.url()).await;
    Some((server, conn, reader))
}

/// Reads beside an open writer until the lane keeps it aside; what else commits meanwhile is read at once.
async fn until_aside(reader: &mut Reader, conn: &mut PgConnection, others: &mut usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !format!("{:?}", reader.lane).contains("aside: 1") {
        assert!(Instant::now() < deadline, "{:?}", reader.lane);
        let id = insert(conn, "other").await;
        *others += 1;
        let batch = reader.read(100).await;
        assert_eq!((ids(&batch.events), batch.late), (vec![id], 0));
        reader.settle(&batch.events).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_id_that_commits_after_the_next_one_was_read() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    let mut slow = begin(&server).await;
    let late = insert(&mut slow, "a").await;
    let passed = insert(&mut conn, "b").await;
    assert_eq!(reader.ids(100).await, [passed]);
    assert_eq!(reader.ids(100).await, [0; 0]);
    run(&mut slow, "COMMIT").await.unwrap();
    let batch = reader.read(100).await;
    assert_eq!((ids(&batch.events), batch.late), (vec![late], 1));
    reader.assert_quiet().await;
}

#[tokio::test]
async fn a_producer_that_pauses_in_a_trigger_before_its_insert() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    let trigger = "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS \
                   $$BEGIN IF NEW.aggregate_id = 'gated' THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NEW; END$$; \
                   CREATE TRIGGER gate BEFORE INSERT ON outbox.events FOR EACH ROW EXECUTE FUNCTION gate()";
    run(&mut conn, trigger).await.unwrap();
    let mut gate = connect(&server).await;
    run(&mut gate, "SELECT pg_advisory_lock(1)").await.unwrap();
    let mut slow = connect(&server).await;
    let slow = tokio::spawn(async move { insert(&mut slow, "gated").await });
    until(&mut conn, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").await;
    for _ in 0..3 {
        let passed = insert(&mut conn, "b").await;
        assert_eq!(reader.ids(100).await, [passed]);
    }
    run(&mut gate, "SELECT pg_advisory_unlock(1)").await.unwrap();
    let late = slow.await.unwrap();
    let successor = insert(&mut conn, "gated").await;
    let batch = reader.read(100).await;
    assert_eq!((ids(&batch.events), batch.late), (vec![late, successor], 1));
    reader.assert_quiet().await;
}

#[tokio::test]
async fn transactions_that_began_in_one_order_and_insert_in_the_other() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    run(&mut conn, "CREATE TABLE orders (id int PRIMARY KEY)").await.unwrap();
    let (mut first, mut second) = (begin(&server).await, begin(&server).await);
    run(&mut second, "INSERT INTO orders VALUES (2)").await.unwrap();
    run(&mut first, "INSERT INTO orders VALUES (1)").await.unwrap();
    let late = insert(&mut first, "1").await;
    assert_eq!(reader.ids(100).await, [0; 0]);
    let passed = insert(&mut second, "2").await;
    run(&mut second, "COMMIT").await.unwrap();
    let events = reader.read(100).await.events;
    assert_eq!(ids(&events), [passed]);
    reader.settle(&events).await;
    for _ in 0..5 {
        assert_eq!(reader.ids(100).await, [0; 0]);
    }
    run(&mut first, "COMMIT").await.unwrap();
    assert_eq!(reader.ids(100).await, [late]);
    reader.assert_quiet().await;
}

#[tokio::test]
async fn a_writer_open_for_seconds_is_kept_aside_and_read_once_in_order() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    for prepared in [false, true] {
        let mut slow = begin(&server).await;
        let mut late = vec![insert(&mut slow, "a").await];
        let mut others = 0;
        // Savepoints give it several transaction ids, and one of its events is taken back.
        run(&mut slow, "SAVEPOINT one").await.unwrap();
        late.push(insert(&mut slow, "a").await);
        run(&mut slow, "RELEASE one; SAVEPOINT two").await.unwrap();
        insert(&mut slow, "a").await;
        run(&mut slow, "ROLLBACK TO two").await.unwrap();
        if prepared {
            run(&mut slow, "PREPARE TRANSACTION 'slow'").await.unwrap();
        }
        until_aside(&mut reader, &mut conn, &mut others).await;
        assert!(others >= 2);
        if prepared {
            run(&mut slow, "COMMIT PREPARED 'slow'").await.unwrap();
        } else {
            late.push(insert(&mut slow, "a").await);
            run(&mut slow, "COMMIT").await.unwrap();
        }
        late.push(insert(&mut conn, "a").await);
        let below = late.len() - 1;
        if prepared {
            let batch = reader.read(100).await;
            assert_eq!((ids(&batch.events), batch.late), (late, below));
        } else {
            // In pages: the cursor goes back to each.
            let mut pages = Vec::new();
            for _ in 0..late.len() {
                pages.extend(reader.ids(1).await);
            }
            assert_eq!(pages, late);
        }
        reader.assert_quiet().await;
        assert!(format!("{:?}", reader.lane).contains("aside: 0"), "{:?}", reader.lane);
    }
}

#[tokio::test]
async fn a_long_writer_that_rolls_back_leaves_nothing() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    let mut slow = begin(&server).await;
    insert(&mut slow, "a").await;
    until_aside(&mut reader, &mut conn, &mut 0).await;
    run(&mut slow, "ROLLBACK").await.unwrap();
    let next = insert(&mut conn, "a").await;
    let batch = reader.read(100).await;
    assert_eq!((ids(&batch.events), batch.late), (vec![next], 0));
    reader.assert_quiet().await;
}

#[tokio::test]
async fn a_copy_and_a_prepared_transaction_that_end_late() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    let mut slow = begin(&server).await;
    let mut copy = slow
        .copy_in_raw("COPY outbox.events (aggregate_type, aggregate_id, event_type, payload) FROM STDIN")
        .await
        .unwrap();
    // More than the server buffers before it inserts.
    copy.send("order\tcopied\tchanged\t{}\n".repeat(3000).as_bytes()).await.unwrap();
    until(&mut conn, "SELECT last_value >= 1000 FROM outbox.events_id_seq").await;
    let passed = insert(&mut conn, "b").await;
    assert_eq!(reader.ids(100).await, [passed]);
    copy.finish().await.unwrap();
    let passed = insert(&mut conn, "b").await;
    assert_eq!(reader.ids(100).await, [passed]);
    run(&mut slow, "PREPARE TRANSACTION 'copy'").await.unwrap();
    let passed = insert(&mut conn, "b").await;
    assert_eq!(reader.ids(100).await, [passed]);
    assert_eq!(reader.ids(100).await, [0; 0]);
    run(&mut conn, "COMMIT PREPARED 'copy'").await.unwrap();
    let mut copied = Vec::new();
    loop {
        let batch = reader.read(700).await;
        copied.extend(ids(&batch.events));
        reader.settle(&batch.events).await;
        if batch.complete {
            break;
        }
    }
    assert!(copied.len() == 3000 && copied.is_sorted_by(|a, b| a < b), "{} events", copied.len());
    reader.assert_quiet().await;
}

#[tokio::test]
async fn a_writer_that_locks_the_whole_table() {
    let Some((server, mut conn, mut reader)) = start().await else { return };
    let first = insert(&mut conn, "a").await;
    let mut slow = begin(&server).await;
    run(&mut slow, "LOCK TABLE outbox.events IN EXCLUSIVE MODE").await.unwrap();
    let second = insert(&mut slow, "a").await;
    let waiting = tokio::spawn(async move { insert(&mut conn, "a").await });
    let mut watch = connect(&server).await;
    until(&mut watch, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'relation' AND NOT granted)").await;
    assert_eq!(reader.ids(100).await, [first]);
    assert_eq!(reader.ids(100).await, [0; 0]);
    run(&mut slow, "COMMIT").await.unwrap();
    let third = waiting.await.unwrap();
    assert_eq!(reader.ids(100).await, [second, third]);
    reader.assert_quiet().await;
}
