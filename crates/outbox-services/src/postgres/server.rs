//! A PostgreSQL server of one's own.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::binaries::Binaries;
use crate::process::{
    Guard, Identity, free_port, give_to_unprivileged, is_listening, log_tail, private_dir, run, spawn_server,
    unprivileged, wait_until,
};
use crate::{Result, ServiceError, install};

/// A start takes 0.2 s here; recovery of a big WAL on a loaded machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A fast stop ends sessions and writes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Tries with another port when ours was taken between picking it and listening on it.
const PORT_TRIES: u32 = 5;

/// How to start a server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    major: Option<u32>,
    durable: bool,
    own_identity: bool,
    settings: Vec<(String, String)>,
}

impl Options {
    /// Asks for a major version; default: the first found.
    #[must_use]
    pub fn with_major(mut self, major: u32) -> Self {
        self.major = Some(major);
        self
    }

    /// Keeps `fsync` and `full_page_writes` on: for benchmarks and tests of lost power. Default: off, which a killed
    /// server survives as well (the operating system keeps what was written).
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Gives the server a system identifier of its own; default: all servers are copies of one `initdb`.
    #[must_use]
    pub fn with_own_identity(mut self) -> Self {
        self.own_identity = true;
        self
    }

    /// One more server setting, for example `("max_connections", "20")`; the last one for a name counts.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Ends sessions, writes a checkpoint.
    Fast,
    /// Ends at once; recovers at the next start.
    Immediate,
}

/// A server on a free loopback port with its own directory. `Drop` kills it and removes the directory.
#[derive(Debug)]
pub struct Postgres {
    pub(super) binaries: Binaries,
    pub(super) options: Options,
    pub(super) dir: PathBuf,
    port: u16,
    child: Option<Child>,
    guard: Option<Guard>,
}

/// What is needed to find a server again that outlives the process that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The server process.
    pub process: Identity,
    /// Its directory, to be removed after the process.
    pub dir: PathBuf,
    /// Where it listens.
    pub url: String,
}

impl Postgres {
    /// Starts a server and waits until it accepts connections. Trusts every loopback connection as user `postgres`.
    ///
    /// # Errors
    /// When there are no binaries ([`Binaries::find`]) or the server does not come up; the text holds its log's end.
    pub fn start(options: Options) -> Result<Self> {
        let mut server = Self::without_data(Binaries::find(options.major)?, options)?;
        server.make_data()?;
        server.come_up()?;
        Ok(server)
    }

    /// A server that has a directory and nothing in it.
    pub(super) fn without_data(binaries: Binaries, options: Options) -> Result<Self> {
        let dir = private_dir("outbox-pg")?;
        let guard = Guard::new(&dir)?;
        let server = Self { binaries, options, dir, port: 0, child: None, guard: Some(guard) };
        give_to_unprivileged(&server.dir)?;
        Ok(server)
    }

    /// Its first start, on a port that is free.
    pub(super) fn come_up(&mut self) -> Result<()> {
        let mut tries = 0;
        loop {
            self.port = free_port()?;
            tries += 1;
            match self.start_again() {
                Err(error) if tries < PORT_TRIES && error.to_string().contains("could not bind") => {}
                other => return other,
            }
        }
    }

    /// The address of the database `postgres`, for sqlx, psql and libpq.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The address of one database of this server.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The loopback port; it stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The binaries that this server runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The server's log file.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The server process; `None` while it is stopped.
    #[must_use]
    pub fn process(&self) -> Option<Identity> {
        self.child.as_ref().and_then(|child| Identity::of(child.id()))
    }

    /// Runs SQL with `psql` in the database `postgres` and returns its bare output.
    ///
    /// # Errors
    /// When the server is away or refuses a statement.
    pub fn psql(&self, sql: &str) -> Result<String> {
        super::database::psql(&self.binaries.path("psql"), &self.url(), sql)
    }

    /// Stops and starts again on the same port.
    ///
    /// # Errors
    /// As [`Self::stop`] and [`Self::start_again`].
    pub fn restart(&mut self, mode: Mode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    /// Stops the server and waits until it is gone; the data stays for [`Self::start_again`].
    ///
    /// # Errors
    /// When it does not go.
    pub fn stop(&mut self, mode: Mode) -> Result<()> {
        let signal = match mode {
            Mode::Fast => "INT",
            Mode::Immediate => "QUIT",
        };
        self.end(signal)
    }

    /// Kills the server process as the kernel would. Its sessions notice and end a moment later;
    /// [`Self::start_again`] waits for that.
    ///
    /// # Errors
    /// When it can't be signalled.
    pub fn kill9(&mut self) -> Result<()> {
        self.end("KILL")
    }

    /// Starts a stopped or killed server on its port and waits until it accepts connections.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start_again(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Err(ServiceError::new("PostgreSQL runs already"));
        }
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.start_once() {
                Ok(()) => return Ok(()),
                // After a kill the sessions hold the shared memory for a moment longer.
                Err(error) if error.to_string().contains("still in use") && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets the server outlive this process.
    ///
    /// # Errors
    /// When it is stopped.
    pub fn detach(mut self) -> Result<Detached> {
        let stopped = || ServiceError::new("PostgreSQL is stopped: nothing to leave running");
        let process = self.process().ok_or_else(stopped)?;
        if let Some(guard) = self.guard.take() {
            guard.release()?;
        }
        self.child = None;
        Ok(Detached { process, dir: self.dir.clone(), url: self.url() })
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn make_data(&self) -> Result<()> {
        if self.options.own_identity {
            return initdb(&self.binaries, &self.data());
        }
        let template = template(&self.binaries)?;
        let mut copy = Command::new("cp");
        copy.args([OsStr::new("-a"), OsStr::new("--reflink=auto"), template.as_os_str(), self.data().as_os_str()]);
        run(unprivileged(&mut copy)).map(|_| ())
    }

    fn start_once(&mut self) -> Result<()> {
        let log = self.log();
        // The log tells why a start failed: only this start's lines may be read for that.
        let old = self.dir.join("log.before");
        if log.exists() {
            fs::rename(&log, &old).map_err(|error| ServiceError::while_doing("can't put the log aside", error))?;
        }
        let mut command = Command::new(self.binaries.path("postgres"));
        command.arg("-D").arg(self.data()).arg("-p").arg(self.port.to_string()).current_dir(&self.dir);
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let mut child = spawn_server(unprivileged(&mut command), &log)?;
        let pid = child.id();
        if let (Some(guard), Some(process)) = (self.guard.as_mut(), Identity::of(pid)) {
            guard.watch(&process)?;
        }
        let data = self.data();
        let mut ended = None;
        let up = wait_until(START_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || (says_ready(&data, pid) && is_listening(self.port))
        });
        if let Some(status) = ended {
            return Err(ServiceError::new(format!("PostgreSQL ended at its start ({status}): {}", log_tail(&log))));
        }
        // Kept before the answer: `Drop` must see a server that hangs too.
        self.child = Some(child);
        if up {
            return Ok(());
        }
        Err(ServiceError::new(format!("PostgreSQL was not ready within {START_LIMIT:?}: {}", log_tail(&log))))
    }

    fn settings(&self) -> Vec<(String, String)> {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut all = vec![
            own("listen_addresses", "127.0.0.1"),
            own("unix_socket_directories", &self.dir.to_string_lossy()),
            own("shared_buffers", "64MB"),
            own("max_connections", "200"),
            own("max_prepared_transactions", "10"),
            own("timezone", "UTC"),
        ];
        if !self.options.durable {
            // Never `synchronous_commit`: without it a killed server loses commits that it has acknowledged.
            all.extend([own("fsync", "off"), own("full_page_writes", "off")]);
        }
        all.extend(self.options.settings.iter().cloned());
        all
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(process) = Identity::of(child.id()) {
            process.signal(signal)?;
            if let Err(error) = process.wait_gone(STOP_LIMIT) {
                self.child = Some(child);
                return Err(error);
            }
        }
        child.wait().map(|_| ()).map_err(|error| ServiceError::while_doing("can't wait for PostgreSQL", error))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The guard kills the server and removes the directory.
        drop(self.guard.take());
        if let Some(mut child) = self.child.take()
            && let Err(error) = child.wait()
        {
            eprintln!("PostgreSQL could not be waited for: {error}");
        }
    }
}

/// Whether the server with this pid has written in its pid file that it accepts connections, be it as a standby.
fn says_ready(data: &Path, pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = text.lines();
    // The first line is the pid, the eighth the state. An older file may still lie there.
    lines.next().is_some_and(|first| first.trim() == pid.to_string())
        && lines.nth(6).is_some_and(|state| matches!(state.trim(), "ready" | "standby"))
}

/// A data directory made once and copied for each server: `initdb` takes a second, a copy a tenth of it.
fn template(binaries: &Binaries) -> Result<PathBuf> {
    let shelf = install::make_base_dir()?.join("templates");
    fs::create_dir_all(&shelf).map_err(|error| ServiceError::while_doing("can't make the template's place", error))?;
    // The version and the path: two builds of one version may differ in what their data needs.
    let name: String = binaries.dir.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let user = if crate::process::is_root() { "nobody" } else { "own" };
    let version = run(Command::new(binaries.path("initdb")).arg("--version"))?;
    let version = String::from_utf8_lossy(&version.stdout).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let place = shelf.join(format!("{user}{name}{version}"));
    if place.is_dir() {
        return Ok(place.join("data"));
    }
    let work = private_dir("outbox-pg-template")?;
    give_to_unprivileged(&work)?;
    initdb(binaries, &work.join("data"))?;
    // Copied beside its place, then renamed: another process sees a whole template or none.
    let part = shelf.join(format!("part-{}-{version}", std::process::id()));
    run(Command::new("cp").arg("-a").arg(&work).arg(&part))?;
    fs::remove_dir_all(&work).map_err(|error| ServiceError::while_doing("can't remove a work directory", error))?;
    if fs::rename(&part, &place).is_err() {
        // Another process was faster.
        fs::remove_dir_all(&part).map_err(|error| ServiceError::while_doing("can't remove a spare template", error))?;
    }
    Ok(place.join("data"))
}

fn initdb(binaries: &Binaries, data: &Path) -> Result<()> {
    let mut command = Command::new(binaries.path("initdb"));
    command.arg("-D").arg(data).args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]);
    command.current_dir("/");
    run(unprivileged(&mut command)).map(|_| ())
}
