//! Field report B67: relays whose clocks are wrong.

use std::fs;
use std::time::Instant;

use outbox_testkit::services::{install, require_or_skip};

use crate::database::Database;
use crate::deadline::{seconds, until, within};
use crate::load::{self, Load};
use crate::queue::{Queue, broker};
use crate::relay::RelayConfig;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_hours_off_changes_nothing() {
    let library = tokio::task::block_in_place(|| install::faketime(&|line| println!("{line}")));
    let Some(library) = require_or_skip("faketime", library) else { return };
    let Some(url) = broker() else { return };
    for (offset, later) in [("+2h", "+2h"), ("-2h", "-2h"), ("+0", "-1h")] {
        let Some(db) = Database::shared("clocks").await else { return };
        let Some(config) = RelayConfig::new(&db.url()) else { return };
        within(seconds(90), async {
            let queue = Queue::declared(&url).await;
            let consumer = queue.consume().await;
            let config = config.with_rabbitmq(&url, &queue.name);
            load::prepare(&db).await;
            load::fill(&db, 500, 50).await;
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("offset");
            fs::write(&file, offset).unwrap();
            let fake = [
                ("LD_PRELOAD", library.to_str().unwrap()),
                ("FAKETIME_TIMESTAMP_FILE", file.to_str().unwrap()),
                ("FAKETIME_NO_CACHE", "1"),
                ("DONT_FAKE_MONOTONIC", "1"),
            ];
            let mut wrong = config.start_with(&fake).await;
            wrong.wait_owner(seconds(20)).await;
            let started = wrong.log()[0]["timestamp"].as_str().unwrap().to_owned();
            let off = format!("SELECT round(extract(epoch FROM '{started}'::timestamptz - now()) / 3600)::bigint");
            assert_eq!(
                db.number(&off).await,
                offset.trim_end_matches('h').parse::<i64>().unwrap(),
                "the clock is wrong"
            );
            let right = config.start().await;
            let writers = load::spawn(&db.url(), &Load { writers: 4, ..Load::ordinary(1_500) });
            until(seconds(20), "half is delivered", || std::future::ready(consumer.count() > 1_000)).await;
            fs::write(&file, later).unwrap();
            load::finish(writers).await;
            until(seconds(20), "the outbox is empty", || async { db.count("events").await == 0 }).await;
            // Longer than a lease has passed; it was neither stolen nor lost.
            let (_, body) = wrong.probe("/readyz").await;
            assert_eq!(body["routes"][0]["owner"], true, "{offset} {later}: {body}");
            assert_eq!(wrong.logged("the route is lost"), 0);
            assert_eq!(right.logged("this relay owns the route"), 0);
            // Leases are written with the database's clock.
            let far = "SELECT count(*) FROM outbox.relays WHERE abs(extract(epoch FROM lease_end - now())) > 60";
            assert_eq!(db.number(far).await, 0);
            let stopping = Instant::now();
            wrong.signal("TERM");
            assert_eq!(wrong.exit_code().await, Some(0));
            println!("{offset} {later}: stopped in {:?}", stopping.elapsed());
            assert_eq!(wrong.logged("could not be given back"), 0);
            right.wait_owner(seconds(20)).await;
            assert_eq!(right.stop().await, Some(0));
            let history = load::history(&db).await;
            until(seconds(10), "everything was consumed", || async { history.judge(consumer.events()).lost == 0 })
                .await;
            let verdict = history.judge(consumer.events());
            assert!(verdict.holds() && verdict.duplicates == 0, "{offset} {later}: {verdict}");
        })
        .await;
    }
}
