//! What a call that was given up leaves behind on the server.

use outbox_testkit::services::postgres::{TestDb, test_database_or_skip};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use outbox_core::Selection;
use outbox_core::StoreErrorKind;

use super::*;
use crate::config::PgConfig;
use crate::migrate;
use crate::ownership::{self, OwnershipSql};
use crate::session::Pool;

/// The deadline of the tests' calls.
const SHORT: Duration = Duration::from_millis(400);

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event_type = 'Lock'";

async fn migrated(name: &str) -> Option<(TestDb, PgConnection)> {
    let database = test_database_or_skip(name)?;
    let mut conn = PgConnection::connect(&database.url).await.unwrap();
    migrate::up(&mut conn, &SchemaName::default()).await.unwrap();
    Some((database, conn))
}

fn sessions(database: &TestDb, shared: u32) -> Arc<Sessions> {
    let options: PgConnectOptions = PgConfig::new(&database.url).connect_options().unwrap();
    let pool = Pool::new(options);
    pool.share(shared);
    Sessions::of_route(&pool)
}

async fn acquire(sessions: &Sessions, sql: &OwnershipSql, lease: Duration) -> Ownership {
    let route = Selection::everything("orders");
    ownership::acquire(sessions, sql, "test", &route, lease).await.unwrap().owned().unwrap()
}

async fn waiting(conn: &mut PgConnection) -> i64 {
    sqlx::query_scalar(WAITING).fetch_one(conn).await.unwrap()
}

async fn no_one_waits(conn: &mut PgConnection) {
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    while waiting(conn).await > 0 {
        assert!(tokio::time::Instant::now() < end, "a backend still waits for the lock");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn calls_that_are_given_up_do_not_pile_up_on_the_server() {
    let Some((database, mut conn)) = migrated("pile_up").await else { return };
    let mut watch = PgConnection::connect(&database.url).await.unwrap();
    let sessions = sessions(&database, 2);
    let sql = SettleSql { deadline: SHORT, ..SettleSql::new(&SchemaName::default()) };
    let event_id = EventId::from_uuid(Uuid::now_v7());
    let (plain, retried) =
        ([Confirmed { id: 1, event_id, retried: false }], [Confirmed { id: 1, event_id, retried: true }]);
    conn.execute("BEGIN; LOCK TABLE outbox.events IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut most = 0;
    for _ in 0..8 {
        let given_up = settle(&sessions, &sql, &plain).await.unwrap_err();
        assert_eq!(given_up.kind(), StoreErrorKind::Unavailable, "{given_up}");
        settle(&sessions, &sql, &retried).await.unwrap_err();
        retry_states(&sessions, &sql, &[(1, event_id)]).await.unwrap_err();
        most = most.max(waiting(&mut watch).await);
    }
    // The first settle waits on without a limit; the server ends each later call at about the time it is given up.
    assert!(most <= 3, "{most} backends wait after 24 calls");
    conn.execute("COMMIT").await.unwrap();
    settle(&sessions, &sql, &plain).await.unwrap();
    assert!(!sql.in_doubt.load(Ordering::Relaxed), "a settle is one message again");
    no_one_waits(&mut watch).await;
}

#[tokio::test]
async fn a_renewal_is_given_up_while_the_lease_has_time_for_two_more() {
    let Some((database, mut conn)) = migrated("slow_renewal").await else { return };
    let mut watch = PgConnection::connect(&database.url).await.unwrap();
    let sessions = sessions(&database, 0);
    let sql = OwnershipSql::new(&SchemaName::default());
    let lease = Duration::from_secs(3);
    let owned = acquire(&sessions, &sql, lease).await;
    conn.execute("BEGIN; LOCK TABLE outbox.relays IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let began = tokio::time::Instant::now();
    let given_up = ownership::renew(&sessions, &sql, &owned).await.unwrap_err();
    assert_eq!(given_up.kind(), StoreErrorKind::Unavailable);
    assert!(began.elapsed() < lease, "given up after {:?}", began.elapsed());
    no_one_waits(&mut watch).await;
    conn.execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_renewal_never_waits_for_other_work() {
    let Some((database, _)) = migrated("reserved").await else { return };
    let sessions = sessions(&database, 0);
    let sql = OwnershipSql::new(&SchemaName::default());
    let lease = Duration::from_secs(60);
    let owned = acquire(&sessions, &sql, lease).await;
    let (_read, _settle) = (sessions.open().await.unwrap(), sessions.open().await.unwrap());
    let third = tokio::time::timeout(SHORT, sessions.open()).await;
    assert!(third.is_err(), "no more than was allowed");
    assert!(ownership::renew(&sessions, &sql, &owned).await.unwrap().is_held());
    ownership::release(&sessions, &sql, &owned).await.unwrap();
}

#[tokio::test]
async fn a_route_that_hangs_takes_no_connection_from_another() {
    let Some((database, _)) = migrated("budgets").await else { return };
    let pool = Pool::new(PgConfig::new(&database.url).connect_options().unwrap());
    pool.share(1);
    let (hanging, other) = (Sessions::of_route(&pool), Sessions::of_route(&pool));
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(hanging.open().await.unwrap());
    }
    assert!(tokio::time::timeout(SHORT, hanging.open()).await.is_err(), "two of its own and the shared one");
    let _both = (other.open().await.unwrap(), other.open().await.unwrap());
    assert!(tokio::time::timeout(SHORT, other.open()).await.is_err(), "no more than was allowed");
    let sql = OwnershipSql::new(&SchemaName::default());
    let owned = acquire(&hanging, &sql, Duration::from_secs(60)).await;
    assert!(ownership::renew(&hanging, &sql, &owned).await.unwrap().is_held());
    held.pop().unwrap().roll_back().await.unwrap();
    other.open().await.unwrap().keep();
}

#[test]
fn a_text_in_ascii_keeps_what_it_can() {
    let check = |error: &str, expected: &str| {
        let change = WriteBack {
            id: 1,
            event_id: EventId::from_uuid(Uuid::nil()),
            bucket: 0,
            attempts: 1,
            crashes: 0,
            kind: "failed",
            error: error.to_owned(),
            change: Change::Dead,
        };
        assert_eq!(in_ascii(&change).error, expected);
    };
    check("plain", "plain");
    check("zażółć …", "za\\u{17c}\\u{f3}\\u{142}\\u{107} \\u{2026}");
    check(&"ż".repeat(2000), &"\\u{17c}".repeat(2000)[..MAX_ERROR_BYTES]);
}

#[test]
fn ids_that_lie_close_together_are_one_range() {
    let check = |ids: &[i64], expected| assert_eq!(close_together(ids), expected, "{ids:?}");
    check(&[], None);
    check(&[7], Some((7, 7)));
    check(&[9, 7], Some((7, 9)));
    check(&[7, 11], None);
    check(&[10, 1, 2, 3, 4], Some((1, 10)));
    check(&[11, 1, 2, 3, 4], None);
    check(&[i64::MIN, i64::MAX], None);
}
