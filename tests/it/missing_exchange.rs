//! A destination that is not there yet costs nothing: the topic pauses, and goes on soon after its declaration.

use std::time::Duration;

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load;
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

/// The promise: `probe_max` and a margin.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_pauses_and_its_declaration_is_noticed() {
    let Some(url) = broker() else { return };
    let Some(db) = Database::shared("missing_exchange").await else { return };
    let Some(config) = RelayConfig::new(&db.url()) else { return };
    within(seconds(90), async {
        let queue = Queue::bare(&url).await;
        load::prepare(&db).await;
        load::fill(&db, 500, 20).await;
        let relay = config.with_rabbitmq(&url, &queue.name).start().await;
        until(seconds(20), "the relay tells what is missing", || async { relay.reason().await.contains(&queue.name) })
            .await;
        // Several probes later nothing has changed.
        let pauses = async { until(seconds(60), "it is over", || async { relay.reason().await.is_empty() }).await };
        assert!(tokio::time::timeout(SOON, pauses).await.is_err(), "ready without an exchange");
        assert_eq!((db.count("events").await, db.count("retries").await, db.count("dead_letters").await), (500, 0, 0));
        assert!(relay.logged("") < 40, "{:?}", relay.log());

        queue.declare_exchange().await;
        queue.declare_queue(&[]).await;
        let consumer = queue.consume().await;
        until(SOON, "the first event arrives", || std::future::ready(consumer.count() > 0)).await;
        consumer.wait_for(500, seconds(10)).await;
        until(seconds(5), "the relay is ready", || async { relay.reason().await.is_empty() }).await;
        assert_eq!(relay.stop().await, Some(0));
        let verdict = load::history(&db).await.judge(consumer.events());
        assert!(verdict.holds() && verdict.duplicates == 0, "{verdict}");
        assert_eq!((db.count("events").await, db.count("retries").await, db.count("dead_letters").await), (0, 0, 0));
    })
    .await;
}
