//! How many lines the route writes: an outage or a flood of failures must not fill the log.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use outbox_core::{ErrorKind, PublishError};
use outbox_testkit::memory::{MemoryPublisher, MemoryStore, Scripted};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::rig::{SECOND, config, elapse, insert, run};

/// Keeps the messages of this thread's lines.
#[derive(Debug, Default, Clone)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

static SPANS: AtomicUsize = AtomicUsize::new(1);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(SPANS.fetch_add(1, Relaxed) as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().expect("no panic under it").push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    fn begin() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let guard = tracing::subscriber::set_default(lines.clone());
        (lines, guard)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic under it"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_a_few_lines_a_minute() {
    let (lines, _guard) = Lines::begin();
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, _| Scripted::fail(ErrorKind::Throttled)));
    let running = run(config(), &store, &publisher);
    running.status(|status| status.not_ready().is_none()).await;
    assert!(lines.take().iter().any(|line| line.contains("owns the route")), "lines are seen");
    insert(&store, 0..50);
    elapse(60 * SECOND).await;
    let told = lines.take();
    assert!((1..=6).contains(&told.len()), "{told:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_dead_letters_is_counted() {
    let (lines, _guard) = Lines::begin();
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_script(|_, _| Scripted::fail(ErrorKind::Rejected)));
    let running = run(config(), &store, &publisher);
    insert(&store, 0..5_000);
    store.wait_until(|view| view.dead_letters().len() == 5_000).await;
    elapse(30 * SECOND).await;
    let told = lines.take();
    let of = |text: &str| told.iter().filter(|line| line.contains(text)).count();
    assert_eq!((of("becomes a dead letter"), of("were left out of the log")), (20, 1), "{told:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn very_many_paused_topics_are_counted() {
    let (lines, _guard) = Lines::begin();
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::new().with_topic(|event| event.aggregate_id.clone()).with_script(|event, _| {
        let missing = PublishError::new(ErrorKind::Misconfigured, "no exchange");
        Scripted::Fail(missing.with_topic(event.aggregate_id.clone()))
    });
    let running = run(config(), &store, &Arc::new(publisher));
    insert(&store, 0..2_000);
    elapse(60 * SECOND).await;
    let told = lines.take();
    let paused = told.iter().filter(|line| line.contains("is paused")).count();
    assert!((1..=60).contains(&paused), "{paused} lines");
    assert!(told.len() < 70, "{} lines", told.len());
    running.stop().await;
}
