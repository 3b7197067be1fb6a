//! A stream under a name of its own, and what came into it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, Context};
use outbox_core::{Envelope, EventId, Headers, Outcome, Payload, PublishError, Publisher};
use outbox_nats::{NatsConfig, NatsPublisher};
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, Arrived, EVENT_TYPE, PATIENCE};
use outbox_testkit::services::nats::{Nats, Options, Version, shared_or_skip};
use outbox_testkit::services::require_or_skip;
use uuid::Uuid;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Both lines of the server that every promise must hold for.
pub(crate) const LINES: [Version; 2] = [Version::New, Version::Old];

/// The shared server's address, or a visible skip. It may start one, hence blocks.
pub(crate) fn url(line: Version) -> Option<String> {
    tokio::task::block_in_place(|| shared_or_skip(line))
}

/// A server of one's own, or a visible skip.
pub(crate) fn own(line: Version, options: Options) -> Option<Nats> {
    tokio::task::block_in_place(|| require_or_skip("nats", Nats::start_with(line, options)))
}

/// A server of one's own with more in its configuration.
pub(crate) fn own_with(line: Version, extra: &str) -> Option<Nats> {
    own(line, Options { extra: extra.to_owned(), ..Options::default() })
}

/// A connection to the server around any proxy, with names for one test.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) prefix: String,
    pub(crate) jetstream: Context,
}

impl Place {
    /// Names only; there is no stream.
    pub(crate) async fn bare(url: &str) -> Self {
        Self::over(url, async_nats::connect(url).await.unwrap())
    }

    pub(crate) fn over(url: &str, client: async_nats::Client) -> Self {
        let prefix = format!("t{}", Uuid::now_v7().simple());
        Self { url: url.to_owned(), prefix, jetstream: jetstream::new(client) }
    }

    /// With a stream that takes all subjects of the test.
    pub(crate) async fn with_stream(url: &str) -> Self {
        let place = Self::bare(url).await;
        place.create_stream(|_| {}).await;
        place
    }

    pub(crate) async fn create_stream(&self, change: impl FnOnce(&mut Config)) {
        let mut config =
            Config { name: self.prefix.clone(), subjects: vec![format!("{}.>", self.prefix)], ..Config::default() };
        change(&mut config);
        self.jetstream.create_stream(config).await.unwrap();
    }

    pub(crate) async fn stream(&self) -> Stream {
        self.jetstream.get_stream(&self.prefix).await.unwrap()
    }

    /// Everything that is in the stream, from the beginning, in order.
    pub(crate) async fn arrived(&self) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        self.read(&mut 1, &mut arrived).await;
        arrived
    }

    /// Reads on from a sequence number.
    pub(crate) async fn read(&self, next: &mut u64, arrived: &mut Vec<Arrived>) {
        let mut stream = self.stream().await;
        let last = stream.info().await.unwrap().state.last_sequence;
        while *next <= last {
            let message = stream.get_raw_message(*next).await.unwrap();
            *next += 1;
            let single = |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
                assert_eq!(values.len(), 1, "{name}");
                (name.to_string(), values[0].to_string())
            };
            let mut headers: BTreeMap<_, _> = message.headers.iter().map(single).collect();
            let event_id = headers.remove("Nats-Msg-Id").unwrap();
            assert_eq!(headers.get("event-id"), Some(&event_id), "both ids are the event's");
            arrived.push(Arrived { event_id, headers, body: message.payload });
        }
    }

    /// The suite's events go to this subject.
    pub(crate) fn subject(&self) -> String {
        format!("{}.{AGGREGATE_TYPE}.{EVENT_TYPE}", self.prefix)
    }

    pub(crate) fn template(&self) -> String {
        format!("{}.{{aggregate_type}}.{{event_type}}", self.prefix)
    }

    pub(crate) fn config(&self) -> NatsConfig {
        NatsConfig::new(&self.url, self.template())
    }

    pub(crate) fn publisher(&self) -> NatsPublisher {
        NatsPublisher::connect(self.config()).unwrap()
    }
}

/// Events of as many aggregates.
pub(crate) fn events(count: i64) -> Vec<Envelope> {
    let event = |number: i64| Envelope {
        id: number,
        event_id: EventId::from_uuid(Uuid::now_v7()),
        aggregate_type: AGGREGATE_TYPE.to_owned(),
        aggregate_id: format!("aggregate-{number}"),
        event_type: EVENT_TYPE.to_owned(),
        payload: Payload::raw_json(format!("{{\"number\":{number}}}")),
        headers: Headers::new(),
        created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199),
    };
    (1..=count).map(event).collect()
}

pub(crate) async fn publish(publisher: &dyn Publisher, events: &[Envelope]) -> Vec<Outcome> {
    publisher.publish(events).await.into_outcomes(events.len())
}

/// Publishes one event until it is confirmed.
pub(crate) async fn publish_until_confirmed(publisher: &dyn Publisher, event: &Envelope) {
    until(|| async { publish(publisher, std::slice::from_ref(event)).await.remove(0).is_ok() }).await;
}

/// Asks again and again until it is so; panics after [`PATIENCE`].
pub(crate) async fn until<F: Future<Output = bool>>(so: impl Fn() -> F) {
    let mut look = tokio::time::interval(LOOK_AGAIN);
    let asked = async {
        while !so().await {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it never came to be so");
}

pub(crate) fn ids<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Vec<String> {
    let mut ids: Vec<_> = events.into_iter().map(|event| event.event_id.to_string()).collect();
    ids.sort_unstable();
    ids
}

pub(crate) fn arrived_ids(arrived: &[Arrived]) -> Vec<String> {
    let mut ids: Vec<_> = arrived.iter().map(|message| message.event_id.clone()).collect();
    ids.sort_unstable();
    ids
}

#[track_caller]
pub(crate) fn error(outcome: &Outcome) -> &PublishError {
    outcome.as_ref().expect_err("it can't have been confirmed")
}

#[track_caller]
pub(crate) fn assert_all_ok(outcomes: &[Outcome]) {
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}
