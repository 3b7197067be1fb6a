//! Kafka: not there yet.

use super::Broker;

pub(super) const BROKER: Broker = Broker::later("kafka");
