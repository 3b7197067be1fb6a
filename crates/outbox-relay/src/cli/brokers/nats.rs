//! NATS JetStream: not there yet.

use super::Broker;

pub(super) const BROKER: Broker = Broker::later("nats");
