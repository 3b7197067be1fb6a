//! placeholder

pub mod memory;
pub mod proxy;
pub mod publisher_suite;
pub mod store_suite;
pub use outbox_services as services;
