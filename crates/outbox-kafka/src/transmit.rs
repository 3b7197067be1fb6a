//! One call's events on their way: find their topics, queue them, wait for the answers, and once more alone for those
//! that a broker refused together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use krafka::producer::{DeliveryHandle, Producer};
use krafka::{KrafkaError, Record};
use outbox_core::{ErrorKind, Outcome, PublishError, Receipt};
use tokio::time::{Instant, timeout_at};

use crate::config::KafkaConfig;
use crate::error::{Stage, Verdict, classify};
use crate::link::Session;

/// One outcome for each record, in order. Everything has an end before `deadline`, which also bounds each wait.
pub(crate) async fn transmit(
    session: &Arc<Session>,
    records: Vec<Record>,
    deadline: Instant,
    config: &KafkaConfig,
) -> Vec<Outcome> {
    let all = |error: &PublishError| vec![Err(error.clone()); records.len()];
    // The topic is asked for below; here only whether anybody is there.
    if session.is_doubtful()
        && let Err(error) = session.probe(None, config).await
        && error.kind() == ErrorKind::Unavailable
    {
        return all(&error);
    }
    let topics: HashSet<&str> = records.iter().map(|record| record.topic.as_str()).collect();
    let mut unusable = session.find(topics, config).await;
    let call = Call { session, deadline, config };
    let queued = call.queue(session.producer(), &records, &mut unusable).await;
    let mut outcomes = Vec::with_capacity(records.len());
    let mut suspects = Vec::new();
    for (index, (waiting, record)) in queued.into_iter().zip(&records).enumerate() {
        let (outcome, send_alone) = call.answer(waiting, record, Stage::Queued).await;
        if send_alone {
            suspects.push(index);
        }
        outcomes.push(outcome);
    }
    if !suspects.is_empty() {
        call.send_alone(&records, suspects, &mut outcomes).await;
    }
    outcomes
}

struct Call<'a> {
    session: &'a Session,
    deadline: Instant,
    config: &'a KafkaConfig,
}

impl Call<'_> {
    /// Queues records in their order. One that is not queued is never sent.
    async fn queue(
        &self,
        producer: &Producer,
        records: &[Record],
        unusable: &mut HashMap<String, PublishError>,
    ) -> Vec<Result<DeliveryHandle, PublishError>> {
        let mut queued = Vec::with_capacity(records.len());
        let mut stopped: Option<PublishError> = None;
        for record in records {
            let refused = stopped.as_ref().or_else(|| unusable.get(&record.topic));
            if let Some(error) = refused {
                queued.push(Err(error.clone()));
                continue;
            }
            let outcome = match timeout_at(self.deadline, producer.enqueue(record.clone())).await {
                Ok(outcome) => outcome.map_err(|error| self.not_queued(&error, record)),
                Err(_) => Err(PublishError::new(ErrorKind::Throttled, "no room in the client's buffer in time")),
            };
            if let Err(error) = &outcome {
                match error.kind() {
                    ErrorKind::Rejected => {}
                    // What held one of a topic up holds all of it up: waiting again for each would take for ever.
                    ErrorKind::Misconfigured if error.topic().is_some() => {
                        unusable.insert(record.topic.clone(), error.clone());
                    }
                    _ => stopped = Some(error.clone()),
                }
            }
            queued.push(outcome);
        }
        queued
    }

    /// The outcome of a record, and whether it has to be sent alone to know more.
    async fn answer(
        &self,
        waiting: Result<DeliveryHandle, PublishError>,
        record: &Record,
        stage: Stage,
    ) -> (Outcome, bool) {
        let handle = match waiting {
            Ok(handle) => handle,
            Err(error) => return (Err(error), false),
        };
        match timeout_at(self.deadline, handle).await {
            Ok(Ok(_)) => (Ok(Receipt::confirmed()), false),
            Ok(Err(error)) => {
                let verdict = classify(&error, stage);
                (Err(self.failed(verdict, error, record)), verdict.send_alone)
            }
            Err(_) => {
                self.session.doubt();
                let detail = "queued, and no answer came in time";
                (Err(PublishError::new(ErrorKind::Unconfirmed, detail)), false)
            }
        }
    }

    /// Sends each suspect in a batch of its own, so that the broker's refusal can be tied to the event.
    async fn send_alone(&self, records: &[Record], suspects: Vec<usize>, outcomes: &mut [Outcome]) {
        // On failure the outcomes stay as they are: unconfirmed, to be sent again by the relay.
        let producer = match self.session.alone(self.config).await {
            Ok(producer) => producer,
            Err(error) => {
                tracing::debug!(%error, "events of a refused batch could not be sent one by one");
                return;
            }
        };
        let alone: Vec<Record> = suspects.iter().map(|index| records[*index].clone()).collect();
        let queued = self.queue(producer, &alone, &mut HashMap::new()).await;
        for ((index, waiting), record) in suspects.into_iter().zip(queued).zip(&alone) {
            // One that did not even get into the buffer keeps its outcome: it was sent once already.
            if waiting.is_ok() {
                outcomes[index] = self.answer(waiting, record, Stage::QueuedAlone).await.0;
            }
        }
    }

    fn not_queued(&self, error: &KrafkaError, record: &Record) -> PublishError {
        self.failed(classify(error, Stage::Queueing), error.clone(), record)
    }

    fn failed(&self, verdict: Verdict, error: KrafkaError, record: &Record) -> PublishError {
        self.session.note(&error);
        if matches!(verdict.kind, ErrorKind::Unavailable | ErrorKind::Unconfirmed) {
            self.session.doubt();
        }
        let topic = &record.topic;
        let detail = match verdict.kind {
            ErrorKind::Misconfigured if verdict.only_topic => {
                self.session.forget(topic);
                format!("topic `{topic}` refused it")
            }
            ErrorKind::Rejected => format!(
                "kafka can't take it: {} bytes for topic `{topic}`, max_message_bytes is {}",
                crate::encode::batch_bytes(record),
                self.config.max_message_bytes
            ),
            ErrorKind::Throttled => format!("topic `{topic}` takes no more now"),
            ErrorKind::Unconfirmed => format!("sent to topic `{topic}`, and no answer tells what became of it"),
            ErrorKind::Unavailable => format!("not sent to topic `{topic}`"),
            _ => format!("topic `{topic}` did not take it"),
        };
        let publish_error = PublishError::new(verdict.kind, detail).with_source(error);
        if verdict.only_topic { publish_error.with_topic(topic) } else { publish_error }
    }
}
