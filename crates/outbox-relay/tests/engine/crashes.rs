//! Runs that end at any moment, as by kill -9, and go on over the same tables.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use outbox_core::{Capabilities, ErrorKind};
use outbox_testkit::memory::{Call, Fault, MemoryPublisher, MemoryStore, Scripted};

use crate::rig::{MILLI, config, elapse, insert, run, settled};

/// A number that depends on nothing but its seeds.
fn dice(seeds: impl Hash, sides: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    seeds.hash(&mut hasher);
    hasher.finish() % sides
}

fn publisher(seed: u64) -> MemoryPublisher {
    let capabilities = match seed % 2 {
        0 => Capabilities::CAUTIOUS,
        _ => Capabilities::CAUTIOUS.keeping_order_in_batch(),
    };
    let script = move |event: &outbox_core::Envelope, nth: usize| match dice((seed, event.id, nth), 40) {
        0 => Scripted::fail(ErrorKind::Failed),
        1 => Scripted::fail(ErrorKind::Unavailable),
        2 => Scripted::fail(ErrorKind::Unconfirmed),
        _ => Scripted::Confirm,
    };
    MemoryPublisher::new().with_capabilities(capabilities).with_latency(3 * MILLI).with_script(script)
}

#[tokio::test(start_paused = true)]
async fn killed_at_any_moment_nothing_is_lost_and_the_order_holds() {
    const KILLS: u64 = 4;
    for seed in 0..60 {
        let store = MemoryStore::new();
        let publisher = Arc::new(publisher(seed));
        let mut config = config();
        (config.window, config.batch_size, config.queue_events) = (20, 16, 12);
        (config.retry_initial, config.retry_max) = (10 * MILLI, 40 * MILLI);
        config.max_attempts = 100;
        insert(&store, (0..150).map(|n| dice((seed, n), 12)));
        for kill in 0..KILLS {
            for call in [Call::Settle, Call::WriteBack, Call::Read] {
                let delay = u32::try_from(dice((seed, kill, call), 6)).unwrap();
                store.script(call, Fault::Delay(delay * MILLI));
            }
            let running = run(config.clone(), &store, &publisher);
            insert(&store, (0..20).map(|n| dice((seed, kill, n), 12)));
            elapse(MILLI * u32::try_from(dice((seed, kill), 60)).unwrap()).await;
            running.kill().await;
        }
        let running = run(config, &store, &publisher);
        settled(&store).await;
        publisher.view(|view| {
            assert_eq!(view.inversions(), [], "seed {seed}");
            assert_eq!(view.delivered().len() - view.copies(), 230, "seed {seed}");
            let most = usize::try_from(KILLS).unwrap() * 20;
            assert!(view.copies() <= most, "seed {seed}: {} copies after {KILLS} kills", view.copies());
        });
        assert_eq!(running.health.counters().late_full_sweep.load(std::sync::atomic::Ordering::Relaxed), 0);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_at_any_moment_nothing_is_copied() {
    for seed in 100..130 {
        let store = MemoryStore::new();
        let mut config = config();
        (config.window, config.batch_size) = (20, 16);
        (config.retry_initial, config.retry_max) = (10 * MILLI, 40 * MILLI);
        config.max_attempts = 100;
        insert(&store, (0..150).map(|n| dice((seed, n), 12)));
        let mut arrived: Vec<i64> = Vec::new();
        for stop in 0..5 {
            let publisher = Arc::new(publisher(seed));
            let running = run(config.clone(), &store, &publisher);
            if stop < 4 {
                elapse(MILLI * u32::try_from(dice((seed, stop), 60)).unwrap()).await;
            } else {
                settled(&store).await;
            }
            running.stop().await;
            arrived.extend(publisher.delivered_ids());
        }
        let mut ids = arrived.clone();
        ids.sort_unstable();
        assert_eq!(ids, (1..=150).collect::<Vec<_>>(), "seed {seed}: each once");
    }
}
