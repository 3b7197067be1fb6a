//! SQS: emulators of it, a private one of one's own or the shared one of a test run.
//!
//! Nothing here is Amazon's: [`Emulator`] says which one it is and what it does not do. An emulator starts in half a
//! second. Ordinary tests share one ([`shared()`]) with queues of their own; a test that kills or pauses its server starts
//! one with [`Sqs::start`]. All listen on loopback only and take any credentials.

mod emulator;
mod install;
mod server;
mod shared;

pub use emulator::Emulator;
pub use install::install;
pub use server::{Detached, Sqs};
pub use shared::{URL_VARIABLE, shared, shared_or_skip};
