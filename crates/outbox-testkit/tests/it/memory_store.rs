//! The memory store keeps the contract of a store.

use std::future::{Ready, ready};
use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::{EventId, NewEvent, Store};
use outbox_testkit::memory::{MemoryStore, MemoryTransaction};
use outbox_testkit::store_suite::{OpenTransaction, StoreHarness, StoredDeadLetter, StoredEvent, StoredRetry};

mod contract {
    outbox_testkit::store_suite!(super::setup);
}

fn setup() -> Ready<Option<Memory>> {
    ready(Some(Memory { store: MemoryStore::new() }))
}

struct Memory {
    store: MemoryStore,
}

struct Transaction(MemoryTransaction);

#[async_trait]
impl OpenTransaction for Transaction {
    async fn insert(&mut self, event: NewEvent) -> EventId {
        self.0.insert(&event).event_id
    }

    async fn commit(self: Box<Self>) {
        self.0.commit();
    }

    async fn rollback(self: Box<Self>) {
        self.0.rollback();
    }
}

#[async_trait]
impl StoreHarness for Memory {
    async fn relay(&self) -> Arc<dyn Store> {
        Arc::new(self.store.another_relay())
    }

    async fn insert(&self, events: Vec<NewEvent>) -> Vec<EventId> {
        let mut transaction = self.store.begin();
        let ids = events.iter().map(|event| transaction.insert(event).event_id).collect();
        transaction.commit();
        ids
    }

    async fn begin(&self) -> Box<dyn OpenTransaction> {
        Box::new(Transaction(self.store.begin()))
    }

    async fn end_leases(&self, route: &str) {
        self.store.end_leases(route);
    }

    async fn remaining(&self) -> Vec<StoredEvent> {
        let events = self.store.view(|view| view.inserted());
        events.into_iter().map(|event| StoredEvent { id: event.id, event_id: event.event_id }).collect()
    }

    async fn retries(&self) -> Vec<StoredRetry> {
        let retries = self.store.view(|view| view.retries()).into_iter();
        retries
            .map(|row| StoredRetry {
                id: row.id,
                attempts: row.attempts,
                crashes: row.crashes,
                blocked: row.blocked,
                kind: row.kind,
                error: row.error,
            })
            .collect()
    }

    async fn dead_letters(&self) -> Vec<StoredDeadLetter> {
        let letters = self.store.view(|view| view.dead_letters().to_vec()).into_iter();
        letters
            .map(|letter| StoredDeadLetter {
                event_id: letter.envelope.event_id,
                payload: letter.envelope.payload,
                attempts: letter.attempts,
                kind: letter.kind,
                reason: letter.reason,
            })
            .collect()
    }

    async fn unblock(&self, id: i64) {
        assert!(self.store.unblock(id), "{id} is not blocked");
    }

    async fn make_due(&self, id: i64) {
        assert!(self.store.make_due(id));
    }

    async fn clear_retry(&self, id: i64) {
        assert!(self.store.clear_retry(id));
    }

    async fn delete_event(&self, id: i64) {
        assert!(self.store.delete_event(id));
    }

    async fn insert_with_id(&self, id: i64, event: NewEvent) -> Option<EventId> {
        Some(self.store.insert_with_id(id, &event).event_id)
    }
}
