//! A store and a publisher in memory, for tests of an engine under paused time.
//!
//! Both live on tokio's clock, keep the contracts of `outbox-core` to the letter, and can be told to misbehave:
//! refuse a call, fail after its work was done, hold it, delay it. Nothing in them sleeps to wait for something to
//! happen: a test awaits a condition ([`MemoryStore::wait_until`], [`MemoryPublisher::wait_until`], [`Hold::reached`]).

mod arrivals;
mod faults;
mod hold;
mod lane;
mod owners;
mod publisher;
mod script;
mod store;
mod tables;
mod transaction;
mod view;

pub use arrivals::{Delivered, PublisherView};
pub use faults::{Call, Fault};
pub use hold::{Hold, PATIENCE};
pub use publisher::MemoryPublisher;
pub use script::Scripted;
pub use store::MemoryStore;
pub use tables::{DeadLetter, Inserted, RetryRow};
pub use transaction::MemoryTransaction;
pub use view::StoreView;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A test that panics while it looks at the state must not make the relay's own calls panic too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
