//! What can be asked of the demo.

use clap::Parser;

use crate::broker::BrokerKind;

/// Shows a transactional outbox at work: writers, a relay as a process of its own, a consumer, and the proof that what
/// was committed arrived, and nothing else, in order.
///
/// PostgreSQL and the broker are those of OUTBOX_TEST_PG_URL and OUTBOX_TEST_AMQP_URL (NATS, SQS, KAFKA in place of AMQP),
/// else started for the demo.
/// Exits 0 only when everything holds.
#[derive(Debug, Clone, Parser)]
#[command(name = "demo", max_term_width = 120)]
pub(crate) struct Args {
    /// Where the events go
    #[arg(long, value_enum, default_value_t = BrokerKind::Stdout)]
    pub(crate) broker: BrokerKind,

    /// How many events are committed
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    pub(crate) events: u32,

    /// Fixes what each writer does; how they interleave differs from run to run
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Kills the relay so many times in the middle (SIGKILL) and starts it again; copies are then allowed
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=20))]
    pub(crate) kill: u8,

    /// Runs the relay of the example `custom-relay` instead of `outbox-relay`
    #[arg(long)]
    pub(crate) custom_relay: bool,
}
