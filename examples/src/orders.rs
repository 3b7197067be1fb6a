//! The business code of an order service. It knows a table and the outbox, and nothing of relays and brokers.

use std::borrow::Cow;

use outbox_core::{Event, EventId, Payload, PayloadError};
use outbox_pg::{EnqueueError, Outbox};
use serde::Serialize;
use sqlx::PgConnection;

/// An item was added to an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ItemAdded {
    /// The order.
    pub order: i64,
    /// Its version after this change: 1 for the first item, then one more each time.
    pub version: i64,
    /// What the order costs now.
    pub total_cents: i64,
}

impl Event for ItemAdded {
    fn aggregate_type(&self) -> Cow<'_, str> {
        "order".into()
    }
    fn aggregate_id(&self) -> Cow<'_, str> {
        self.order.to_string().into()
    }
    fn event_type(&self) -> Cow<'_, str> {
        if self.version == 1 { "order.placed".into() } else { "order.changed".into() }
    }
    fn payload(&self) -> Result<Payload, PayloadError> {
        Payload::json(self)
    }
}

/// Why an order could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The database refused or was lost.
    #[error("the order could not be written")]
    Database(#[from] sqlx::Error),
    /// The event could not be written.
    #[error("the event could not be written")]
    Event(#[from] EnqueueError),
}

/// Creates the table of the orders.
///
/// # Errors
/// When the database refuses.
pub async fn create_table(conn: &mut PgConnection) -> Result<(), OrderError> {
    let sql = "CREATE TABLE IF NOT EXISTS orders (
                   id bigint PRIMARY KEY,
                   version bigint NOT NULL DEFAULT 1,
                   total_cents bigint NOT NULL
               )";
    sqlx::query(sql).execute(conn).await?;
    Ok(())
}

/// Adds an item to an order and tells the world, both or neither: in the transaction that is open on `conn`.
///
/// First the statement that locks the order's row, then the event: so the events of one order get their places in the
/// order of its commits.
///
/// # Errors
/// [`OrderError`]; roll the transaction back then.
pub async fn add_item(
    conn: &mut PgConnection,
    outbox: &Outbox,
    order: i64,
    cents: i64,
) -> Result<(EventId, ItemAdded), OrderError> {
    let sql = "INSERT INTO orders (id, total_cents) VALUES ($1, $2)
               ON CONFLICT (id) DO UPDATE
               SET version = orders.version + 1, total_cents = orders.total_cents + excluded.total_cents
               RETURNING version, total_cents";
    let (version, total_cents) = sqlx::query_as(sql).bind(order).bind(cents).fetch_one(&mut *conn).await?;
    let added = ItemAdded { order, version, total_cents };
    let event = outbox.enqueue(conn, &added).await?;
    Ok((event, added))
}
