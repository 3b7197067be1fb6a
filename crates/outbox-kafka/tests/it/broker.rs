//! A topic under a name of its own, and what came into it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use krafka::admin::{CreateTopicsOptions, DeleteTopicsOptions, NewTopic};
use krafka::consumer::{AutoOffsetReset, Consumer};
use krafka::producer::Producer;
use krafka::{ConsumerRecord, Kafka, ProxyConfig, Record};
use outbox_core::{Envelope, EventId, Headers, Outcome, Payload, PublishError, Publisher};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use outbox_testkit::publisher_suite::{AGGREGATE_TYPE, Arrived, EVENT_TYPE, PATIENCE};
use outbox_testkit::services::kafka::shared_or_skip;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::detour::Detour;

pub(crate) const PARTITIONS: i32 = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The shared broker's `host:port`, or a visible skip. It may start a broker, hence blocks.
pub(crate) fn address() -> Option<String> {
    let url = tokio::task::block_in_place(shared_or_skip)?;
    Some(url.trim_start_matches("kafka://").to_owned())
}

/// A reader of one topic that reaches its broker whatever stands before it.
pub(crate) struct Topic {
    pub(crate) name: String,
    client: Kafka,
    reader: Mutex<Reader>,
    _detour: Detour,
}

/// The end of a partition is where a record of our own stands: Tansu's answer to "what is the last offset" is too low
/// (that of the last batch's first record).
const MARKER: &str = "marker";

#[derive(Default)]
struct Reader {
    ends: Option<(Producer, Consumer)>,
    markers: u64,
    records: Vec<ConsumerRecord>,
}

impl Topic {
    /// A name only; nothing is created. `broker` is where it listens itself.
    pub(crate) async fn bare(broker: &str) -> Self {
        let detour = Detour::to(broker.to_owned()).await;
        let client = Kafka::builder(broker).proxy(ProxyConfig::new(&detour.address)).connect().await.unwrap();
        let name = format!("t-{}", Uuid::now_v7().simple());
        Self { name, client, reader: Mutex::default(), _detour: detour }
    }

    /// A topic that exists.
    pub(crate) async fn created(broker: &str) -> Self {
        let topic = Self::bare(broker).await;
        topic.create(&topic.name).await;
        topic
    }

    pub(crate) async fn create(&self, name: &str) {
        let topic = NewTopic::new(name, PARTITIONS, 1).unwrap();
        let created = self.client.admin().create_topics([topic], CreateTopicsOptions::default()).await.unwrap();
        created[name].as_ref().unwrap();
    }

    pub(crate) async fn delete(&self) {
        let name = [self.name.as_str()];
        let deleted = self.client.admin().delete_topics(name, DeleteTopicsOptions::default()).await.unwrap();
        deleted[&self.name].as_ref().unwrap();
    }

    /// Everything since the beginning, once there are at least `count` records; what there is after [`PATIENCE`].
    pub(crate) async fn records(&self, count: usize) -> Vec<ConsumerRecord> {
        let mut reader = self.reader.lock().await;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut look = tokio::time::interval(LOOK_AGAIN);
        loop {
            self.read_to_the_end(&mut reader).await;
            if reader.records.len() >= count || tokio::time::Instant::now() >= deadline {
                return reader.records.clone();
            }
            look.tick().await;
        }
    }

    async fn read_to_the_end(&self, reader: &mut Reader) {
        let Reader { ends, markers, records } = reader;
        if ends.is_none() {
            let consumer = self.client.consumer_without_group();
            let consumer = consumer.auto_offset_reset(AutoOffsetReset::Earliest).build().await.unwrap();
            consumer.assign(&self.name, (0..PARTITIONS).collect()).await.unwrap();
            *ends = Some((self.client.producer().build().await.unwrap(), consumer));
        }
        let (producer, consumer) = ends.as_ref().unwrap();
        *markers += 1;
        let marker = markers.to_string();
        for partition in 0..PARTITIONS {
            let record = Record::new(&self.name, marker.clone()).partition(partition).header(MARKER, "");
            let written = producer.send(record).await.unwrap();
            assert_eq!(written.partition, partition);
        }
        let mut open = PARTITIONS;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while open > 0 {
            assert!(tokio::time::Instant::now() < deadline, "what was just written can't be read");
            for record in consumer.poll(Duration::from_secs(1)).await.unwrap() {
                if record.headers.iter().any(|(name, _)| name == MARKER) {
                    open -= i32::from(record.value.as_deref() == Some(marker.as_bytes()));
                } else {
                    records.push(record);
                }
            }
        }
    }

    pub(crate) async fn arrived(&self, count: usize) -> Vec<Arrived> {
        self.records(count).await.iter().map(arrived).collect()
    }
}

fn arrived(record: &ConsumerRecord) -> Arrived {
    let text = |value: &Option<bytes::Bytes>| String::from_utf8(value.as_ref().unwrap().to_vec()).unwrap();
    let headers: BTreeMap<_, _> = record.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    assert_eq!(record.headers.len(), headers.len(), "no header twice");
    assert_eq!(text(&record.key), headers["aggregate-id"], "the key is the aggregate's id");
    Arrived { event_id: headers["event-id"].clone(), headers, body: record.value.clone().unwrap() }
}

pub(crate) fn connect(config: KafkaConfig) -> KafkaPublisher {
    KafkaPublisher::connect(config).unwrap()
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
