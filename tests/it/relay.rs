//! The relay as its users run it: a process with a configuration from the environment.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use outbox_testkit::services::process::{Guard, Identity, private_dir};
use outbox_testkit::services::{ServiceError, require_or_skip};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::deadline::{seconds, until};

/// Where `cargo xtask test` put the binary.
const BINARY_VARIABLE: &str = "OUTBOX_RELAY_BIN";

/// A start, a stop or a log line takes far less, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How a relay is started; can be used again and again.
#[derive(Debug, Clone)]
pub(crate) struct RelayConfig {
    binary: PathBuf,
    env: Vec<(String, String)>,
}

impl RelayConfig {
    /// No destination yet. `None` when there is no binary and none is required.
    pub(crate) fn new(database_url: &str) -> Option<Self> {
        let beside = || {
            let own = std::env::current_exe().ok()?;
            Some(own.parent()?.parent()?.join("outbox-relay")).filter(|path| path.is_file())
        };
        let found = std::env::var_os(BINARY_VARIABLE).map(PathBuf::from).or_else(beside);
        let missing = || ServiceError::new(format!("set {BINARY_VARIABLE} to the binary `outbox-relay`"));
        let binary = require_or_skip("relay", found.ok_or_else(missing))?;
        let config = Self { binary, env: Vec::new() };
        let config = config.with("database.url", database_url).with("admin.listen", "127.0.0.1:0");
        // A full sweep would hide an event that was missed; leases are as short as they can be.
        Some(config.with("log.format", "json").with("relay.full_sweep_interval", "1h").with("relay.lease", "3s"))
    }

    /// Sets a key; the last value counts.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        let name = format!("OUTBOX__{}", key.replace('.', "__").to_uppercase());
        self.env.retain(|(other, _)| *other != name);
        self.env.push((name, value.to_owned()));
        self
    }

    /// To an exchange.
    pub(crate) fn with_rabbitmq(self, url: &str, exchange: &str) -> Self {
        self.with("route.0.rabbitmq.url", url).with("route.0.rabbitmq.exchange", exchange)
    }

    fn command(&self, arguments: &[&str], directory: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).current_dir(directory).env_clear().envs(self.env.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs a command of the binary to its end.
    pub(crate) fn call(&self, arguments: &[&str]) -> Output {
        self.command(arguments, &std::env::temp_dir()).output().unwrap()
    }

    /// Starts a relay and waits until its probes answer.
    pub(crate) async fn start(&self) -> Relay {
        self.start_with(&[]).await
    }

    /// The same with more variables in its environment.
    pub(crate) async fn start_with(&self, variables: &[(&str, &str)]) -> Relay {
        let dir = private_dir("outbox-relay").unwrap();
        let mut guard = Guard::new(&dir).unwrap();
        let (out, log) = (File::create(dir.join("out")).unwrap(), File::create(dir.join("log")).unwrap());
        let mut command = self.command(&["run"], &dir);
        let child = command.envs(variables.iter().copied()).stdout(out).stderr(log).spawn().unwrap();
        let process = Identity::of(child.id()).expect("the relay runs");
        guard.watch(&process).unwrap();
        let mut relay = Relay { child, process, dir, _guard: guard, address: String::new() };
        until(PATIENCE, "the relay tells where its probes answer", || {
            let address = relay.log().iter().find_map(|line| line["admin"].as_str().map(str::to_owned));
            relay.address = address.unwrap_or_default();
            std::future::ready(!relay.address.is_empty())
        })
        .await;
        relay
    }
}

/// A running relay; killed when dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    child: Child,
    process: Identity,
    dir: PathBuf,
    // Ends the process when we end in any way, and removes the directory.
    _guard: Guard,
    address: String,
}

impl Relay {
    /// All log lines so far.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join("log")).unwrap();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_owned()));
        whole.lines().map(line).collect()
    }

    /// How many log lines hold this text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        self.log().iter().filter(|line| line.to_string().contains(text)).count()
    }

    /// What it has written to its standard output.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.dir.join("out")).unwrap()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// The memory that it holds, in bytes, as Linux counts it.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it runs");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// What it has used of the processors so far, as Linux counts it.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").expect("the name stands in parentheses");
        // User and system time, in ticks of which there are a hundred a second on every Linux.
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap());
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name).unwrap();
    }

    /// Kills it as the kernel would and waits until it is gone.
    pub(crate) async fn kill9(mut self) {
        self.signal("KILL");
        self.exit_code().await;
    }

    /// Asks it to stop in order and waits for its exit code.
    pub(crate) async fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        self.exit_code().await
    }

    /// Waits for the end; `None` after a kill.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let child = &mut self.child;
        until(PATIENCE, "the relay ends", || std::future::ready(child.try_wait().unwrap().is_some())).await;
        child.wait().unwrap().code()
    }

    /// Status and body of a probe.
    pub(crate) async fn probe(&self, path: &str) -> (u16, Value) {
        let (head, body) = self.ask(path).await;
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(&body).unwrap())
    }

    /// What `/metrics` says.
    pub(crate) async fn scrape(&self) -> String {
        let (head, body) = self.ask("/metrics").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{head}");
        body
    }

    /// Head and body of an answer.
    async fn ask(&self, path: &str) -> (String, String) {
        let asked = async {
            let mut stream = TcpStream::connect(&self.address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        // The promise is one second; the machine that tests may be busy.
        let answer = timeout(seconds(5), asked).await.expect("the probes answer in time");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Why it is not ready; empty when it is.
    pub(crate) async fn reason(&self) -> String {
        let (status, body) = self.probe("/readyz").await;
        let reason = body["routes"][0]["reason"].as_str().unwrap_or_default().to_owned();
        assert_eq!(status == 200, reason.is_empty(), "{body}");
        reason
    }

    /// How many buckets of its first route it owns.
    pub(crate) async fn buckets(&self) -> u64 {
        let (_, body) = self.probe("/readyz").await;
        body["routes"][0]["buckets"].as_u64().unwrap()
    }

    /// Waits until it is ready as an owner.
    pub(crate) async fn wait_owner(&self, limit: Duration) {
        until(limit, "the relay owns the route and is ready", || async {
            let (status, body) = self.probe("/readyz").await;
            status == 200 && body["routes"][0]["owner"] == true
        })
        .await;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of the relay's log:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
