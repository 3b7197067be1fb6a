//! From a row to a claimed event. A row that can't be read as an event becomes one with a defect, never an error:
//! one bad row must not hold up the others.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outbox_core::{Claimed, Envelope, EventId, Payload, Retrying};
use sqlx::postgres::PgRow;
use sqlx::{Row as _, ValueRef as _};
use uuid::Uuid;

/// PostgreSQL counts microseconds from 2000-01-01.
const SECONDS_1970_TO_2000: u64 = 946_684_800;

/// Longer waits mean that an operator wrote `infinity` or the like; the next refresh looks again long before.
const MAX_DUE_IN: Duration = Duration::from_secs(365 * 24 * 3600);

/// The columns of `read_forward.sql`, `read_forward_sized.sql` and `read_keys.sql` by place: a name would be looked up anew in each row.
mod column {
    pub(super) const ID: usize = 0;
    pub(super) const EVENT_ID: usize = 1;
    pub(super) const AGGREGATE_TYPE: usize = 2;
    pub(super) const AGGREGATE_ID: usize = 3;
    pub(super) const EVENT_TYPE: usize = 4;
    pub(super) const PAYLOAD: usize = 5;
    pub(super) const PAYLOAD_BYTES: usize = 6;
    pub(super) const CONTENT_TYPE: usize = 7;
    pub(super) const HEADERS: usize = 8;
    pub(super) const CREATED_AT: usize = 9;
    pub(super) const BUCKET: usize = 10;
    pub(super) const KEY: usize = 11;
    pub(super) const ATTEMPTS: usize = 12;
    pub(super) const PAGE: usize = 16;
}

/// A row's place in its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It came without its body: it only tells that there is more.
    Beyond,
    Within,
    /// It reaches the limit of bytes: rows after it, if any, were left out.
    Last,
}

pub(crate) fn place(row: &PgRow) -> Result<Place, sqlx::Error> {
    Ok(match row.try_get::<i32, _>(column::PAGE)? {
        0 => Place::Beyond,
        1 => Place::Within,
        _ => Place::Last,
    })
}

/// Reads a row of one of these statements, one with its body.
pub(crate) fn claimed(row: &PgRow) -> Result<Claimed, sqlx::Error> {
    let mut defects = Vec::new();
    let mut text = |place: usize, name: &str| -> Result<Option<String>, sqlx::Error> {
        let Some(bytes) = raw(row, place)? else { return Ok(None) };
        Ok(Some(String::from_utf8(bytes).unwrap_or_else(|error| {
            defects.push(format!("{name} is not valid UTF-8"));
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        })))
    };
    let aggregate_type = text(column::AGGREGATE_TYPE, "aggregate_type")?.unwrap_or_default();
    let aggregate_id = text(column::AGGREGATE_ID, "aggregate_id")?.unwrap_or_default();
    let event_type = text(column::EVENT_TYPE, "event_type")?.unwrap_or_default();
    let content_type = text(column::CONTENT_TYPE, "content_type")?;
    let payload = match (raw(row, column::PAYLOAD)?, raw(row, column::PAYLOAD_BYTES)?) {
        (Some(json), None) => Payload::Json(json.into()),
        (None, Some(data)) => Payload::Bytes { data: data.into(), content_type },
        _ => {
            defects.push("exactly one of payload and payload_bytes must be set".to_owned());
            Payload::Json(Bytes::new())
        }
    };
    let headers = match raw(row, column::HEADERS)? {
        None => BTreeMap::new(),
        // JSON null is what some drivers write for none.
        Some(json) => {
            serde_json::from_slice::<Option<_>>(&json).map(Option::unwrap_or_default).unwrap_or_else(|error| {
                // Only where: what the error says may hold the value itself, of any length.
                let (line, column) = (error.line(), error.column());
                defects.push(format!("headers must be a flat JSON object of strings: line {line}, column {column}"));
                BTreeMap::new()
            })
        }
    };
    let created_at = timestamp(row, column::CREATED_AT)?.unwrap_or_else(|| {
        defects.push("created_at is not a finite time".to_owned());
        UNIX_EPOCH
    });
    let bucket: i16 = row.try_get(column::BUCKET)?;
    let key: i64 = row.try_get(column::KEY)?;
    Ok(Claimed {
        envelope: Envelope {
            id: row.try_get(column::ID)?,
            event_id: EventId::from_uuid(row.try_get::<Uuid, _>(column::EVENT_ID)?),
            aggregate_type,
            aggregate_id,
            event_type,
            payload,
            headers,
            created_at,
        },
        key: key.cast_unsigned(),
        bucket: u16::try_from(bucket).unwrap_or_default(), // 0..=63 by the column's own definition
        retrying: retrying(row, column::ATTEMPTS)?,
        defect: (!defects.is_empty()).then(|| defects.join("; ")),
    })
}

/// The retry row beside an event, from the four columns from this place on: attempts, crashes, blocked, `due_in`.
pub(crate) fn retrying(row: &PgRow, place: usize) -> Result<Option<Retrying>, sqlx::Error> {
    let Some(attempts) = row.try_get::<Option<i32>, _>(place)? else { return Ok(None) };
    let crashes: i32 = row.try_get(place + 1)?;
    let blocked = row.try_get(place + 2)?;
    let due_in: Option<f64> = row.try_get(place + 3)?;
    let due_in = match due_in {
        Some(seconds) if seconds > 0.0 => Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DUE_IN).min(MAX_DUE_IN),
        _ => Duration::ZERO,
    };
    let count = |number| u32::try_from(number).unwrap_or(0); // not negative, by a constraint
    Ok(Some(Retrying { attempts: count(attempts), crashes: count(crashes), blocked, due_in }))
}

/// A column's bytes as they are in the binary format: text and json are their own text, bytea its own bytes.
fn raw(row: &PgRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    value.as_bytes().map(|bytes| Some(bytes.to_vec())).map_err(sqlx::Error::Decode)
}

/// A `timestamptz`: microseconds, the ends of the range standing for infinity. Date libraries panic on what this can
/// hold, hence by hand.
fn timestamp(row: &PgRow, column: usize) -> Result<Option<SystemTime>, sqlx::Error> {
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
    Ok(<[u8; 8]>::try_from(bytes).ok().map(i64::from_be_bytes).and_then(system_time))
}

fn system_time(micros: i64) -> Option<SystemTime> {
    if micros == i64::MAX || micros == i64::MIN {
        return None;
    }
    let epoch = UNIX_EPOCH + Duration::from_secs(SECONDS_1970_TO_2000);
    let distance = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_core::rfc3339_micros;

    #[test]
    fn times_of_the_whole_range() {
        let check = |micros, text: Option<&str>| assert_eq!(system_time(micros).map(rfc3339_micros).as_deref(), text);
        check(0, Some("2000-01-01T00:00:00.000000Z"));
        check(-1, Some("1999-12-31T23:59:59.999999Z"));
        check(9_223_371_331_199_999_999, Some("+294276-12-31T23:59:59.999999Z"));
        check(-211_813_488_000_000_000, Some("-4713-11-24T00:00:00.000000Z"));
        check(i64::MAX, None);
        check(i64::MIN, None);
    }
}
