//! Who owns a route: leases on the database's clock, and a fencing token for each bucket.
//!
//! An ownership is alive as long as its row in `relays` exists. Whoever finds a lease ended deletes the row; only then
//! are its buckets free. A renewal and that deletion meet at the row's lock, so one of them wins and the other sees it.
//! A relay has a row for each of its routes, so that a route that no longer renews loses itself and nothing else.
//! The rows of a route are its members, with buckets or without: how many there are tells how many buckets each should
//! own, and who has too many gives some back.
//!
//! Which event belongs to which route depends on all routes and their order. Two relays with different routes could
//! publish the same event, so one list of routes is in force: every acquisition locks the row that names it first, and
//! changes it only while no row of `relays` with another list owns a bucket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Acquisition, Buckets, Ownership, Renewal, Routes, Selection, Standing, StoreError, StoreErrorKind, fair_share,
};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _};
use uuid::Uuid;

use crate::SchemaName;
use crate::session::{Begin, CallError, Purpose, Sessions};

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
    has_buckets: Arc<str>,
    register: Arc<str>,
    lock_relay: Arc<str>,
    standing: Arc<str>,
    take: Arc<str>,
    renew: Arc<str>,
    give_back: Arc<str>,
    release: Arc<str>,
    forget_deaths: Arc<str>,
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
            has_buckets: schema.sql(include_str!("sql/has_buckets.sql")),
            register: schema.sql(include_str!("sql/register_relay.sql")),
            lock_relay: schema.sql(include_str!("sql/lock_relay.sql")),
            standing: schema.sql(include_str!("sql/standing.sql")),
            take: schema.sql(include_str!("sql/take_buckets.sql")),
            renew: schema.sql(include_str!("sql/renew.sql")),
            give_back: schema.sql(include_str!("sql/give_back.sql")),
            release: schema.sql(include_str!("sql/release.sql")),
            forget_deaths: schema.sql(include_str!("sql/forget_deaths.sql")),
        }
    }
}

/// Joins the relays of a route as a new member and takes a share of it.
pub(crate) async fn acquire(
    sessions: &Sessions,
    sql: &OwnershipSql,
    relay_name: &str,
    selection: &Selection,
    lease: Duration,
) -> Result<Acquisition, StoreError> {
    let joining = Ownership {
        selection: selection.clone(),
        owner: Uuid::new_v4(),
        lease,
        tokens: BTreeMap::new(),
        deaths: BTreeMap::new(),
    };
    sessions.within("joining the route", DEADLINE, take(sessions, sql, joining, Some(relay_name))).await
}

/// Takes what is missing to a member's share.
pub(crate) async fn take_more(
    sessions: &Sessions,
    sql: &OwnershipSql,
    ownership: &Ownership,
) -> Result<Acquisition, StoreError> {
    sessions.within("taking more of the route", DEADLINE, take(sessions, sql, ownership.clone(), None)).await
}

/// `joins` is the name of a relay that has no row yet.
async fn take(
    sessions: &Sessions,
    sql: &OwnershipSql,
    mut ownership: Ownership,
    joins: Option<&str>,
) -> Result<Acquisition, CallError> {
    let (route, owner) = (ownership.route().to_owned(), ownership.owner);
    // A member has a lease to renew: that must not wait behind a take that waits for another relay's.
    let purpose = if joins.is_some() { Purpose::Ownership } else { Purpose::Work };
    let mut session = sessions.open_for(purpose).await?;
    session.begin(&sql.begin, DEADLINE).await?;
    session.connection().execute(sqlx::query(AssertSqlSafe(&*sql.expire)).persistent(false)).await?;
    session.connection().execute(sqlx::raw_sql("COMMIT")).await?;
    session.begin(&sql.begin, DEADLINE).await?;
    let connection = session.connection();
    let fingerprint = match put_in_force(connection, sql, ownership.selection.routes()).await? {
        InForce::Ours(fingerprint) => fingerprint,
        InForce::Others(in_force) => {
            session.roll_back().await?;
            return Ok(Acquisition::OtherRoutes { in_force });
        }
    };
    if let Some(name) = joins {
        make_buckets(connection, sql, &route).await?;
        let register = sqlx::query(AssertSqlSafe(&*sql.register))
            .persistent(false)
            .bind(owner)
            .bind(name)
            .bind(ownership.lease.as_secs_f64())
            .bind(env!("CARGO_PKG_VERSION"))
            .bind(fingerprint)
            .bind(&route);
        connection.execute(register).await?;
    } else {
        let lock = sqlx::query_scalar(AssertSqlSafe(&*sql.lock_relay)).persistent(false).bind(owner);
        let is_member: Option<bool> = lock.fetch_optional(&mut *connection).await?;
        if is_member.is_none() {
            session.roll_back().await?;
            return Ok(Acquisition::Lost);
        }
    }
    let (relays, before): (i64, i64) =
        sqlx::query_as(AssertSqlSafe(&*sql.standing)).persistent(false).bind(owner).fetch_one(&mut *connection).await?;
    let missing = fair_share(count(relays), count(before)).saturating_sub(ownership.tokens.len());
    let taken: Vec<(i16, i64, i32)> = sqlx::query_as(AssertSqlSafe(&*sql.take))
        .persistent(false)
        .bind(&route)
        .bind(owner)
        .bind(numbers(&ownership))
        .bind(i64::try_from(missing).unwrap_or(0))
        .fetch_all(&mut *connection)
        .await?;
    session.commit().await?;
    for (bucket, token, deaths) in taken {
        // 0..=63, and not negative, by constraints.
        let (Ok(bucket), Ok(deaths)) = (u16::try_from(bucket), u32::try_from(deaths)) else { continue };
        ownership.tokens.insert(bucket, token);
        if deaths > 0 {
            ownership.deaths.insert(bucket, deaths);
        }
    }
    Ok(Acquisition::Owned(ownership))
}

/// Behind the lock on `config_in_force`, so nobody else makes them.
async fn make_buckets(connection: &mut PgConnection, sql: &OwnershipSql, route: &str) -> Result<(), CallError> {
    let made = sqlx::query_scalar(AssertSqlSafe(&*sql.has_buckets)).persistent(false).bind(route);
    let made: bool = made.fetch_one(&mut *connection).await?;
    if !made {
        connection.execute(sqlx::query(AssertSqlSafe(&*sql.make)).persistent(false).bind(route)).await?;
    }
    Ok(())
}

fn count(rows: i64) -> usize {
    usize::try_from(rows).unwrap_or(0)
}

/// The buckets of an ownership, as the database has them.
fn numbers(ownership: &Ownership) -> Vec<i16> {
    ownership.tokens.keys().filter_map(|bucket| i16::try_from(*bucket).ok()).collect()
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

pub(crate) async fn renew(
    sessions: &Sessions,
    sql: &OwnershipSql,
    ownership: &Ownership,
) -> Result<Renewal, StoreError> {
    // Two more are left before the lease ends.
    let deadline = DEADLINE.min(ownership.lease / 3);
    let renewal = async {
        let mut session = sessions.open_for(Purpose::Ownership).await?;
        session.begin(&sql.begin, deadline).await?;
        let standing: Option<(i64, i64, i64)> = sqlx::query_as(AssertSqlSafe(&*sql.renew))
            .persistent(false)
            .bind(ownership.owner)
            .bind(ownership.lease.as_secs_f64())
            .bind(numbers(ownership))
            .fetch_optional(session.connection())
            .await?;
        session.commit().await?;
        let standing = standing.map(|(relays, before, free)| {
            let relays = count(relays);
            Standing { relays, share: fair_share(relays, count(before)), free: count(free) }
        });
        Ok(standing.map_or(Renewal::Lost, Renewal::Held))
    };
    sessions.within("renewing the lease", deadline, renewal).await
}

pub(crate) async fn give_back(
    sessions: &Sessions,
    sql: &OwnershipSql,
    ownership: &Ownership,
    buckets: Buckets,
) -> Result<(), StoreError> {
    let part = ownership.only(buckets);
    if part.tokens.is_empty() {
        return Ok(());
    }
    let give_back = async {
        let mut session = sessions.open_for(Purpose::Work).await?;
        session.begin(&sql.begin, DEADLINE).await?;
        let give_back = sqlx::query(AssertSqlSafe(&*sql.give_back))
            .persistent(false)
            .bind(part.route())
            .bind(part.owner)
            .bind(numbers(&part))
            .bind(part.tokens.values().copied().collect::<Vec<i64>>());
        session.connection().execute(give_back).await?;
        session.commit().await
    };
    sessions.within("giving a share of the route back", DEADLINE, give_back).await
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

pub(crate) async fn forget_deaths(
    sessions: &Sessions,
    sql: &OwnershipSql,
    ownership: &Ownership,
    buckets: Buckets,
) -> Result<(), StoreError> {
    let outlived = ownership.only(buckets);
    let forget = async {
        let mut session = sessions.open_for(Purpose::Work).await?;
        session.begin(&sql.begin, DEADLINE).await?;
        let forget = sqlx::query(AssertSqlSafe(&*sql.forget_deaths))
            .persistent(false)
            .bind(ownership.route())
            .bind(ownership.owner)
            .bind(numbers(&outlived));
        session.connection().execute(forget).await?;
        session.commit().await
    };
    sessions.within("forgetting the deaths of earlier owners", DEADLINE, forget).await
}
