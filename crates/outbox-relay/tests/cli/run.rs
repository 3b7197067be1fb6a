//! `run` as a process: probes, signals, delivery to stdout.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use outbox_testkit::services::postgres::test_database_or_skip;
use outbox_testkit::services::process::wait_until;

use crate::binary::{command, relay};

const PATIENCE: Duration = Duration::from_secs(30);

/// A running relay whose output lines arrive as they are written. Dropped, it is killed.
struct Running {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    fn start(directory: &Path, env: &[(&str, &str)]) -> Self {
        let args = ["run", "--set", "admin.listen=127.0.0.1:0", "--set", "log.format=json", "--set", "relay.lease=3s"];
        let mut child = command(directory, &args, env).stdin(Stdio::null()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    /// The first log line with this field, as JSON.
    fn log_with(&self, field: &str) -> serde_json::Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.stderr.recv_timeout(deadline - Instant::now()).unwrap();
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if !line[field].is_null() {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        assert!(wait_until(PATIENCE, || self.child.try_wait().unwrap().is_some()), "the relay did not exit");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Status and body of a probe.
fn get(address: &str, path: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn it_delivers_answers_probes_and_stops_in_order() {
    let Some(db) = test_database_or_skip("cli_run") else { return };
    let directory = tempfile::tempdir().unwrap();
    let env = [("OUTBOX__DATABASE__URL", db.url.as_str()), ("OUTBOX__ROUTE__0__STDOUT", "{}")];
    assert_eq!(relay(directory.path(), &["migrate", "up"], &env, "").code, Some(0));
    let mut running = Running::start(directory.path(), &env);
    let address = running.log_with("admin")["admin"].as_str().unwrap().to_owned();

    let sql = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
               SELECT 'order', (n % 3)::text, 'placed', json_build_object('n', n) FROM generate_series(1, 100) n";
    db.psql(sql).unwrap();
    let mut delivered = BTreeMap::<String, Vec<i64>>::new();
    for _ in 1..=100 {
        let line = running.stdout.recv_timeout(PATIENCE).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let aggregate = line["aggregate_id"].as_str().unwrap().to_owned();
        delivered.entry(aggregate).or_default().push(line["payload"]["n"].as_i64().unwrap());
    }
    for (rest, numbers) in delivered.values().enumerate() {
        let rest = i64::try_from(rest).unwrap();
        assert_eq!(*numbers, (1..=100).filter(|n| n % 3 == rest).collect::<Vec<_>>());
    }
    assert_eq!(delivered.len(), 3);
    assert!(wait_until(PATIENCE, || get(&address, "/readyz").0 == 200));
    let (_, ready) = get(&address, "/readyz");
    let route = serde_json::json!({ "route": "default", "ready": true, "owner": true, "buckets": 64 });
    assert_eq!(ready, serde_json::json!({ "ready": true, "routes": [route] }));
    assert_eq!(get(&address, "/livez").0, 200);
    assert_eq!(get(&address, "/metricz").0, 404);
    assert!(wait_until(PATIENCE, || db.psql("SELECT count(*) FROM outbox.events").unwrap() == "0"));
    let status = relay(directory.path(), &["status", "--output", "json"], &env, "").json();
    assert_eq!((&status["owners"][0]["route"], &status["owners"][0]["buckets"]), (&"default".into(), &64.into()));

    running.signal("-TERM");
    assert_eq!(running.exit_code(), Some(0));
    assert!(running.stdout.recv_timeout(PATIENCE).is_err(), "a copy without a crash");
    // Given back, so that the next relay need not wait for the lease.
    let owned = db.psql("SELECT count(owner) FROM outbox.buckets").unwrap();
    assert_eq!(owned, "0");
}

#[test]
fn it_starts_without_a_database_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let url = "postgres://relay:geheim@127.0.0.1:1/app";
    let env = [("OUTBOX__DATABASE__URL", url), ("OUTBOX__ROUTE__0__STDOUT", "{}")];
    let mut running = Running::start(directory.path(), &env);
    let address = running.log_with("admin")["admin"].as_str().unwrap().to_owned();
    let reason = || get(&address, "/readyz").1["routes"][0]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(wait_until(PATIENCE, || reason().starts_with("database: ")), "{}", reason());
    assert_eq!((get(&address, "/readyz").0, get(&address, "/livez").0), (503, 200));
    assert!(!reason().contains("geheim"));
    running.signal("-INT");
    assert_eq!(running.exit_code(), Some(0));
    assert!(running.stderr.iter().all(|line| !line.contains("geheim")));
}

#[test]
fn a_taken_port_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let env = [
        ("OUTBOX__DATABASE__URL", "postgres://127.0.0.1:1/app"),
        ("OUTBOX__ROUTE__0__STDOUT", "{}"),
        ("OUTBOX__ADMIN__LISTEN", &address),
    ];
    let done = relay(directory.path(), &["run"], &env, "");
    assert_eq!(done.code, Some(1));
    let expected = format!("admin.listen: {address} can't be listened on");
    assert!(done.stderr.contains(&expected) && done.stderr.contains("choose another port"), "{}", done.stderr);
}

#[test]
fn a_second_signal_exits_at_once() {
    let Some(db) = test_database_or_skip("cli_second_signal") else { return };
    let directory = tempfile::tempdir().unwrap();
    let env = [("OUTBOX__DATABASE__URL", db.url.as_str()), ("OUTBOX__ROUTE__0__STDOUT", "{}")];
    assert_eq!(relay(directory.path(), &["migrate", "up"], &env, "").code, Some(0));
    // Nobody reads stdout: the pipe fills, the publisher hangs, and an orderly stop has to wait for it.
    let args = ["run", "--set", "admin.listen=off"];
    let mut child = command(directory.path(), &args, &env).spawn().unwrap();
    let stderr = lines(child.stderr.take().unwrap());
    let payload = "x".repeat(100_000);
    let sql = format!(
        "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', n::text, 'placed', to_json('{payload}'::text) FROM generate_series(1, 20) n"
    );
    db.psql(&sql).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap(); // it is writing
    let mut running = Running { child, stdout: channel().1, stderr };
    running.signal("-TERM");
    let asked = running.stderr.iter().find(|line| line.contains("asked to stop"));
    assert!(asked.is_some());
    let second = Instant::now();
    running.signal("-TERM");
    assert_eq!(running.exit_code(), Some(1));
    assert!(second.elapsed() < Duration::from_secs(5), "an orderly stop takes 10 s here");
}

#[test]
fn a_closed_stdout_is_refused_before_an_event_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!("exec {} run >&-", env!("CARGO_BIN_EXE_outbox-relay"));
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(directory.path())
        .env("OUTBOX__DATABASE__URL", "postgres://nobody@127.0.0.1:1/none")
        .env("OUTBOX__ADMIN__LISTEN", "off")
        .env("OUTBOX__ROUTE__0__STDOUT", "{}")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("stdout is closed"), "{error}");
}
