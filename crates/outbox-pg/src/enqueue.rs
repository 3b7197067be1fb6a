//! Writes events in the caller's own transaction.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use outbox_core::{Event, EventId, InvalidEvent, Payload};
use sqlx::{AssertSqlSafe, PgConnection};
use thiserror::Error;
use uuid::Uuid;

use crate::SchemaName;

/// The most events in one statement of [`Outbox::enqueue_many`]: enough to make the round trips cheap (100 000 events
/// take 50), few enough that the server's arrays stay small beside its other memory.
const CHUNK_EVENTS: usize = 2000;

/// The most bytes in one statement of [`Outbox::enqueue_many`]; a larger event still goes alone. The server holds a
/// statement's parameters several times over, and its memory is shared with everybody else.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;

/// Writes events into the outbox of one schema. Cheap to clone; holds no connection.
///
/// Each call takes the connection on which the caller's transaction is open, so an event exists exactly when the
/// business data that it tells about does. A pool can't be passed:
///
/// ```compile_fail,E0308
/// # async fn shows(pool: sqlx::PgPool, event: outbox_core::NewEvent) {
/// outbox_pg::Outbox::default().enqueue(&pool, &event).await;
/// # }
/// ```
///
/// Enqueue **after** the statement that locks the aggregate (its `INSERT`, `UPDATE` or `SELECT … FOR UPDATE`): the
/// place in the order is taken here, and only the lock makes it agree with the order of the commits.
///
/// ```no_run
/// use outbox_core::{NewEvent, Payload};
/// use outbox_pg::Outbox;
///
/// # async fn shows(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::default();
/// let mut tx = pool.begin().await?;
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 17").execute(&mut *tx).await?;
/// let paid = NewEvent::new("order", "17", "order.paid", Payload::raw_json(r#"{"order":17}"#));
/// outbox.enqueue(&mut tx, &paid).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Outbox {
    schema: SchemaName,
    one: Arc<str>,
    many: Arc<str>,
}

/// Why an event was not written.
///
/// Neither `Debug` nor `Display` shows the event. The [`source`](std::error::Error::source) is the driver's error, whose
/// own `Debug` can hold the row.
#[derive(Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// An event breaks a rule. Nothing was sent: the transaction is as it was and can go on.
    #[error("event {index} is invalid")]
    Invalid {
        /// Its place in the call, from 0.
        index: usize,
        /// The rule.
        #[source]
        source: InvalidEvent,
    },
    /// PostgreSQL refused the values of an event, for example text that the database's encoding lacks.
    #[error("the database refused the values of an event: {message}")]
    Refused {
        /// What it said, without the values.
        message: String,
        /// The error.
        #[source]
        source: sqlx::Error,
    },
    /// The outbox's table is not there.
    #[error("schema \"{schema}\" holds no outbox of this version: run the migrations, or name the right schema")]
    Missing {
        /// The schema.
        schema: String,
        /// The error.
        #[source]
        source: sqlx::Error,
    },
    /// The role may not write events.
    #[error("this role may not write to the outbox: GRANT outbox_producer TO it, or the INSERT rights of that role")]
    Denied {
        /// The error.
        #[source]
        source: sqlx::Error,
    },
    /// Anything else, for example a lost connection. Whether the event was written is decided by the transaction.
    #[error("the event could not be written")]
    Database(#[from] sqlx::Error),
}

impl fmt::Debug for EnqueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { index, source } => {
                f.debug_struct("Invalid").field("index", index).field("source", source).finish()
            }
            Self::Refused { message, .. } => {
                f.debug_struct("Refused").field("message", message).finish_non_exhaustive()
            }
            Self::Missing { schema, source } => {
                f.debug_struct("Missing").field("schema", schema).field("source", &format_args!("{source}")).finish()
            }
            Self::Denied { source } => f.debug_struct("Denied").field("source", &format_args!("{source}")).finish(),
            Self::Database(source) => f.debug_tuple("Database").field(&format_args!("{source}")).finish(),
        }
    }
}

impl Outbox {
    /// The outbox in a schema; [`Outbox::default`] is the one in `outbox`.
    #[must_use]
    pub fn new(schema: SchemaName) -> Self {
        let one = schema.sql(include_str!("sql/enqueue.sql"));
        let many = schema.sql(include_str!("sql/enqueue_many.sql"));
        Self { schema, one, many }
    }

    /// The schema that it writes to.
    #[must_use]
    pub const fn schema(&self) -> &SchemaName {
        &self.schema
    }

    /// Writes one event on the caller's connection and returns its event id.
    ///
    /// Outside a transaction the event is committed at once, by itself: rarely what is meant.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] before anything is sent. After any other error PostgreSQL has failed the
    /// transaction: roll it back (or back to a savepoint).
    ///
    /// # Cancel safety
    /// Dropped half way, the event may or may not be part of the transaction: roll the transaction back.
    pub async fn enqueue<E: Event + ?Sized>(
        &self,
        conn: &mut PgConnection,
        event: &E,
    ) -> Result<EventId, EnqueueError> {
        let row = Row::encode(0, event)?;
        // A named statement if the connection caches statements: the application's choice, as for its own queries.
        let sql = AssertSqlSafe(Arc::clone(&self.one));
        let query = sqlx::query(sql)
            .bind(row.event_id)
            .bind(&row.aggregate_type)
            .bind(&row.aggregate_id)
            .bind(&row.event_type)
            .bind(row.json.as_deref())
            .bind(row.bytes.as_deref())
            .bind(&row.content_type)
            .bind(&row.headers);
        query.execute(conn).await.map_err(|error| self.error(error))?;
        Ok(EventId::from_uuid(row.event_id))
    }

    /// Writes any number of events on the caller's connection and returns their event ids, in the order of the input,
    /// which is also the order of delivery.
    ///
    /// All events are checked before the first is sent. They are held in memory once more while they are written, and
    /// go out in statements of at most 2000 events or 8 MiB. Outside a transaction each of these commits by itself.
    ///
    /// # Errors
    /// As [`Outbox::enqueue`]; the index is the place in the input.
    ///
    /// # Cancel safety
    /// Dropped half way, a part of the events may be in the transaction: roll the transaction back.
    pub async fn enqueue_many<'e, E: Event + ?Sized + 'e>(
        &self,
        conn: &mut PgConnection,
        events: impl IntoIterator<Item = &'e E>,
    ) -> Result<Vec<EventId>, EnqueueError> {
        let rows = events.into_iter().enumerate().map(|(index, event)| Row::encode(index, event));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let mut rest = rows.as_slice();
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(chunk_len(rest));
            self.insert(conn, chunk).await?;
            rest = after;
        }
        Ok(rows.iter().map(|row| EventId::from_uuid(row.event_id)).collect())
    }

    async fn insert(&self, conn: &mut PgConnection, rows: &[Row]) -> Result<(), EnqueueError> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.event_id).collect();
        let aggregate_types: Vec<&str> = rows.iter().map(|row| row.aggregate_type.as_str()).collect();
        let aggregate_ids: Vec<&str> = rows.iter().map(|row| row.aggregate_id.as_str()).collect();
        let event_types: Vec<&str> = rows.iter().map(|row| row.event_type.as_str()).collect();
        let payloads: Vec<Option<&str>> = rows.iter().map(|row| row.json.as_deref()).collect();
        let payload_bytes: Vec<Option<&[u8]>> = rows.iter().map(|row| row.bytes.as_deref()).collect();
        let content_types: Vec<Option<&str>> = rows.iter().map(|row| row.content_type.as_deref()).collect();
        let headers: Vec<Option<&str>> = rows.iter().map(|row| row.headers.as_deref()).collect();
        let sql = AssertSqlSafe(Arc::clone(&self.many));
        let query = sqlx::query(sql)
            .bind(ids)
            .bind(aggregate_types)
            .bind(aggregate_ids)
            .bind(event_types)
            .bind(payloads)
            .bind(payload_bytes)
            .bind(content_types)
            .bind(headers);
        query.execute(conn).await.map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Names what happened, by SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
    fn error(&self, source: sqlx::Error) -> EnqueueError {
        let Some(database) = source.as_database_error() else { return EnqueueError::Database(source) };
        match database.code().as_deref() {
            // undefined_table, invalid_schema_name, undefined_column
            Some("42P01" | "3F000" | "42703") => EnqueueError::Missing { schema: self.schema.to_string(), source },
            Some("42501") => EnqueueError::Denied { source },
            // data exceptions, constraints, limits
            Some(code) if ["22", "23", "54"].iter().any(|class| code.starts_with(class)) => {
                EnqueueError::Refused { message: database.message().to_owned(), source }
            }
            _ => EnqueueError::Database(source),
        }
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(SchemaName::default())
    }
}

/// An event that was checked, as the table wants it.
struct Row {
    event_id: Uuid,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    json: Option<String>,
    bytes: Option<Bytes>,
    content_type: Option<String>,
    headers: Option<String>,
}

impl Row {
    fn encode<E: Event + ?Sized>(index: usize, event: &E) -> Result<Self, EnqueueError> {
        let invalid = |source: InvalidEvent| EnqueueError::Invalid { index, source };
        let payload = event.payload().map_err(|error| invalid(error.into()))?;
        let headers = event.headers();
        let (aggregate_type, aggregate_id) = (event.aggregate_type(), event.aggregate_id());
        let event_type = event.event_type();
        InvalidEvent::check(&aggregate_type, &aggregate_id, &event_type, &payload, &headers).map_err(invalid)?;
        let headers = if headers.is_empty() {
            None
        } else {
            Some(serde_json::to_string(&headers).map_err(|error| invalid(InvalidEvent::Json(error)))?)
        };
        let (json, bytes, content_type) = match payload {
            Payload::Json(json) => {
                // The check has seen that it is UTF-8: the error is never met.
                let text = String::from_utf8(json.into()).map_err(serde::de::Error::custom);
                (Some(text.map_err(|error| invalid(InvalidEvent::Json(error)))?), None, None)
            }
            Payload::Bytes { data, content_type } => (None, Some(data), content_type),
        };
        Ok(Self {
            event_id: event.event_id().map_or_else(Uuid::now_v7, |id| id.as_uuid()),
            aggregate_type: aggregate_type.into_owned(),
            aggregate_id: aggregate_id.into_owned(),
            event_type: event_type.into_owned(),
            json,
            bytes,
            content_type,
            headers,
        })
    }

    fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let payload = text(&self.json) + self.bytes.as_ref().map_or(0, Bytes::len);
        let optional = text(&self.headers) + text(&self.content_type);
        self.aggregate_type.len() + self.aggregate_id.len() + self.event_type.len() + payload + optional
    }
}

/// How many of the first rows go into one statement: at least one.
fn chunk_len(rows: &[Row]) -> usize {
    let mut bytes = 0_usize;
    let fits = |row: &&Row| {
        bytes = bytes.saturating_add(row.size());
        bytes <= CHUNK_BYTES
    };
    rows.iter().take(CHUNK_EVENTS).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_core::NewEvent;

    #[test]
    fn chunks_are_bounded_in_events_and_in_bytes() {
        let row = |bytes: usize| {
            let payload = Payload::bytes(vec![0; bytes], "a/b");
            Row::encode(0, &NewEvent::new("a", "b", "c", payload)).unwrap()
        };
        let check = |sizes: &[usize], expected: usize| {
            let rows: Vec<Row> = sizes.iter().map(|&bytes| row(bytes)).collect();
            assert_eq!(chunk_len(&rows), expected, "{} rows", sizes.len());
        };
        check(&[1], 1);
        check(&[1; CHUNK_EVENTS + 1], CHUNK_EVENTS);
        check(&[CHUNK_BYTES + 1, 1], 1);
        check(&[1, CHUNK_BYTES, 1], 1);
        check(&[CHUNK_BYTES / 2 - 100, CHUNK_BYTES / 2 - 100, 1000], 2);
    }
}
