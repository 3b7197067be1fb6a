//! Amazon SQS: not there yet.

use super::Broker;

pub(super) const BROKER: Broker = Broker::later("sqs");
