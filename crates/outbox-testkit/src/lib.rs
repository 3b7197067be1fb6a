//! What tests of an outbox need: conformance suites, an in-memory store and publisher, a fault proxy, the history
//! checker, and launchers of real services. A development dependency only.

pub mod certificates;
pub mod history;
pub mod memory;
pub mod proxy;
pub mod publisher_suite;
pub mod store_suite;
pub use outbox_services as services;
