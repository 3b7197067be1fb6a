//! A private broker: started, stopped, killed and paused by its owner.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{Objects, find};
use crate::process::{
    Guard, Identity, free_port, is_listening, log_tail, private_dir, run, spawn_server, tail, wait_until,
};
use crate::{Result, ServiceError};

/// It listens within 0.1 s on a free machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A killed process is gone at once, a polite end takes it no time either.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Tries with other ports when one was taken between picking it and listening on it.
const PORT_TRIES: u32 = 3;

/// How a broker is started.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    advertised: Option<String>,
    port: Option<u16>,
    durable: bool,
}

impl Options {
    /// Tells clients to connect to this `host:port`, behind which a proxy leads to [`Options::on_port`].
    #[must_use]
    pub fn advertising(mut self, address: impl Into<String>) -> Self {
        self.advertised = Some(address.into());
        self
    }

    /// Listens on this loopback port instead of any free one: a proxy has to know it before the broker starts.
    #[must_use]
    pub fn on_port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Keeps data over a kill, for as long as the launcher lives.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }
}

/// A broker on a loopback port with its own directory. `Drop` kills it and removes the directory.
#[derive(Debug)]
pub struct Kafka {
    binary: PathBuf,
    options: Options,
    dir: PathBuf,
    port: u16,
    objects: Option<Objects>,
    server: Option<Child>,
    guard: Option<Guard>,
}

/// What is needed to find a broker again that outlives the process that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The broker.
    pub process: Identity,
    /// Its directory, to be removed after the process.
    pub dir: PathBuf,
    /// Where it listens.
    pub url: String,
}

impl Kafka {
    /// Starts a broker and waits until it accepts connections.
    ///
    /// # Errors
    /// When there is no binary ([`find`]) or it does not come up; the text holds its log's end.
    pub fn start(options: Options) -> Result<Self> {
        let binary = find()?;
        let objects = if options.durable { Some(Objects::start()?) } else { None };
        let dir = private_dir("outbox-kafka")?;
        let guard = Some(Guard::new(&dir)?);
        let port = options.port.map_or_else(free_port, Ok)?;
        let mut broker = Self { binary, options, dir, port, objects, server: None, guard };
        let mut tries = 0;
        loop {
            tries += 1;
            match broker.start_again() {
                Err(error)
                    if tries < PORT_TRIES
                        && broker.options.port.is_none()
                        && error.to_string().contains("Address already in use") =>
                {
                    broker.port = free_port()?;
                }
                other => return other.map(|()| broker),
            }
        }
    }

    /// Where the broker listens, `kafka://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("kafka://{}", self.address())
    }

    /// Where the broker listens, `host:port`; it stays the same over restarts.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What the broker prints.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The broker's process; `None` while it is stopped.
    #[must_use]
    pub fn process(&self) -> Option<Identity> {
        self.server.as_ref().and_then(|child| Identity::of(child.id()))
    }

    /// Creates a topic.
    ///
    /// # Errors
    /// When the broker does not take the command.
    pub fn create_topic(&self, name: &str, partitions: u32) -> Result<()> {
        let mut command = Command::new(&self.binary);
        let broker = format!("tcp://{}", self.address());
        command.args(["topic", "create", "--broker", &broker, "--partitions", &partitions.to_string(), name]);
        run(&mut command).map(|_| ())
    }

    /// Kills the broker as the kernel would. What it acknowledged survives if it is durable: then the kill falls behind
    /// an append, before its answer.
    ///
    /// # Errors
    /// When it can't be signalled.
    pub fn kill9(&mut self) -> Result<()> {
        match self.objects.take() {
            Some(objects) => {
                let ended = objects.kill_behind_append(|| self.end("KILL"));
                self.objects = Some(objects);
                ended
            }
            None => self.end("KILL"),
        }
    }

    /// Stops the broker politely and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub fn stop(&mut self) -> Result<()> {
        self.end("TERM")
    }

    /// Starts a stopped or killed broker on its port and waits until it accepts connections.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Err(ServiceError::new("Kafka runs already"));
        }
        let begun = Instant::now();
        let advertised = self.options.advertised.clone().unwrap_or_else(|| self.address());
        let mut command = Command::new(&self.binary);
        let (storage, environment) = match &self.objects {
            Some(objects) => {
                let (engine, environment) = objects.storage();
                (engine, environment.to_vec())
            }
            None => ("memory://outbox/".to_owned(), Vec::new()),
        };
        command
            .arg("broker")
            .args(["--listener-url", &format!("tcp://{}", self.address())])
            .args(["--advertised-listener-url", &format!("tcp://{advertised}")])
            .args(["--storage-engine", &storage])
            .envs(environment)
            .env("RUST_LOG", "warn")
            .current_dir(&self.dir);
        let log = self.log();
        let mut child = spawn_server(&mut command, &log)?;
        if let (Some(guard), Some(process)) = (self.guard.as_mut(), Identity::of(child.id())) {
            guard.watch(&process)?;
        }
        let port = self.port;
        let mut ended = None;
        let up = wait_until(START_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || is_listening(port)
        });
        if let Some(status) = ended {
            return Err(ServiceError::new(format!("Kafka ended at its start ({status}): {}", log_tail(&log))));
        }
        // Kept before the answer: `Drop` must see a broker that hangs too.
        self.server = Some(child);
        if up {
            return Ok(());
        }
        let (waited, said) = (begun.elapsed(), log_tail(&log));
        Err(ServiceError::new(format!("Kafka was not ready within {waited:?}: {}", tail(&said, 1500))))
    }

    /// Stops the broker in its tracks: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pause(&self) -> Result<()> {
        self.running()?.signal("STOP")
    }

    /// Lets a paused broker go on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.running()?.signal("CONT")
    }

    /// Lets the broker outlive this process.
    ///
    /// # Errors
    /// When it is stopped, or durable: its store lives in this process.
    pub fn detach(mut self) -> Result<Detached> {
        if self.objects.is_some() {
            return Err(ServiceError::new("a durable broker can't outlive the process that holds its store"));
        }
        let process = self.running()?;
        if let Some(guard) = self.guard.take() {
            guard.release()?;
        }
        self.server = None;
        Ok(Detached { process, dir: self.dir.clone(), url: self.url() })
    }

    fn running(&self) -> Result<Identity> {
        self.process().ok_or_else(|| ServiceError::new("Kafka is not running"))
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let Some(mut child) = self.server.take() else { return Ok(()) };
        if let Some(process) = Identity::of(child.id()) {
            process.signal(signal)?;
            if let Err(error) = process.wait_gone(STOP_LIMIT) {
                self.server = Some(child);
                return Err(error);
            }
        }
        child.wait().map(|_| ()).map_err(|error| ServiceError::while_doing("can't wait for Kafka", error))
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        // The guard kills the broker and removes the directory.
        drop(self.guard.take());
        if let Some(mut child) = self.server.take()
            && let Err(error) = child.wait()
        {
            eprintln!("the Kafka broker could not be waited for: {error}");
        }
    }
}
