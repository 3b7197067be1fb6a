//! Who owns a route: leases on the database's clock, and a fencing token for each bucket.
//!
//! An ownership is alive as long as its row in `relays` exists. Whoever finds a lease ended deletes the row; only then
//! are its buckets free. A renewal and that deletion meet at the row's lock, so one of them wins and the other sees it.
//! A relay has a row for each of its routes, so that a route that no longer renews loses itself and nothing else.
//!
//! Which event belongs to which route depends on all routes and their order. Two relays with different routes could
//! publish the same event, so one list of routes is in force: every acquisition locks the row that names it first, and
//! changes it only while no row of `relays` with another list owns a bucket.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Acquisition, Ownership, Routes, Selection, StoreError, StoreErrorKind};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _};
use uuid::Uuid;

use crate::SchemaName;
use crate::session::{Begin, CallError, Purpose, Sessions};

/// Buckets of a route, for ever.
pub(crate) const BUCKETS: usize = 64;

/// The longest time for a call on a few rows. A renewal has at most a third of its lease.
const DEADLINE: Duration = Duration::from_secs(5);

/// Without the row that is locked first, two relays could claim the events under two names at the same moment.
// tidy: a remedy for the operator, not a statement that is sent
const NO_ROW: &str = "the table config_in_force has lost its one row, without which ownership can't be decided; give it \
                      back with INSERT INTO config_in_force DEFAULT VALUES, in the outbox's schema";

#[derive(Debug)]
pub(crate) struct OwnershipSql {
    begin: Begin,
    expire: Arc<str>,
    make: Arc<str>,
    in_force: Arc<str>,
    others_at_work: Arc<str>,
    put_in_force: Arc<str>,
    lock: Arc<str>,
    live: Arc<str>,
    register: Arc<str>,
    take: Arc<str>,
    renew: Arc<str>,
    release: Arc<str>,
}

impl OwnershipSql {
    pub(crate) fn new(schema: &SchemaName) -> Self {
        Self {
            begin: Begin::new(schema),
            expire: schema.sql(include_str!("sql/expire_relays.sql")),
            make: schema.sql(include_str!("sql/make_buckets.sql")),
            in_force: schema.sql(include_str!("sql/lock_ownership.sql")),
            others_at_work: schema.sql(include_str!("sql/others_at_work.sql")),
            put_in_force: schema.sql(include_str!("sql/put_in_force.sql")),
            lock: schema.sql(include_str!("sql/lock_buckets.sql")),
            live: schema.sql(include_str!("sql/live_owners.sql")),
            register: schema.sql(include_str!("sql/register_relay.sql")),
            take: schema.sql(include_str!("sql/take_buckets.sql")),
            renew: schema.sql(include_str!("sql/renew.sql")),
            release: schema.sql(include_str!("sql/release.sql")),
        }
    }
}

pub(crate) async fn acquire(
    sessions: &Sessions,
    sql: &OwnershipSql,
    relay_name: &str,
    selection: &Selection,
    lease: Duration,
) -> Result<Acquisition, StoreError> {
    let (owner, route) = (Uuid::new_v4(), selection.name());
    let attempt = async {
        let mut session = sessions.open_for(Purpose::Ownership).await?;
        session.begin(&sql.begin, DEADLINE).await?;
        session.connection().execute(sqlx::query(AssertSqlSafe(&*sql.expire)).persistent(false)).await?;
        session.connection().execute(sqlx::raw_sql("COMMIT")).await?;
        session.begin(&sql.begin, DEADLINE).await?;
        let connection = session.connection();
        let fingerprint = match put_in_force(connection, sql, selection.routes()).await? {
            InForce::Ours(fingerprint) => fingerprint,
            InForce::Others(in_force) => {
                session.roll_back().await?;
                return Ok(Acquisition::OtherRoutes { in_force });
            }
        };
        let lock = || sqlx::query_scalar(AssertSqlSafe(&*sql.lock)).persistent(false).bind(route);
        let mut owners: Vec<Option<Uuid>> = lock().fetch_all(&mut *connection).await?;
        if owners.is_empty() {
            connection.execute(sqlx::query(AssertSqlSafe(&*sql.make)).persistent(false).bind(route)).await?;
            owners = lock().fetch_all(&mut *connection).await?;
        }
        let known: Vec<Uuid> = owners.iter().flatten().copied().collect();
        let live: i64 = sqlx::query_scalar(AssertSqlSafe(&*sql.live))
            .persistent(false)
            .bind(known)
            .fetch_one(&mut *connection)
            .await?;
        if owners.len() < BUCKETS || live > 0 {
            session.roll_back().await?;
            return Ok(Acquisition::Taken);
        }
        let register = sqlx::query(AssertSqlSafe(&*sql.register))
            .persistent(false)
            .bind(owner)
            .bind(relay_name)
            .bind(lease.as_secs_f64())
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(fingerprint);
        connection.execute(register).await?;
        let taken: Vec<(i16, i64)> = sqlx::query_as(AssertSqlSafe(&*sql.take))
            .persistent(false)
            .bind(route)
            .bind(owner)
            .fetch_all(&mut *connection)
            .await?;
        let tokens = tokens(&taken)?;
        session.commit().await?;
        Ok(Acquisition::Owned(Ownership { selection: selection.clone(), owner, lease, tokens }))
    };
    sessions.within("claiming the route", DEADLINE, attempt).await
}

/// Whose routes are in force.
enum InForce {
    /// Ours, with their fingerprint; they stay so until the transaction ends, and beyond when it takes a bucket.
    Ours(String),
    /// Those of relays at work; `None` when they can't be read.
    Others(Option<Routes>),
}

async fn put_in_force(
    connection: &mut PgConnection,
    sql: &OwnershipSql,
    routes: &Routes,
) -> Result<InForce, CallError> {
    let unwritable = |error: serde_json::Error| StoreError::new(StoreErrorKind::Failed, error.to_string());
    let text = serde_json::to_string(routes).map_err(unwritable)?;
    let in_force: Option<(Option<String>, Option<String>, String)> = sqlx::query_as(AssertSqlSafe(&*sql.in_force))
        .persistent(false)
        .bind(&text)
        .fetch_optional(&mut *connection)
        .await?;
    let Some((in_force, their_text, ours)) = in_force else {
        return Err(StoreError::new(StoreErrorKind::Unprepared, NO_ROW).into());
    };
    // Asked also when ours is in force already: whatever has become of the row, nobody else may be at work.
    let others: bool = sqlx::query_scalar(AssertSqlSafe(&*sql.others_at_work))
        .persistent(false)
        .bind(&ours)
        .fetch_one(&mut *connection)
        .await?;
    if others {
        return Ok(InForce::Others(their_text.and_then(|text| serde_json::from_str(&text).ok())));
    }
    if in_force.as_deref() != Some(&ours) {
        let put = sqlx::query(AssertSqlSafe(&*sql.put_in_force)).persistent(false).bind(&ours).bind(&text);
        connection.execute(put).await?;
    }
    Ok(InForce::Ours(ours))
}

fn tokens(taken: &[(i16, i64)]) -> Result<Arc<[i64]>, CallError> {
    let mut tokens = [0; BUCKETS];
    for (bucket, token) in taken {
        if let Some(slot) = usize::try_from(*bucket).ok().and_then(|bucket| tokens.get_mut(bucket)) {
            *slot = *token;
        }
    }
    if taken.len() != BUCKETS {
        let detail = format!("the table buckets must have {BUCKETS} rows for a route, it has {}", taken.len());
        return Err(StoreError::new(StoreErrorKind::Failed, detail).into());
    }
    Ok(tokens.into())
}

pub(crate) async fn renew(sessions: &Sessions, sql: &OwnershipSql, ownership: &Ownership) -> Result<bool, StoreError> {
    // Two more are left before the lease ends.
    let deadline = DEADLINE.min(ownership.lease / 3);
    let renewal = async {
        let mut session = sessions.open_for(Purpose::Ownership).await?;
        session.begin(&sql.begin, deadline).await?;
        let renew = sqlx::query(AssertSqlSafe(&*sql.renew))
            .persistent(false)
            .bind(ownership.owner)
            .bind(ownership.lease.as_secs_f64());
        let rows = session.connection().execute(renew).await?.rows_affected();
        session.commit().await?;
        Ok(rows > 0)
    };
    sessions.within("renewing the lease", deadline, renewal).await
}

pub(crate) async fn release(sessions: &Sessions, sql: &OwnershipSql, ownership: &Ownership) -> Result<(), StoreError> {
    let release = async {
        let mut session = sessions.open_for(Purpose::Ownership).await?;
        session.begin(&sql.begin, DEADLINE).await?;
        let release =
            sqlx::query(AssertSqlSafe(&*sql.release)).persistent(false).bind(ownership.route()).bind(ownership.owner);
        session.connection().execute(release).await?;
        session.commit().await
    };
    sessions.within("giving the route back", DEADLINE, release).await
}
