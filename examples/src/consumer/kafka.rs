//! Kafka: a topic, all of its partitions read by one consumer without a group.

use std::time::Duration;

use async_trait::async_trait;
use krafka::admin::{CreateTopicsOptions, DeleteTopicsOptions, NewTopic};
use krafka::consumer::AutoOffsetReset;
use krafka::{ConsumerRecord, Record};

use super::{Arrivals, Destination, Failure, Reading};

/// More than one: the order of an aggregate must not need a single partition.
const PARTITIONS: i32 = 3;

/// How long an empty poll waits for a record.
const POLL: Duration = Duration::from_millis(200);

/// The header of the records by which the reader knows that it has seen everything before them, one in each partition.
const END: &str = "example-end";

/// A topic.
#[derive(Debug)]
pub struct Kafka {
    client: krafka::Kafka,
    broker: String,
    topic: String,
}

impl Kafka {
    /// Creates the topic at a broker, `host:port` or `kafka://host:port`.
    ///
    /// # Errors
    /// When the broker is away or refuses.
    pub async fn create(broker: &str, topic: &str) -> Result<Self, Failure> {
        let broker = broker.trim_start_matches("kafka://");
        let client = krafka::Kafka::builder(broker).connect().await?;
        let new = NewTopic::new(topic, PARTITIONS, 1)?;
        let created = client.admin().create_topics([new], CreateTopicsOptions::default()).await?;
        for (name, outcome) in &created {
            outcome.as_ref().map_err(|error| format!("the topic {name} was not created: {error}"))?;
        }
        Ok(Self { client, broker: broker.to_owned(), topic: topic.to_owned() })
    }
}

#[async_trait]
impl Destination for Kafka {
    fn describe(&self) -> String {
        format!("topic {} of {PARTITIONS} partitions", self.topic)
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("brokers", self.broker.clone()), ("topic", self.topic.clone())]
    }

    async fn consume(&self, arrivals: Arrivals) -> Result<Reading, Failure> {
        let consumer =
            self.client.consumer_without_group().auto_offset_reset(AutoOffsetReset::Earliest).build().await?;
        consumer.assign(&self.topic, (0..PARTITIONS).collect()).await?;
        Ok(Box::pin(async move {
            let mut open = PARTITIONS;
            while open > 0 {
                for record in consumer.poll(POLL).await? {
                    if header(&record, END).is_some() {
                        open -= 1;
                    } else {
                        arrivals.add_by_id(header(&record, "event-id"));
                    }
                }
            }
            Ok(consumer.close().await?)
        }))
    }

    async fn end(&self) -> Result<(), Failure> {
        let producer = self.client.producer().build().await?;
        for partition in 0..PARTITIONS {
            let written = producer.send(Record::new(&self.topic, "").partition(partition).header(END, "")).await?;
            if written.partition != partition {
                return Err(format!("the end of partition {partition} went to {}", written.partition).into());
            }
        }
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), Failure> {
        let deleted = self.client.admin().delete_topics([&self.topic], DeleteTopicsOptions::default()).await?;
        for (name, outcome) in &deleted {
            outcome.as_ref().map_err(|error| format!("the topic {name} was not deleted: {error}"))?;
        }
        Ok(())
    }
}

fn header<'a>(record: &'a ConsumerRecord, name: &str) -> Option<&'a str> {
    let (_, value) = record.headers.iter().find(|(header, _)| header == name)?;
    std::str::from_utf8(value.as_deref()?).ok()
}
