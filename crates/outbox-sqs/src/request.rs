//! One request: a batch out, its answer in, within a deadline.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Builder;
use aws_sdk_sqs::error::BuildError;
use aws_sdk_sqs::types::{MessageAttributeValue, QueueAttributeName, SendMessageBatchRequestEntry};
use outbox_core::{ErrorKind, Outcome, PublishError};
use tokio::time::{Instant, timeout_at};

use crate::attributes::STRING;
use crate::client::each_request;
use crate::config::SqsConfig;
use crate::encode::Message;
use crate::error::{Fault, Stage, Verdict, classify, fault_of, refusal};
use crate::verdict::{entry_id, outcomes};

/// The way to the queue.
pub(crate) struct Queue {
    client: Client,
    settings: Builder,
    /// The queue was found to take less than we send, and the log says so.
    warned: AtomicBool,
}

/// What became of a request.
enum Reply {
    Each(Vec<Outcome>),
    /// All its events have one fate.
    Whole(Verdict, PublishError),
}

impl Queue {
    pub(crate) fn new(client: Client, config: &SqsConfig) -> Self {
        Self { client, settings: each_request(config), warned: AtomicBool::new(false) }
    }

    /// Sends a batch that fits and returns one outcome for each message.
    ///
    /// When SQS refuses the batch because of an event and does not say which, each is sent alone: a refused batch was
    /// not taken, so nothing is sent twice.
    pub(crate) async fn send(&self, messages: &[Message], config: &SqsConfig) -> Vec<Outcome> {
        let deadline = Instant::now() + config.request_timeout;
        match self.request(messages, config, deadline).await {
            Reply::Each(outcomes) => outcomes,
            Reply::Whole(verdict, _) if verdict.blames_event && messages.len() > 1 => {
                self.send_alone(messages, config, deadline).await
            }
            Reply::Whole(_, error) => vec![Err(error); messages.len()],
        }
    }

    async fn send_alone(&self, messages: &[Message], config: &SqsConfig, deadline: Instant) -> Vec<Outcome> {
        let mut all = Vec::with_capacity(messages.len());
        for message in messages {
            if Instant::now() >= deadline {
                let detail = "refused together with others, and no time was left to send it alone";
                all.push(Err(PublishError::new(ErrorKind::Throttled, detail)));
                continue;
            }
            match self.request(std::slice::from_ref(message), config, deadline).await {
                Reply::Each(outcomes) => all.extend(outcomes),
                Reply::Whole(_, error) => all.push(Err(error)),
            }
        }
        all
    }

    async fn request(&self, messages: &[Message], config: &SqsConfig, deadline: Instant) -> Reply {
        let what = "the event is not confirmed";
        let entries: Result<Vec<_>, BuildError> =
            messages.iter().enumerate().map(|(index, message)| entry(index, message)).collect();
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                let verdict = classify(Fault::Unbuildable, Stage::Sending);
                return Reply::Whole(
                    verdict,
                    PublishError::new(verdict.kind, format!("{what}: no request can be made of it")).with_source(error),
                );
            }
        };
        let request = self.client.send_message_batch().queue_url(&config.queue_url).set_entries(Some(entries));
        let sent = Box::pin(request.customize().config_override(self.settings.clone()).send());
        match timeout_at(deadline, sent).await {
            Ok(Ok(answer)) => Reply::Each(outcomes(messages.len(), &answer)),
            Ok(Err(error)) => {
                let verdict = classify(fault_of(&error), Stage::Sending);
                Reply::Whole(verdict, refusal(error, verdict.kind, what))
            }
            Err(_) => {
                let verdict = classify(Fault::NoAnswer, Stage::Sending);
                let waited = config.request_timeout;
                let detail = format!("sqs gave no answer within request_timeout ({waited:?})");
                Reply::Whole(verdict, PublishError::new(verdict.kind, detail))
            }
        }
    }

    /// Asks whether the queue is there.
    pub(crate) async fn check(&self, config: &SqsConfig) -> Result<(), PublishError> {
        let what = "the queue could not be checked";
        let wanted = QueueAttributeName::MaximumMessageSize;
        let request = self.client.get_queue_attributes().queue_url(&config.queue_url).attribute_names(wanted.clone());
        let sent = Box::pin(request.customize().config_override(self.settings.clone()).send());
        match timeout_at(Instant::now() + config.request_timeout, sent).await {
            Ok(Ok(answer)) => {
                let limit = answer.attributes().and_then(|attributes| attributes.get(&wanted)?.parse().ok());
                self.compare(limit, config);
                Ok(())
            }
            Ok(Err(error)) => {
                let verdict = classify(fault_of(&error), Stage::Checking);
                Err(refusal(error, verdict.kind, what))
            }
            Err(_) => {
                let verdict = classify(Fault::NoAnswer, Stage::Checking);
                let waited = config.request_timeout;
                Err(PublishError::new(verdict.kind, format!("{what} within request_timeout ({waited:?})")))
            }
        }
    }

    /// Says once that the queue takes less than we would send.
    fn compare(&self, limit: Option<usize>, config: &SqsConfig) {
        let allowed = config.max_message_bytes;
        if let Some(limit) = limit.filter(|limit| *limit < allowed)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                queue = %config.queue_url,
                "the queue takes messages of {limit} bytes (MaximumMessageSize), max_message_bytes allows {allowed}: \
                 larger events will be rejected by SQS"
            );
        }
    }
}

fn entry(index: usize, message: &Message) -> Result<SendMessageBatchRequestEntry, BuildError> {
    let mut attributes = HashMap::with_capacity(message.attributes.len());
    for (name, value) in &message.attributes {
        let value = MessageAttributeValue::builder().data_type(STRING).string_value(value).build()?;
        attributes.insert(name.clone(), value);
    }
    let entry = SendMessageBatchRequestEntry::builder().id(entry_id(index)).message_body(&message.body);
    let (group, deduplication) = match &message.fifo {
        Some(fifo) => (Some(fifo.group_id.clone()), Some(fifo.deduplication_id.clone())),
        None => (None, None),
    };
    entry
        .set_message_attributes(Some(attributes))
        .set_message_group_id(group)
        .set_message_deduplication_id(deduplication)
        .build()
}
