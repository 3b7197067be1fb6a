//! A topic of three partitions.

use std::time::Duration;

use async_trait::async_trait;
use krafka::admin::{CreateTopicsOptions, NewTopic};
use krafka::consumer::AutoOffsetReset;
use krafka::{Kafka as Client, Record};
use outbox_core::EventId;
use outbox_testkit::services::kafka::{Kafka, Options, shared_or_skip};
use outbox_testkit::services::require_or_skip;
use tokio::task::block_in_place;
use uuid::Uuid;

use super::{Destination, Mortal, event_id, own};
use crate::relay::RelayConfig;

const PARTITIONS: i32 = 3;

/// The header of records that only say "up to here": Tansu's answer to "what is the last offset" is too low.
const MARKER: &str = "marker";

pub(crate) struct KafkaTopic {
    broker: Option<Kafka>,
    address: String,
    name: String,
}

impl KafkaTopic {
    /// On the shared broker.
    pub(crate) fn shared() -> Option<Self> {
        let url = block_in_place(shared_or_skip)?;
        Some(Self::at(url.trim_start_matches("kafka://").to_owned(), None))
    }

    /// On a broker of its own that keeps its data over a kill.
    pub(crate) fn own() -> Option<Self> {
        let broker = block_in_place(|| require_or_skip("kafka", Kafka::start(Options::default().durable())))?;
        Some(Self::at(broker.address(), Some(broker)))
    }

    fn at(address: String, broker: Option<Kafka>) -> Self {
        Self { broker, address, name: format!("it-{}", Uuid::now_v7().simple()) }
    }

    async fn client(&self) -> Client {
        Client::builder(&self.address).connect().await.unwrap()
    }
}

#[async_trait]
impl Destination for KafkaTopic {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn lead(&self, config: RelayConfig) -> RelayConfig {
        config.with("route.0.kafka.brokers", &self.address).with("route.0.kafka.topic", &self.name)
    }

    fn name_when_missing(&self) -> &str {
        &self.name
    }

    async fn make(&mut self) {
        let topic = NewTopic::new(&self.name, PARTITIONS, 1).unwrap();
        let created = self.client().await.admin().create_topics([topic], CreateTopicsOptions::default()).await.unwrap();
        created[&self.name].as_ref().unwrap();
    }

    async fn arrived(&mut self) -> Vec<EventId> {
        // A client of its own for each look: the broker may have been restarted since the last.
        let client = self.client().await;
        let consumer = client.consumer_without_group().auto_offset_reset(AutoOffsetReset::Earliest);
        let consumer = consumer.build().await.unwrap();
        consumer.assign(&self.name, (0..PARTITIONS).collect()).await.unwrap();
        let producer = client.producer().build().await.unwrap();
        let marker = Uuid::now_v7().to_string();
        for partition in 0..PARTITIONS {
            let record = Record::new(&self.name, marker.clone()).partition(partition).header(MARKER, "");
            assert_eq!(producer.send(record).await.unwrap().partition, partition);
        }
        let (mut open, mut arrived) = (PARTITIONS, Vec::new());
        while open > 0 {
            for record in consumer.poll(Duration::from_secs(1)).await.unwrap() {
                let header = |name: &str| record.headers.iter().find(|(other, _)| other == name);
                if header(MARKER).is_some() {
                    open -= i32::from(record.value.as_deref() == Some(marker.as_bytes()));
                } else {
                    let id = header("event-id").unwrap().1.as_deref().unwrap();
                    arrived.push(event_id(std::str::from_utf8(id).unwrap()));
                }
            }
        }
        arrived
    }
}

#[async_trait]
impl Mortal for KafkaTopic {
    async fn go_down(&mut self) {
        block_in_place(|| own(&mut self.broker).kill9()).unwrap();
    }

    async fn come_back(&mut self) {
        block_in_place(|| own(&mut self.broker).start_again()).unwrap();
    }
}
