//! The RabbitMQ launcher against a real broker.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use outbox_services::process::wait_until;
use outbox_services::rabbitmq::RabbitMq;
use outbox_services::require_or_skip;

/// Whether the broker answers an AMQP header with its first frame.
fn answers(port: u16, within: Duration) -> bool {
    let asked = || -> std::io::Result<()> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(within))?;
        socket.write_all(b"AMQP\x00\x00\x09\x01")?;
        socket.read_exact(&mut [0])
    };
    asked().is_ok()
}

#[test]
fn a_node_is_paused_blocked_killed_and_leaves_nothing() {
    let Some(mut broker) = require_or_skip("amqp", RabbitMq::start()) else { return };
    let (port, long) = (broker.port(), Duration::from_secs(20));
    assert!(answers(port, long));
    broker.pause().unwrap();
    assert!(!answers(port, Duration::from_millis(300)));
    broker.resume().unwrap();
    assert!(answers(port, long));

    let alarmed = |broker: &RabbitMq| broker.ctl(&["eval", "rabbit_alarm:get_alarms()."]).unwrap().contains("memory");
    assert!(!alarmed(&broker));
    broker.block_memory().unwrap();
    assert!(wait_until(long, || alarmed(&broker)));
    broker.unblock_memory().unwrap();
    assert!(wait_until(long, || !alarmed(&broker)));

    broker.ctl(&["add_vhost", "kept"]).unwrap();
    broker.kill9().unwrap();
    assert!(!answers(port, Duration::from_millis(100)));
    assert!(broker.pause().is_err(), "nothing to pause");
    broker.start_again().unwrap();
    assert!(answers(port, long));
    assert!(broker.ctl(&["list_vhosts"]).unwrap().contains("kept"));

    let process = broker.process().unwrap();
    let log = broker.log();
    drop(broker);
    assert!(!process.is_alive());
    assert!(!log.exists());
}
