//! The SQS launcher against both emulators.

#![allow(clippy::unwrap_used, reason = "what tests share panics as the tests do")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use outbox_services::require_or_skip;
use outbox_services::sqs::{Emulator, Sqs};

/// Sends one request of the JSON protocol; any signature does.
fn ask(port: u16, action: &str, body: &str, within: Duration) -> Option<String> {
    let asked = || -> std::io::Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(within))?;
        write!(
            socket,
            "POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nX-Amz-Target: AmazonSQS.{action}\r\n\
             Content-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, \
             Signature=0\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    };
    asked().ok()
}

/// Whether the kernel has a listening socket on this port at an address that is not loopback.
fn listens_beyond_loopback(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let loopback = format!("{:08X}", u32::from_le_bytes(Ipv4Addr::LOCALHOST.octets()));
    let sockets = tables.iter().flat_map(|table| table.lines().skip(1));
    let listening = sockets.filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (address, local_port) = fields.next()?.split_once(':')?;
        let state = fields.nth(1)?;
        (state == "0A" && u16::from_str_radix(local_port, 16) == Ok(port)).then(|| address.to_owned())
    });
    let addresses: Vec<_> = listening.collect();
    assert!(!addresses.is_empty(), "nobody listens on {port}");
    addresses.iter().any(|address| *address != loopback)
}

fn run(emulator: Emulator, keeps: bool) {
    let Some(mut server) = require_or_skip("sqs", Sqs::start(emulator)) else { return };
    let (port, long, create) = (server.port(), Duration::from_secs(20), r#"{"QueueName":"kept"}"#);
    let lists = |port| ask(port, "ListQueues", "{}", long).unwrap().contains("/kept");
    assert!(!listens_beyond_loopback(port));
    assert!(ask(port, "CreateQueue", create, long).unwrap().contains("/kept"));
    assert!(lists(port));

    server.pause().unwrap();
    assert_eq!(ask(port, "ListQueues", "{}", Duration::from_millis(300)), None);
    server.resume().unwrap();
    assert!(lists(port));

    server.stop().unwrap();
    assert_eq!(ask(port, "ListQueues", "{}", long), None);
    assert!(server.pause().is_err(), "nothing to pause");
    server.start_again().unwrap();
    assert_eq!(lists(port), keeps);

    server.kill9().unwrap();
    server.start_again().unwrap();
    let process = server.process().unwrap();
    let log = server.log();
    assert!(process.is_alive() && log.exists());
    drop(server);
    assert!(!process.is_alive());
    assert!(!log.exists());
}

#[test]
fn fauxqs_is_paused_stopped_killed_and_leaves_nothing() {
    run(Emulator::Fauxqs, false);
}

#[test]
fn ministack_is_paused_stopped_killed_keeps_its_queues_over_a_stop_and_leaves_nothing() {
    run(Emulator::Ministack, true);
}
