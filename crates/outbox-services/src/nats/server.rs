//! A private server: started, stopped, killed, paused and reconfigured by its owner.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use super::{Binary, Version};
use crate::process::{Guard, Identity, free_port, log_tail, private_dir, spawn_server, tail, wait_until};
use crate::{Result, ServiceError};

/// A start takes 0.1 s; longer when a store is recovered on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A polite stop takes milliseconds.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A reload is noted in the log within milliseconds.
const RELOAD_LIMIT: Duration = Duration::from_secs(10);

/// Tries with another port when one was taken between picking it and listening on it.
const PORT_TRIES: u32 = 3;

/// PEM texts that make a server speak TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate.
    pub cert_pem: String,
    /// Its private key.
    pub key_pem: String,
    /// The authority whose client certificates are required; `None`: clients show none.
    pub client_ca_pem: Option<String>,
}

/// How a private server differs from a plain one with JetStream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Speaks TLS with these.
    pub tls: Option<Tls>,
    /// Appended to the server's configuration file: users, limits.
    pub extra: String,
}

/// A server on a free loopback port with its own directory. `Drop` kills it and removes the directory.
#[derive(Debug)]
pub struct Nats {
    binary: Binary,
    options: Options,
    dir: PathBuf,
    port: u16,
    server: Option<Child>,
    guard: Option<Guard>,
}

/// What is needed to find a server again that outlives the process that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The server.
    pub process: Identity,
    /// Its directory, to be removed after the process.
    pub dir: PathBuf,
    /// Where it listens.
    pub url: String,
}

impl Nats {
    /// Starts a server with JetStream and no users.
    ///
    /// # Errors
    /// When there is no program ([`Binary::find`]) or it does not come up; the text holds its log's end.
    pub fn start(line: Version) -> Result<Self> {
        Self::start_with(line, Options::default())
    }

    /// Starts a server with options and waits until it accepts work.
    ///
    /// # Errors
    /// As [`Nats::start`].
    pub fn start_with(line: Version, options: Options) -> Result<Self> {
        let binary = Binary::find(line)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let dir = private_dir("outbox-nats")?;
            let guard = Some(Guard::new(&dir)?);
            let (binary, options, port) = (binary.clone(), options.clone(), free_port()?);
            let mut server = Self { binary, options, dir, port, server: None, guard };
            fs::set_permissions(&server.dir, fs::Permissions::from_mode(0o700))
                .map_err(|error| ServiceError::while_doing("can't close the server's directory", error))?;
            server.write_config()?;
            match server.start_again() {
                Err(error) if tries < PORT_TRIES && error.to_string().contains("address already in use") => {}
                other => return other.map(|()| server),
            }
        }
    }

    /// Where it listens; without user and password. With TLS the name in it is `localhost`.
    #[must_use]
    pub fn url(&self) -> String {
        match self.options.tls {
            Some(_) => format!("tls://localhost:{}", self.port),
            None => format!("nats://127.0.0.1:{}", self.port),
        }
    }

    /// The client port; it stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its version, such as `2.9.10`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.binary.version
    }

    /// What it prints.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// A directory of its own for files that belong to a test; removed with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process; `None` while it is stopped.
    #[must_use]
    pub fn process(&self) -> Option<Identity> {
        self.server.as_ref().and_then(|child| Identity::of(child.id()))
    }

    /// Kills the server as the kernel would. Its store survives.
    ///
    /// # Errors
    /// When it can't be signalled.
    pub fn kill9(&mut self) -> Result<()> {
        self.end("KILL")
    }

    /// Stops the server politely and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub fn stop(&mut self) -> Result<()> {
        self.end("TERM")
    }

    /// Starts a stopped or killed server on its port with its store and waits until it accepts work.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Err(ServiceError::new("NATS runs already"));
        }
        let log = self.log();
        if log.exists() {
            fs::rename(&log, self.dir.join("log.before"))
                .map_err(|error| ServiceError::while_doing("can't put the log aside", error))?;
        }
        let mut command = Command::new(&self.binary.path);
        let mut child = spawn_server(command.arg("-c").arg(self.config_file()).current_dir(&self.dir), &log)?;
        if let (Some(guard), Some(process)) = (self.guard.as_mut(), Identity::of(child.id())) {
            guard.watch(&process)?;
        }
        let mut ended = None;
        // It listens when JetStream has recovered its store: the greeting means that work is taken.
        let up = wait_until(START_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || greets(self.port)
        });
        if let Some(status) = ended {
            return Err(ServiceError::new(format!("NATS ended at its start ({status}): {}", log_tail(&log))));
        }
        // Kept before the answer: `Drop` must see a server that hangs too.
        self.server = Some(child);
        if up {
            return Ok(());
        }
        Err(ServiceError::new(format!("NATS was not ready within {START_LIMIT:?}: {}", log_tail(&log))))
    }

    /// Stops the server in its tracks: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When it is not running, or does not stand still.
    pub fn pause(&self) -> Result<()> {
        let process = self.running()?;
        process.signal("STOP")?;
        match wait_until(STOP_LIMIT, || process.stands_still()) {
            true => Ok(()),
            false => Err(ServiceError::new(format!("NATS does not stand still after {STOP_LIMIT:?}"))),
        }
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.running()?.signal("CONT")
    }

    /// Replaces [`Options::extra`] and lets the running server read its configuration again (SIGHUP).
    ///
    /// # Errors
    /// When it is not running or refuses the configuration.
    pub fn reload(&mut self, extra: &str) -> Result<()> {
        extra.clone_into(&mut self.options.extra);
        self.write_config()?;
        let before = self.printed()?.len();
        self.running()?.signal("HUP")?;
        let since = |server: &Self| server.printed().map(|text| text[before.min(text.len())..].to_owned());
        let done = wait_until(RELOAD_LIMIT, || {
            since(self).is_ok_and(|text| {
                text.contains("Reloaded server configuration") || text.contains("Failed to reload server configuration")
            })
        });
        let said = since(self)?;
        if done && said.contains("Reloaded server configuration") {
            return Ok(());
        }
        Err(ServiceError::new(format!("NATS did not take its new configuration: {}", tail(&said, 1500))))
    }

    /// Lets the server outlive this process.
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
        self.process().ok_or_else(|| ServiceError::new("NATS is not running"))
    }

    fn printed(&self) -> Result<String> {
        fs::read_to_string(self.log()).map_err(|error| ServiceError::while_doing("can't read the server's log", error))
    }

    fn config_file(&self) -> PathBuf {
        self.dir.join("nats.conf")
    }

    fn write_config(&self) -> Result<()> {
        let (port, dir) = (self.port, self.dir.display());
        // The store is bounded in memory and on disk, so that a test can't fill the machine.
        let mut config = format!(
            "server_name: outbox-{port}\nlisten: 127.0.0.1:{port}\n\
             jetstream {{ store_dir: \"{dir}/store\", max_mem: 64MB, max_file: 1GB }}\n"
        );
        let write = |name: &str, text: &str| {
            fs::write(self.dir.join(name), text)
                .map_err(|error| ServiceError::while_doing("can't write the server's configuration", error))
        };
        if let Some(tls) = &self.options.tls {
            write("server.pem", &tls.cert_pem)?;
            write("server-key.pem", &tls.key_pem)?;
            let mut block = format!("cert_file: \"{dir}/server.pem\", key_file: \"{dir}/server-key.pem\"");
            if let Some(ca) = &tls.client_ca_pem {
                write("client-ca.pem", ca)?;
                // Writing to a String can't fail.
                let _ = write!(block, ", ca_file: \"{dir}/client-ca.pem\", verify: true");
            }
            config.push_str(&format!("tls {{ {block} }}\n"));
        }
        config.push_str(&self.options.extra);
        write("nats.conf", &config)
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
        child.wait().map(|_| ()).map_err(|error| ServiceError::while_doing("can't wait for NATS", error))
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        // The guard kills the server and removes the directory.
        drop(self.guard.take());
        if let Some(mut child) = self.server.take()
            && let Err(error) = child.wait()
        {
            eprintln!("NATS could not be waited for: {error}");
        }
    }
}

/// Whether a server introduces itself, which it does also where TLS is to follow.
fn greets(port: u16) -> bool {
    let greeted = || -> std::io::Result<[u8; 4]> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut first = [0; 4];
        socket.read_exact(&mut first)?;
        // A client that leaves without a word is an error in the server's log.
        socket.write_all(b"PING\r\n")?;
        Ok(first)
    };
    greeted().is_ok_and(|first| first == *b"INFO")
}
