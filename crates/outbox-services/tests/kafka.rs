//! The Kafka launcher against a real broker.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use outbox_services::kafka::{Kafka, Options};
use outbox_services::require_or_skip;

/// Whether the broker answers a request for its API versions.
fn answers(address: &str, within: Duration) -> bool {
    let asked = || -> std::io::Result<()> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(within))?;
        // length 10; API key 18, version 0, correlation id 1, no client id
        socket.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff])?;
        socket.read_exact(&mut [0; 8])
    };
    asked().is_ok()
}

#[test]
fn a_broker_is_paused_killed_and_leaves_nothing() {
    for options in [Options::default(), Options::default().durable()] {
        let Some(mut broker) = require_or_skip("kafka", Kafka::start(options)) else { return };
        let (address, long) = (broker.address(), Duration::from_secs(20));
        assert!(answers(&address, long));
        broker.create_topic("orders", 3).unwrap();
        broker.pause().unwrap();
        assert!(!answers(&address, Duration::from_millis(300)));
        broker.resume().unwrap();
        assert!(answers(&address, long));

        broker.kill9().unwrap();
        assert!(!answers(&address, Duration::from_millis(100)));
        assert!(broker.pause().is_err(), "nothing to pause");
        broker.start_again().unwrap();
        assert!(answers(&address, long));
        broker.stop().unwrap();
        broker.start_again().unwrap();

        let process = broker.process().unwrap();
        let log = broker.log();
        drop(broker);
        assert!(!process.is_alive());
        assert!(!log.exists());
    }
}
