//! RabbitMQ: a private node of one's own, and the shared broker of a test run.
//!
//! A private node has its own ports, port mapper, cookie and directories, and needs no root. It starts in 4 to 7 s, so
//! ordinary tests share one broker ([`shared`]) with names of their own; a test that kills, pauses or blocks the broker
//! starts its own with [`RabbitMq::start`].

mod binaries;
mod node;
mod shared;
mod tls;

pub use binaries::{Binaries, ROOT_VARIABLE};
pub use node::{Detached, RabbitMq};
pub use shared::{MANAGEMENT_URL_VARIABLE, URL_VARIABLE, shared, shared_management, shared_or_skip};
pub use tls::{ClientCertificates, Tls};
