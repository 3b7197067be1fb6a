//! A producer's transaction.

use std::sync::Arc;
use std::time::SystemTime;

use outbox_core::Event;

use super::store::Shared;
use super::tables::{Inserted, Row};

/// A producer's open transaction. It takes ids when it inserts and shows its events when it commits.
#[derive(Debug)]
pub struct MemoryTransaction {
    pub(super) shared: Arc<Shared>,
    pub(super) holder: Option<u64>,
    pub(super) rows: Vec<Row>,
    pub(super) created_at: SystemTime,
}

impl MemoryTransaction {
    /// Takes the next id; nobody sees the event before the commit.
    ///
    /// # Panics
    /// When the event is not valid.
    pub fn insert(&mut self, event: &dyn Event) -> Inserted {
        self.insert_row(event, None)
    }

    pub(super) fn insert_row(&mut self, event: &dyn Event, defect: Option<String>) -> Inserted {
        let (holder, created_at) = (&mut self.holder, self.created_at);
        let row = self.shared.statement(|tables, _| {
            // The lock is taken before the id.
            let holder = *holder.get_or_insert_with(|| tables.new_holder());
            tables.holders.insert(holder);
            tables.make_row(event, defect, created_at)
        });
        let row = row.unwrap_or_else(|error| panic!("the test's event is not valid: {error}"));
        let inserted = Inserted { id: row.envelope.id, event_id: row.envelope.event_id };
        self.rows.push(row);
        inserted
    }

    /// Shows all events at once.
    pub fn commit(mut self) {
        let rows = std::mem::take(&mut self.rows);
        self.end(rows);
    }

    /// Drops all events; their ids are gone for ever.
    pub fn rollback(self) {
        drop(self);
    }

    fn end(&mut self, rows: Vec<Row>) {
        if let Some(holder) = self.holder.take() {
            self.shared.statement(|tables, _| {
                for row in rows {
                    tables.publish_row(row);
                }
                tables.holders.remove(&holder);
            });
        }
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        self.end(Vec::new());
    }
}
