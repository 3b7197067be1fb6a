//! The NATS launcher against real servers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use outbox_services::nats::{Nats, Options, Version};
use outbox_services::require_or_skip;

/// Asks with PING; the answer's first line, if one comes in time. A server with users answers only who logs in.
fn answer(port: u16, login: &str, within: Duration) -> Option<String> {
    let asked = || -> std::io::Result<String> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(within))?;
        let mut lines = BufReader::new(socket.try_clone()?).lines();
        let mut next = || lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
        next()?;
        (&socket).write_all(format!("CONNECT {{\"verbose\":false{login}}}\r\nPING\r\n").as_bytes())?;
        // A server may introduce itself once more.
        loop {
            let line = next()?;
            if !line.starts_with("INFO ") {
                return Ok(line);
            }
        }
    };
    asked().ok()
}

#[test]
fn a_server_of_each_line_is_paused_killed_reloaded_and_leaves_nothing() {
    for line in [Version::New, Version::Old] {
        let Some(mut server) = require_or_skip("nats", Nats::start(line)) else { return };
        let (port, long, pong) = (server.port(), Duration::from_secs(20), Some("PONG".to_owned()));
        assert_eq!(answer(port, "", long), pong);
        server.pause().unwrap();
        assert_eq!(answer(port, "", Duration::from_millis(300)), None);
        server.resume().unwrap();
        assert_eq!(answer(port, "", long), pong);

        server.kill9().unwrap();
        assert_eq!(answer(port, "", Duration::from_millis(100)), None);
        assert!(server.pause().is_err(), "nothing to pause");
        server.start_again().unwrap();
        assert_eq!((server.port(), answer(port, "", long)), (port, pong.clone()));

        server.reload("authorization { user: u, password: p }\n").unwrap();
        assert!(answer(port, "", long).unwrap().contains("Authorization Violation"));
        assert_eq!(answer(port, ",\"user\":\"u\",\"pass\":\"p\"", long), pong);
        assert!(server.reload("nonsense {").is_err(), "a broken configuration is refused");

        let (process, dir) = (server.process().unwrap(), server.dir().to_owned());
        drop(server);
        assert!(!process.is_alive());
        assert!(!dir.exists());
    }
}

#[test]
fn a_configuration_that_the_server_refuses_is_told() {
    let options = Options { extra: "no_such_key: 1\n".to_owned(), ..Options::default() };
    let started = Nats::start_with(Version::New, options);
    let Some(_) = require_or_skip("nats", outbox_services::nats::Binary::find(Version::New)) else { return };
    let text = started.unwrap_err().to_string();
    assert!(text.contains("no_such_key"), "{text}");
}
