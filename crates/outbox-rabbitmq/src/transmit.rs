//! Sends a group of messages on one channel and waits for the broker's answers.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use outbox_core::Outcome;
use tokio::time::{Instant, interval, sleep_until};

use crate::config::RabbitMqConfig;
use crate::connection::Session;
use crate::encode::Message;
use crate::verdict::{Answer, Answers, End};

/// How often a wait looks whether the broker has blocked the connection; the library reports it only in a status.
const BLOCKED_POLL: Duration = Duration::from_millis(100);
/// How long confirms may still come in after the broker has blocked the connection: those of messages that it had
/// read before.
const BLOCKED_GRACE: Duration = Duration::from_millis(500);

/// Sends a group and gives one outcome for each message, in order.
///
/// The channel goes back to the session only when every message was answered; otherwise it is dropped, so that no
/// late confirm meets a later message.
///
/// # Cancel safety
/// Dropping the future drops the channel. What was sent may still arrive.
pub(crate) async fn transmit(
    session: &Session,
    channel: Channel,
    exchange: &ShortString,
    messages: &[Message],
    config: &RabbitMqConfig,
) -> Vec<Outcome> {
    let mut answers = Answers::new(messages.len());
    let mut waiting = FuturesUnordered::new();
    for (index, message) in messages.iter().enumerate() {
        if !channel.status().connected() {
            break;
        }
        answers.sent(index);
        let mut publish = Box::pin(publish(&channel, exchange.clone(), index, message));
        // The first poll takes the delivery tag and queues the frames: all are on their way before any is awaited.
        match poll_once(publish.as_mut()).await {
            Poll::Ready((index, result)) => answers.note(index, result),
            Poll::Pending => waiting.push(publish),
        }
    }

    let deadline = Instant::now() + config.confirm_timeout;
    let mut tick = interval(BLOCKED_POLL);
    let mut blocked_at: Option<Instant> = None;
    let end = loop {
        tokio::select! {
            next = waiting.next() => match next {
                Some((index, result)) => answers.note(index, result),
                None => break End::Answered,
            },
            () = sleep_until(deadline) => break End::TimedOut,
            _ = tick.tick() => {
                let since = session.blocked().then(|| blocked_at.unwrap_or_else(Instant::now));
                blocked_at = since;
                if since.is_some_and(|since| since.elapsed() >= BLOCKED_GRACE) {
                    break End::Blocked;
                }
            }
        }
    };
    let waiting = scan(waiting.into_iter().collect(), |index, result| answers.note(index, result));
    answers.trust_what_came();
    drop(scan(waiting, |index, result| answers.note(index, result)));

    if answers.complete() && end == End::Answered {
        session.give_back(channel);
    }
    answers.outcomes(messages, end, config)
}

type Published = (usize, lapin::Result<Confirmation>);

async fn publish(channel: &Channel, exchange: ShortString, index: usize, message: &Message) -> Published {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let sent = channel.basic_publish(
        exchange,
        message.routing_key.clone(),
        options,
        &message.body,
        message.properties.clone(),
    );
    match sent.await {
        Ok(confirm) => (index, confirm.await),
        Err(error) => (index, Err(error)),
    }
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Polls each future once, for the last or last but one time, and keeps those without an answer.
///
/// Once is enough to move from "written" to "confirmed" when both have happened.
fn scan<F>(futures: Vec<Pin<Box<F>>>, mut note: impl FnMut(usize, lapin::Result<Confirmation>)) -> Vec<Pin<Box<F>>>
where
    F: Future<Output = Published>,
{
    let mut pending = Vec::new();
    for mut future in futures {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((index, result)) => note(index, result),
            Poll::Pending => pending.push(future),
        }
    }
    pending
}

impl From<lapin::Result<Confirmation>> for Answer {
    fn from(result: lapin::Result<Confirmation>) -> Self {
        match result {
            Ok(Confirmation::Ack(returned)) => Self::Ack(returned.map(Into::into)),
            Ok(Confirmation::Nack(returned)) => Self::Nack(returned.map(Into::into)),
            // The channel is in confirm mode; what confirms nothing is no answer.
            Ok(Confirmation::NotRequested) => Self::None,
            Err(error) => Self::Error(error),
        }
    }
}
