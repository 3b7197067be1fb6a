//! The metrics of a route: they say what happened, and their number does not depend on what events hold.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_core::{ErrorKind, NewEvent, Payload, PublishError};
use outbox_relay::metrics::{FAMILIES, MAX_EVENT_TYPES, OTHER, Outside, render};
use outbox_relay::{DestinationState, Relay, RelayHealth, RouteConfig, RunError};
use outbox_testkit::memory::{MemoryPublisher, MemoryStore, Scripted};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::rig::{ROUTE, SECOND, config, elapse, event, insert, settled};

struct Running {
    health: RelayHealth,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Running {
    fn start(config: RouteConfig, store: &MemoryStore, publisher: &Arc<MemoryPublisher>) -> Self {
        let publisher = Arc::clone(publisher);
        let relay = Relay::builder(Arc::new(store.clone())).route(config, publisher).build().expect("a valid config");
        let (health, shutdown) = (relay.health(), CancellationToken::new());
        let task = tokio::spawn(relay.run(shutdown.clone()));
        Self { health, shutdown, task }
    }

    fn scrape(&self) -> String {
        render(&self.health, &Outside::default())
    }

    /// The value of a sample by its name and labels as they are written.
    fn value(&self, sample: &str) -> Option<f64> {
        let scrape = self.scrape();
        let line = scrape.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == sample));
        line.map(|line| line.rsplit_once(' ').expect("a sample").1.parse().expect("a number"))
    }

    /// The same for a family whose only label is the route.
    fn of_route(&self, name: &str) -> Option<f64> {
        self.value(&format!("{name}{{route=\"{ROUTE}\"}}"))
    }

    async fn wait(&self, wanted: impl FnMut(&outbox_relay::RouteStatus) -> bool) {
        let mut watch = self.health.routes()[0].watch();
        let seen = tokio::time::timeout(outbox_testkit::memory::PATIENCE, watch.wait_for(wanted)).await;
        assert!(seen.is_ok(), "the status never became as wanted");
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.expect("run does not panic").expect("run ends well");
    }
}

#[tokio::test(start_paused = true)]
async fn counts_are_what_happened() {
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::new().with_script(|event, nth| match event.aggregate_id.as_str() {
        "rejected" => Scripted::fail(ErrorKind::Rejected),
        "failing" => Scripted::fail(ErrorKind::Failed),
        "late" if nth == 1 => Scripted::fail(ErrorKind::Failed),
        _ => Scripted::Confirm,
    });
    insert(&store, (0..100).map(|n| n.to_string()));
    insert(&store, ["rejected", "failing", "late"]);
    store.insert_defective(&event("odd"), "its headers are no object");
    let mut config = config();
    config.max_attempts = 3;
    let running = Running::start(config, &store, &Arc::new(publisher));
    settled(&store).await;
    elapse(SECOND).await; // the loop tells its last changes

    let failed = |kind: &str| {
        let labels = format!("route=\"{ROUTE}\",event_type=\"order.placed\",kind=\"{kind}\"");
        running.value(&format!("outbox_events_failed_total{{{labels}}}"))
    };
    assert_eq!(running.of_route("outbox_events_published_total"), Some(101.0));
    assert_eq!((failed("failed"), failed("rejected"), failed("unavailable")), (Some(4.0), Some(1.0), None));
    let dead = |kind: &str| running.value(&format!("outbox_dead_letters_total{{route=\"{ROUTE}\",kind=\"{kind}\"}}"));
    let kinds = ["rejected", "failed", "undecodable", "unconfirmed"].map(|kind| dead(kind).expect("from the start"));
    assert_eq!(kinds, [1.0, 1.0, 1.0, 0.0]);
    for (gauge, expected) in [
        ("outbox_events_in_flight", 0.0),
        ("outbox_spilled_aggregates", 0.0),
        ("outbox_breaker_state", 0.0),
        ("outbox_paused_topics", 0.0),
        ("outbox_buckets_owned", 64.0),
        ("outbox_config_standby", 0.0),
    ] {
        assert_eq!(running.of_route(gauge), Some(expected), "{gauge}");
    }
    assert_eq!(running.of_route("outbox_delivery_latency_seconds_count"), Some(101.0));
    // Retries take seconds, and no longer belong to the batch that they came in.
    assert_eq!(running.of_route("outbox_batch_duration_seconds_count"), Some(1.0));
    assert!(running.of_route("outbox_batch_duration_seconds_sum").is_some_and(|sum| sum < 0.5));
    assert!(running.of_route("outbox_publish_duration_seconds_count") >= Some(3.0));
    assert!(running.of_route("outbox_read_duration_seconds_count") >= Some(2.0));
    assert!(running.value(&format!("outbox_wakeups_total{{route=\"{ROUTE}\",cause=\"poll\"}}")) > Some(0.0));
    for found_by in ["look_back", "full_sweep"] {
        let sample = format!("outbox_late_events_total{{route=\"{ROUTE}\",found_by=\"{found_by}\"}}");
        assert_eq!(running.value(&sample), Some(0.0));
    }
    // Nobody has asked the database, and nobody listens.
    for left_out in ["outbox_events_pending", "outbox_dead_letters", "outbox_listener_up"] {
        assert!(running.scrape().lines().all(|line| !line.starts_with(&format!("{left_out}{{"))), "{left_out}");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_and_a_missing_topic_show() {
    let store = MemoryStore::new();
    let publisher = Arc::new(MemoryPublisher::new().with_topic(|event| event.aggregate_id.clone()));
    let running = Running::start(config(), &store, &publisher);
    running.wait(|status| status.destination == DestinationState::Up).await;
    publisher.set_script(|event, _| match event.aggregate_id.as_str() {
        "missing" => Scripted::Fail(PublishError::new(ErrorKind::Misconfigured, "no queue").with_topic("missing")),
        _ => Scripted::Confirm,
    });
    insert(&store, ["missing", "there"]);
    running.wait(|status| matches!(status.destination, DestinationState::TopicsPaused(..))).await;
    assert_eq!(
        (running.of_route("outbox_paused_topics"), running.of_route("outbox_breaker_state")),
        (Some(1.0), Some(0.0))
    );

    publisher.set_down();
    insert(&store, ["there"]);
    running.wait(|status| matches!(status.destination, DestinationState::Paused(_))).await;
    assert_eq!(running.of_route("outbox_paused_topics"), Some(1.0), "it is still paused");
    assert!(running.of_route("outbox_breaker_state") >= Some(1.0));

    publisher.set_script(|_, _| Scripted::Confirm);
    publisher.set_up();
    settled(&store).await;
    running.wait(|status| status.destination == DestinationState::Up).await;
    assert_eq!(
        (running.of_route("outbox_paused_topics"), running.of_route("outbox_breaker_state")),
        (Some(0.0), Some(0.0))
    );

    let health = running.health.clone();
    running.stop().await;
    let scrape = render(&health, &Outside::default());
    assert!(!scrape.contains("outbox_breaker_state{"), "of a route that is not ours nothing is known");
    assert!(scrape.contains(&format!("outbox_events_in_flight{{route=\"{ROUTE}\"}} 0\n")));
}

/// Each of 100 000 aggregates has its own id and payload, and 10 000 event types fail, each with a text of its own.
#[tokio::test(start_paused = true)]
async fn the_number_of_series_is_bounded() {
    const AGGREGATES: usize = 100_000;
    const EVENT_TYPES: usize = 10_000;
    let store = MemoryStore::new();
    let publisher = MemoryPublisher::new().with_script(|event, nth| match nth {
        1 if event.id % 10 == 0 => {
            let planted = format!("planted-{}", event.aggregate_id);
            Scripted::Fail(PublishError::new(ErrorKind::Failed, planted))
        }
        _ => Scripted::Confirm,
    });
    let mut config = config();
    config.queue_events = AGGREGATES;
    let running = Running::start(config, &store, &Arc::new(publisher));
    running.wait(|status| status.destination == DestinationState::Up).await;
    let before = running.scrape().lines().count();
    for n in 0..AGGREGATES {
        let payload = Payload::raw_json(format!("\"planted-{n}\""));
        store.insert(&NewEvent::new(
            "order",
            format!("planted-{n}"),
            format!("type.{}", n / 10 % EVENT_TYPES),
            payload,
        ));
    }
    settled(&store).await;
    let scrape = running.scrape();
    let lines = scrape.lines().count();
    println!("{lines} lines, {} bytes; {before} before the first event", scrape.len());
    assert!(lines <= before + MAX_EVENT_TYPES + 1, "{lines}");
    assert!(!scrape.contains("planted"), "{scrape}");
    let others = format!("outbox_events_failed_total{{route=\"{ROUTE}\",event_type=\"{OTHER}\",kind=\"failed\"}} 9900");
    assert!(scrape.lines().any(|line| line == others), "{scrape}");
    let known: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
    let shown = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert!(shown.clone().count() > 10 && shown.into_iter().all(|name| known.contains(name)));
    running.stop().await;
}
