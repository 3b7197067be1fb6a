//! A private emulator: started, stopped, killed and paused by its owner.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use super::Emulator;
use crate::process::{Guard, Identity, free_port, log_tail, private_dir, spawn_server, wait_until};
use crate::{Result, ServiceError};

/// A start takes half a second on a free machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A polite stop writes what ministack keeps.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Tries with another port when one was taken between picking it and listening on it.
const PORT_TRIES: u32 = 3;

/// An emulator on a free loopback port. `Drop` kills it and removes its directory.
#[derive(Debug)]
pub struct Sqs {
    emulator: Emulator,
    root: PathBuf,
    dir: PathBuf,
    port: u16,
    server: Option<Child>,
    guard: Option<Guard>,
}

/// What is needed to find an emulator again that outlives the process that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The emulator.
    pub process: Identity,
    /// Its directory, to be removed after the process.
    pub dir: PathBuf,
    /// Where it listens.
    pub url: String,
}

impl Sqs {
    /// Starts an emulator and waits until it answers.
    ///
    /// # Errors
    /// When it is not there ([`Emulator::find`]) or does not come up; the text holds its log's end.
    pub fn start(emulator: Emulator) -> Result<Self> {
        let root = emulator.find()?;
        let mut tries = 0;
        loop {
            tries += 1;
            let dir = private_dir("outbox-sqs")?;
            let guard = Some(Guard::new(&dir)?);
            let mut server = Self { emulator, root: root.clone(), dir, port: free_port()?, server: None, guard };
            server.close_directory()?;
            match server.start_again() {
                Err(error) if tries < PORT_TRIES && is_about_the_port(&error.to_string()) => {}
                other => return other.map(|()| server),
            }
        }
    }

    /// The endpoint of all queues. Any region and credentials do.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The port; it stays the same over restarts.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What the emulator prints.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The emulator's process; `None` while it is stopped.
    #[must_use]
    pub fn process(&self) -> Option<Identity> {
        self.server.as_ref().and_then(|child| Identity::of(child.id()))
    }

    /// Kills the emulator as the kernel would. No queue and no message survives.
    ///
    /// # Errors
    /// When it can't be signalled.
    pub fn kill9(&mut self) -> Result<()> {
        self.end("KILL")
    }

    /// Stops the emulator politely and waits until it is gone. [`Emulator::Ministack`] keeps queues and messages.
    ///
    /// # Errors
    /// When it does not go.
    pub fn stop(&mut self) -> Result<()> {
        self.end("TERM")
    }

    /// Starts a stopped or killed emulator on its port and waits until it answers.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Err(ServiceError::new(format!("{} runs already", self.emulator.name())));
        }
        let log = self.log();
        let mut child = spawn_server(&mut self.emulator.command(&self.root, self.port, &self.dir), &log)?;
        if let (Some(guard), Some(process)) = (self.guard.as_mut(), Identity::of(child.id())) {
            guard.watch(&process)?;
        }
        let mut ended = None;
        let up = wait_until(START_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || answers(self.port, self.emulator.health_path())
        });
        let name = self.emulator.name();
        if let Some(status) = ended {
            return Err(ServiceError::new(format!("{name} ended at its start ({status}): {}", log_tail(&log))));
        }
        // Kept before the answer: `Drop` must see one that hangs too.
        self.server = Some(child);
        if up {
            return Ok(());
        }
        Err(ServiceError::new(format!("{name} was not ready within {START_LIMIT:?}: {}", log_tail(&log))))
    }

    /// Stops the emulator in its tracks: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pause(&self) -> Result<()> {
        self.running()?.signal("STOP")
    }

    /// Lets a paused emulator go on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.running()?.signal("CONT")
    }

    /// Lets the emulator outlive this process.
    ///
    /// # Errors
    /// When it is stopped.
    pub fn detach(mut self) -> Result<Detached> {
        let process = self.running()?;
        if let Some(guard) = self.guard.take() {
            guard.release()?;
        }
        self.server = None;
        Ok(Detached { process, dir: self.dir.clone(), url: self.url() })
    }

    fn running(&self) -> Result<Identity> {
        self.process().ok_or_else(|| ServiceError::new(format!("{} is not running", self.emulator.name())))
    }

    fn close_directory(&self) -> Result<()> {
        let closed = |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o700));
        closed(&self.dir).map_err(|error| ServiceError::while_doing("can't close the emulator's directory", error))
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
        child.wait().map(|_| ()).map_err(|error| ServiceError::while_doing("can't wait for the emulator", error))
    }
}

impl Drop for Sqs {
    fn drop(&mut self) {
        // The guard kills the emulator and removes the directory.
        drop(self.guard.take());
        if let Some(mut child) = self.server.take()
            && let Err(error) = child.wait()
        {
            eprintln!("the emulator of SQS could not be waited for: {error}");
        }
    }
}

/// Whether a GET is answered with success.
fn answers(port: u16, path: &str) -> bool {
    let limit = Duration::from_secs(5);
    let asked = || -> std::io::Result<bool> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(limit))?;
        write!(socket, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        socket.read_exact(&mut status)?;
        Ok(status == *b"HTTP/1.1 200")
    };
    asked().unwrap_or(false)
}

fn is_about_the_port(text: &str) -> bool {
    ["EADDRINUSE", "already in use"].iter().any(|sign| text.contains(sign))
}
