//! Events, and what became of them.

use std::time::{Duration, SystemTime};

use outbox_core::{Envelope, ErrorKind, EventId, Headers, Outcome, Payload, PublishError, Publisher};
use outbox_webhook::{WebhookConfig, WebhookPublisher};
use uuid::Uuid;

use crate::receiver::SECRET;

pub(crate) fn event(number: i64) -> Envelope {
    Envelope {
        id: number,
        event_id: EventId::from_uuid(Uuid::now_v7()),
        aggregate_type: "order".to_owned(),
        aggregate_id: number.to_string(),
        event_type: "placed".to_owned(),
        payload: Payload::raw_json(format!("{{\"number\":{number}}}")),
        headers: Headers::new(),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_709_251_199_999_999),
    }
}

pub(crate) fn events(count: i64) -> Vec<Envelope> {
    (1..=count).map(event).collect()
}

/// Short time-outs, long enough for a busy machine.
pub(crate) fn config(url: impl Into<String>) -> WebhookConfig {
    let short = Duration::from_secs(3);
    WebhookConfig::new(url, SECRET).with_request_timeout(short).with_connect_timeout(short)
}

pub(crate) fn publisher(url: impl Into<String>) -> WebhookPublisher {
    WebhookPublisher::connect(config(url)).unwrap()
}

pub(crate) async fn publish(publisher: &WebhookPublisher, events: &[Envelope]) -> Vec<Outcome> {
    let report = tokio::time::timeout(Duration::from_secs(60), publisher.publish(events)).await;
    report.expect("a publish is bounded").into_outcomes(events.len())
}

pub(crate) async fn publish_one(publisher: &WebhookPublisher, event: &Envelope) -> Outcome {
    publish(publisher, std::slice::from_ref(event)).await.remove(0)
}

pub(crate) fn kinds(outcomes: &[Outcome]) -> Vec<Result<(), ErrorKind>> {
    outcomes.iter().map(|outcome| outcome.as_ref().map(drop).map_err(PublishError::kind)).collect()
}

pub(crate) fn id(event: &Envelope) -> String {
    event.event_id.to_string()
}
