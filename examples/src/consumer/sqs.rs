//! Amazon SQS: a FIFO queue, read by several receivers. It speaks to an emulator, over HTTP and with any credentials.

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, QueueAttributeName};
use futures_util::future::try_join_all;
use tokio_util::sync::CancellationToken;

use super::{Arrivals, Destination, Failure, Reading};

const REGION: &str = "us-east-1";
const ACCESS_KEY_ID: &str = "demo";
const SECRET_ACCESS_KEY: &str = "demo";

/// Ten messages a call, and no message of a group while another is out: one receiver alone would be the bottleneck.
/// Order within a group is kept all the same.
const RECEIVERS: usize = 8;

/// The most that SQS gives and deletes in one call.
const BATCH: i32 = 10;

/// How long a call waits for messages. Not zero: only a call that waits has asked all of SQS's servers.
const WAIT_SECONDS: i32 = 1;

/// A FIFO queue.
#[derive(Debug)]
pub struct Sqs {
    client: Client,
    endpoint: String,
    queue_url: String,
    end: CancellationToken,
}

impl Sqs {
    /// Creates the queue.
    ///
    /// # Errors
    /// When the server is away or refuses.
    pub async fn create(endpoint: &str, name: &str) -> Result<Self, Failure> {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .credentials_provider(Credentials::new(ACCESS_KEY_ID, SECRET_ACCESS_KEY, None, None, "example"))
            .endpoint_url(endpoint)
            .http_client(aws_smithy_http_client::Builder::new().build_http());
        let client = Client::from_conf(config.build());
        let create = client.create_queue().queue_name(format!("{name}.fifo"));
        let created = create.attributes(QueueAttributeName::FifoQueue, "true").send().await?;
        let queue_url = created.queue_url.ok_or("the new queue has no URL")?;
        Ok(Self { client, endpoint: endpoint.to_owned(), queue_url, end: CancellationToken::new() })
    }
}

#[async_trait]
impl Destination for Sqs {
    fn describe(&self) -> String {
        format!("FIFO queue {}, {RECEIVERS} receivers", self.queue_url)
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("queue_url", self.queue_url.clone()),
            ("region", REGION.to_owned()),
            ("endpoint_url", self.endpoint.clone()),
            ("access_key_id", ACCESS_KEY_ID.to_owned()),
            ("secret_access_key", SECRET_ACCESS_KEY.to_owned()),
        ]
    }

    async fn consume(&self, arrivals: Arrivals) -> Result<Reading, Failure> {
        let receiver = |_| receive(self.client.clone(), self.queue_url.clone(), arrivals.clone(), self.end.clone());
        let receivers = try_join_all((0..RECEIVERS).map(receiver));
        Ok(Box::pin(async move { receivers.await.map(drop) }))
    }

    async fn end(&self) -> Result<(), Failure> {
        self.end.cancel();
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), Failure> {
        self.client.delete_queue().queue_url(&self.queue_url).send().await?;
        Ok(())
    }
}

/// Receives until a call that began after the end brings nothing. What is out at another receiver then, and what it
/// holds back in its group, is that receiver's to read.
async fn receive(client: Client, queue: String, arrivals: Arrivals, end: CancellationToken) -> Result<(), Failure> {
    loop {
        let is_last = end.is_cancelled();
        let request = client.receive_message().queue_url(&queue).message_attribute_names("event-id");
        let received = request.max_number_of_messages(BATCH).wait_time_seconds(WAIT_SECONDS).send().await?;
        let messages = received.messages.unwrap_or_default();
        if messages.is_empty() {
            if is_last {
                return Ok(());
            }
            continue;
        }
        for message in &messages {
            arrivals.add_by_id(event_id(message));
        }
        let entries = messages.iter().enumerate().map(|(index, message)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(index.to_string());
            entry.set_receipt_handle(message.receipt_handle.clone()).build()
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let deleted = client.delete_message_batch().queue_url(&queue).set_entries(Some(entries)).send().await?;
        if let Some(failed) = deleted.failed.first() {
            return Err(format!("a message could not be deleted: {}", failed.code).into());
        }
    }
}

fn event_id(message: &Message) -> Option<&str> {
    message.message_attributes.as_ref()?.get("event-id")?.string_value()
}
