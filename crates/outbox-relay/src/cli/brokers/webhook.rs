//! HTTP POST to a webhook: not there yet.

use super::Broker;

pub(super) const BROKER: Broker = Broker::later("webhook");
