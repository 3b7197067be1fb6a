//! Ownership and the fence when several want the same at once; delays on the database's clock; the relay's rights.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Acquisition, Buckets, Change, Claimed, Ownership, Selection, Store, WriteBack, WriteBackStatus};
use outbox_pg::{PgConfig, PgStore, SchemaName, migrate};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::task::JoinSet;

use crate::database::{Database, run};
use crate::lane::{ROUTE, Reader, forward, ids, insert, until};

const LEASE: Duration = Duration::from_secs(600);
const WAITING: &str = "SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
                       WHERE NOT l.granted AND a.datname = current_database())";

fn store(database: &Database) -> Arc<PgStore> {
    Arc::new(PgStore::new(&PgConfig::new(database.url()), "test").unwrap())
}

fn change(event: &Claimed, change: Change) -> WriteBack {
    WriteBack {
        id: event.envelope.id,
        event_id: event.envelope.event_id,
        bucket: event.bucket,
        attempts: 1,
        crashes: 0,
        kind: "failed",
        error: "no".to_owned(),
        change,
    }
}

async fn end_leases(conn: &mut PgConnection) {
    run(conn, "UPDATE outbox.relays SET lease_end = clock_timestamp() - interval '1 millisecond'").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_join_at_once_one_gets_the_route() {
    let Some(database) = Database::migrated("claims").await else { return };
    let stores: Vec<_> = (0..8).map(|_| store(&database)).collect();
    let mut conn = database.connect().await;
    let mut last_token = 0;
    // The first round makes the buckets too, the third finds leases that have ended.
    for round in 0..6 {
        let mut claims = JoinSet::new();
        for store in &stores {
            let store = Arc::clone(store);
            claims.spawn(async move { store.acquire(&Selection::everything(ROUTE), LEASE).await.unwrap() });
        }
        let mut members = Vec::new();
        for claim in claims.join_all().await {
            let Acquisition::Owned(ownership) = claim else { panic!("{claim:?}") };
            members.push(ownership);
        }
        // Whoever came first took what was free; the others wait for their share.
        let owners: Vec<&Ownership> = members.iter().filter(|member| !member.tokens.is_empty()).collect();
        let [owner] = owners.as_slice() else { panic!("round {round}: {owners:?}") };
        let first = owner.tokens[&0];
        assert!(owner.tokens.len() == 64 && first > last_token, "{owner:?}");
        assert!(owner.tokens.values().all(|token| *token == first), "{owner:?}");
        last_token = first;
        assert!(stores[3].renew(owner).await.unwrap().is_held());
        if round % 2 == 0 {
            for member in &members {
                stores[1].release(member).await.unwrap();
            }
        } else {
            end_leases(&mut conn).await;
        }
    }
}

#[tokio::test]
async fn a_renewal_under_way_decides_a_take_over() {
    let Some(database) = Database::migrated("renewals").await else { return };
    let (first, second) = (store(&database), store(&database));
    let (mut renewing, mut watch) = (database.connect().await, database.connect().await);
    let owner = first.acquire(&Selection::everything(ROUTE), LEASE).await.unwrap().owned().unwrap();
    for commits in [true, false] {
        end_leases(&mut watch).await;
        let renew = "BEGIN; UPDATE outbox.relays SET lease_end = clock_timestamp() + interval '1 hour'";
        run(&mut renewing, renew).await.unwrap();
        let claim = tokio::spawn({
            let second = Arc::clone(&second);
            async move { second.acquire(&Selection::everything(ROUTE), LEASE).await.unwrap().owned() }
        });
        until(&mut watch, WAITING).await;
        run(&mut renewing, if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        assert_eq!(claim.await.unwrap().is_none(), commits);
        assert_eq!(first.renew(&owner).await.unwrap().is_held(), commits, "the one who lost the route is told");
    }
}

#[tokio::test]
async fn a_write_back_that_waits_for_a_take_over_sees_the_new_token() {
    let Some(database) = Database::migrated("fence").await else { return };
    let (mut taking, mut watch) = (database.connect().await, database.connect().await);
    for aggregate in ["a", "b", "c"] {
        insert(&mut watch, aggregate).await;
    }
    let mut reader = Reader::open(database.url()).await;
    let events = reader.read(10).await.events;
    for (commits, expected) in [(false, WriteBackStatus::Done), (true, WriteBackStatus::Fenced)] {
        run(&mut taking, "BEGIN; UPDATE outbox.buckets SET token = token + 1").await.unwrap();
        let changes = [
            change(&events[0], Change::Retry { delay: Duration::from_secs(1) }),
            change(&events[1], Change::Retry { delay: Duration::from_secs(1) }),
            change(&events[2], Change::Dead),
        ];
        let write = tokio::spawn({
            let (store, ownership) = (Arc::clone(&reader.store), reader.ownership.clone());
            let changes = if commits { changes.to_vec() } else { changes[..2].to_vec() };
            async move { store.write_back(&ownership, &changes).await.unwrap() }
        });
        until(&mut watch, WAITING).await;
        run(&mut taking, if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        let statuses = write.await.unwrap();
        assert!(statuses.iter().all(|status| *status == expected), "{statuses:?}");
    }
    let counts = "SELECT (SELECT count(*) FROM outbox.events) = 3 AND (SELECT count(*) FROM outbox.retries) = 2 \
                  AND (SELECT count(*) FROM outbox.dead_letters) = 0";
    until(&mut watch, counts).await;
    // And the other way round: a take-over does not wait for a write-back, it comes again.
    let locked = "BEGIN; SELECT bucket FROM outbox.buckets WHERE bucket = 5 FOR SHARE";
    run(&mut taking, locked).await.unwrap();
    end_leases(&mut watch).await;
    let owned = reader.store.acquire(&Selection::everything(ROUTE), LEASE).await.unwrap().owned().unwrap();
    assert_eq!(owned.buckets(), Buckets::ALL.without(Buckets::NONE.with(5)));
    run(&mut taking, "COMMIT").await.unwrap();
    let owned = reader.store.take_more(&owned).await.unwrap().owned().unwrap();
    assert_eq!(owned.buckets(), Buckets::ALL);
}

#[tokio::test]
async fn delays_and_leases_count_on_the_databases_clock() {
    let Some(database) = Database::migrated("clock").await else { return };
    let mut conn = database.connect().await;
    insert(&mut conn, "a").await;
    let mut reader = Reader::open(database.url()).await;
    let events = reader.read(10).await.events;
    for seconds in [0, 1, 3600] {
        let delay = Duration::from_secs(seconds);
        let before: f64 = clock(&mut conn, "clock_timestamp()").await;
        reader.store.write_back(&reader.ownership, &[change(&events[0], Change::Retry { delay })]).await.unwrap();
        let after: f64 = clock(&mut conn, "clock_timestamp()").await;
        let due: f64 = clock(&mut conn, "(SELECT next_attempt_at FROM outbox.retries)").await;
        let delay = delay.as_secs_f64();
        assert!((before + delay..=after + delay).contains(&due), "{before} + {delay} <= {due} <= {after} + {delay}");
    }
    // A stranger's row says otherwise than any clock of the relay: what is due is the database's to say.
    for (when, is_due) in [("-infinity", true), ("infinity", false), ("294276-01-01", false), ("1970-01-01", true)] {
        run(&mut conn, &format!("UPDATE outbox.retries SET next_attempt_at = '{when}'")).await.unwrap();
        let mut lane = reader.store_lane().await;
        let again = lane.read(forward(10)).await.unwrap().events;
        let due_in = again[0].retrying.unwrap().due_in;
        assert_eq!(due_in.is_zero(), is_due, "{when}: {due_in:?}");
    }
    let before = clock(&mut conn, "clock_timestamp()").await;
    assert!(reader.store.renew(&reader.ownership).await.unwrap().is_held());
    let end = clock(&mut conn, "(SELECT lease_end FROM outbox.relays)").await;
    let after = clock(&mut conn, "clock_timestamp()").await;
    assert!((before + 600.0..=after + 600.0).contains(&end));
}

async fn clock(conn: &mut PgConnection, time: &str) -> f64 {
    let sql = AssertSqlSafe(format!("SELECT extract(epoch FROM {time})::float8"));
    sqlx::query_scalar(sql).persistent(false).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn the_rights_of_the_relays_role_suffice() {
    let Some(database) = Database::migrated("relay_rights").await else { return };
    let mut conn = database.connect().await;
    run(&mut conn, &migrate::roles_sql(&SchemaName::default())).await.unwrap();
    let role = format!("relay_{}", database.name());
    // A default that the store must not depend on.
    let create = format!(
        "CREATE ROLE \"{role}\" LOGIN IN ROLE outbox_relay; \
         ALTER ROLE \"{role}\" SET default_transaction_isolation = 'serializable'"
    );
    run(&mut conn, &create).await.unwrap();
    let mut written = Vec::new();
    for aggregate in ["a", "b", "c"] {
        written.push(insert(&mut conn, aggregate).await);
    }
    let url = database.url().replace("postgres://postgres", &format!("postgres://{role}"));
    assert!(url.contains(&role));
    let mut reader = Reader::open(&url).await;
    let events = reader.read(10).await.events;
    assert_eq!(ids(&events), written);
    let changes = [change(&events[0], Change::Retry { delay: Duration::ZERO }), change(&events[1], Change::Dead)];
    let statuses = reader.store.write_back(&reader.ownership, &changes).await.unwrap();
    assert_eq!(statuses, [WriteBackStatus::Done; 2]);
    let waiting = [(events[0].envelope.id, events[0].envelope.event_id)];
    reader.store.retry_states(ROUTE, &waiting).await.unwrap();
    reader.settle(&events).await;
    reader.assert_quiet().await;
    assert!(reader.store.renew(&reader.ownership).await.unwrap().is_held());
    reader.release().await;
    reader.store.close().await;
    drop(reader);
    let drop_role = format!("DROP OWNED BY \"{role}\"; DROP ROLE \"{role}\"");
    run(&mut conn, &drop_role).await.unwrap();
}
