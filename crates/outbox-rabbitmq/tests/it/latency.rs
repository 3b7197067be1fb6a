//! A measurement, not a check: how long an event waits for its confirm, and how many pass in a second, by the number
//! of channels. Run it alone on a quiet machine:
//!
//! ```sh
//! cargo nextest run -p outbox-rabbitmq --release --run-ignored only --no-capture latency
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use outbox_core::{Envelope, Publisher};
use outbox_rabbitmq::RabbitMqPublisher;
use outbox_testkit::proxy::{FaultProxy, Mode};
use outbox_testkit::services::rabbitmq::RabbitMq;
use outbox_testkit::services::require_or_skip;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};

use crate::broker::{Broker, Kind, events, publish};

/// As the relay's engine has it.
const MAX_CALLS: usize = 16;
const BATCH: usize = 1000;
const WINDOW: usize = 2000;
const ROUNDS: usize = 3;
const CHANNELS: [u16; 3] = [1, 4, 16];
/// From here to the broker, and back: a broker in the same room, and one farther away or slower to write.
const WAYS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(25)];
/// Events a second that no broker takes.
const FLOOD: u32 = 1_000_000;

#[ignore = "a measurement that needs a quiet machine"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latency_and_throughput_by_the_number_of_channels() {
    let node = tokio::task::block_in_place(|| require_or_skip("amqp", RabbitMq::start()));
    let Some(node) = node else { return };
    // The launcher's nodes are small; here the memory alarm would be what is measured.
    tokio::task::block_in_place(|| node.unblock_memory()).unwrap();
    println!("queue   way, ms  channels  p50/p95/p99 ms at 100/s  500/s                 2000/s                unpaced");
    for (kind, way) in Kind::ALL.into_iter().flat_map(|kind| WAYS.map(|way| (kind, way))) {
        let mut measured: [[Vec<Vec<Duration>>; 3]; CHANNELS.len()] = Default::default();
        let mut unpaced: [Vec<f64>; CHANNELS.len()] = Default::default();
        // The rounds take turns, so that a busy minute of the machine meets all.
        for _ in 0..ROUNDS {
            for (at, channels) in CHANNELS.into_iter().enumerate() {
                let broker = Broker::bound(&node.url(), kind).await;
                let proxy = FaultProxy::start(format!("127.0.0.1:{}", node.port())).await.unwrap();
                proxy.set_mode(Mode::Latency(way));
                let mut config = broker.config().with_channels(channels);
                config.url = proxy.url_for(&broker.url);
                let publisher = Arc::new(RabbitMqPublisher::connect(config).unwrap());
                let consumer = tokio::spawn(consume(broker.channel.clone(), broker.queue.clone()));
                drive(&publisher, 2000, FLOOD).await; // opens the channels
                for (slot, (rate, count)) in [(100, 300), (500, 1500), (2000, 6000)].into_iter().enumerate() {
                    measured[at][slot].push(drive(&publisher, count, rate).await);
                }
                let begun = Instant::now();
                drive(&publisher, 20_000, FLOOD).await;
                unpaced[at].push(20_000.0 / begun.elapsed().as_secs_f64());
                publisher.close().await;
                consumer.abort();
                broker.close().await;
            }
        }
        for (at, channels) in CHANNELS.into_iter().enumerate() {
            let waits = measured[at].each_ref().map(|rounds| {
                let share = |percent: usize| {
                    let of = |waits: &Vec<Duration>| waits[(waits.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
                    median(rounds.iter().map(of).collect())
                };
                format!("{:6.1}/{:6.1}/{:6.1}", share(50), share(95), share(99))
            });
            let rate = median(unpaced[at].clone());
            let (kind, way) = (format!("{kind:?}"), way.as_millis());
            println!("{kind:7} {way:>7} {channels:>9}  {}  {rate:>8.0}/s", waits.join("  "));
        }
    }
}

/// Takes and acknowledges each message by itself, as consumers do: a queue that is busy confirms later than an idle one.
async fn consume(channel: Channel, queue: String) {
    channel.basic_qos(200, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut messages =
        channel.basic_consume(queue.into(), "measurement".into(), options, FieldTable::default()).await.unwrap();
    while let Some(message) = messages.next().await {
        message.unwrap().ack(BasicAckOptions::default()).await.unwrap();
    }
}

/// Lets `count` events arrive at `rate` a second and publishes them as the relay does: what waits goes out in one
/// call, with at most [`MAX_CALLS`] calls and [`WINDOW`] events under way. Gives the waits from arrival to confirm, sorted.
async fn drive(publisher: &Arc<RabbitMqPublisher>, count: u32, rate: u32) -> Vec<Duration> {
    let mut coming: VecDeque<Envelope> = events(i64::from(count)).into();
    let begun = Instant::now();
    let due = |number: u32| begun + Duration::from_secs_f64(f64::from(number) / f64::from(rate));
    let (mut arrived, mut out, mut waiting, mut waits) = (0, 0, VecDeque::new(), Vec::new());
    let mut calls = JoinSet::new();
    let mut pace = interval(Duration::from_millis(1));
    while !coming.is_empty() || !waiting.is_empty() || !calls.is_empty() {
        let now = Instant::now();
        while !coming.is_empty() && due(arrived) <= now {
            waiting.push_back((due(arrived), coming.pop_front().unwrap()));
            arrived += 1;
        }
        while calls.len() < MAX_CALLS && !waiting.is_empty() && out < WINDOW {
            let batch: Vec<_> = waiting.drain(..waiting.len().min(BATCH).min(WINDOW - out)).collect();
            out += batch.len();
            let publisher = Arc::clone(publisher);
            calls.spawn(async move {
                let (since, events): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
                let outcomes = publish(&*publisher, &events).await;
                assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
                since.into_iter().map(|since| since.elapsed()).collect::<Vec<_>>()
            });
        }
        tokio::select! {
            done = calls.join_next(), if !calls.is_empty() => {
                let done: Vec<Duration> = done.unwrap().unwrap();
                out -= done.len();
                waits.extend(done);
            }
            () = sleep_until(due(arrived)), if !coming.is_empty() && calls.len() < MAX_CALLS => {}
            _ = pace.tick() => {}
        }
    }
    waits.sort_unstable();
    waits
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
