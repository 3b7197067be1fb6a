//! A private node: started, stopped, killed, paused and blocked by its owner.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::Binaries;
use super::tls::{self, Tls};
use crate::process::{
    Guard, Identity, free_port, is_listening, log_tail, private_dir, run, spawn_server, tail, wait_until,
};
use crate::{Result, ServiceError};

/// A first start takes 4 to 7 s on a free machine, 17 s on a busy one.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A polite stop takes up to 7 s.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Tries with other ports when one was taken between picking it and listening on it.
const PORT_TRIES: u32 = 3;

/// The loopback ports of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    amqp: u16,
    distribution: u16,
    mapper: u16,
    management: u16,
    tls: u16,
}

impl Ports {
    fn pick() -> Result<Self> {
        Ok(Self {
            amqp: free_port()?,
            distribution: free_port()?,
            mapper: free_port()?,
            management: free_port()?,
            tls: free_port()?,
        })
    }
}

/// A node on free loopback ports with its own directory. `Drop` kills it with its port mapper and removes the
/// directory.
#[derive(Debug)]
pub struct RabbitMq {
    binaries: Binaries,
    dir: PathBuf,
    ports: Ports,
    server: Option<Child>,
    mapper: Option<Child>,
    guard: Option<Guard>,
}

/// What is needed to find a broker again that outlives the process that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// The node and its port mapper.
    pub processes: Vec<Identity>,
    /// Their directory, to be removed after the processes.
    pub dir: PathBuf,
    /// Where the node listens.
    pub url: String,
    /// Its management interface.
    pub management_url: String,
}

impl RabbitMq {
    /// Starts a node and waits until it accepts work. User and password are `guest`.
    ///
    /// # Errors
    /// When there are no binaries ([`Binaries::find`]) or the node does not come up; the text holds its log's end.
    pub fn start() -> Result<Self> {
        Self::start_node(None)
    }

    /// Starts a node that also speaks TLS, see [`RabbitMq::tls_port`].
    ///
    /// # Errors
    /// As [`RabbitMq::start`].
    pub fn start_with_tls(tls: &Tls<'_>) -> Result<Self> {
        Self::start_node(Some(tls))
    }

    fn start_node(tls: Option<&Tls<'_>>) -> Result<Self> {
        let binaries = Binaries::find()?;
        let mut tries = 0;
        loop {
            tries += 1;
            let dir = private_dir("outbox-amqp")?;
            let guard = Some(Guard::new(&dir)?);
            let ports = Ports::pick()?;
            let mut broker = Self { binaries: binaries.clone(), dir, ports, server: None, mapper: None, guard };
            broker.write_config(tls)?;
            broker.start_mapper()?;
            match broker.start_again() {
                Err(error) if tries < PORT_TRIES && is_about_a_port(&error.to_string()) => {}
                other => return other.map(|()| broker),
            }
        }
    }

    /// The AMQP address of the default virtual host.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.ports.amqp)
    }

    /// The management interface, for example for `GET /api/queues`.
    #[must_use]
    pub fn management_url(&self) -> String {
        format!("http://guest:guest@127.0.0.1:{}", self.ports.management)
    }

    /// The AMQP port; it stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.amqp
    }

    /// The port of AMQP over TLS, where the node was started with it.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.ports.tls
    }

    /// Gives the node another certificate, which new connections see. Takes 1 to 3 s.
    ///
    /// # Errors
    /// When the files can't be written or the node does not take the command.
    pub fn renew_certificate(&self, cert_pem: &str, key_pem: &str) -> Result<()> {
        tls::renew(&self.dir, cert_pem, key_pem)
            .map_err(|error| ServiceError::while_doing("can't write the broker's certificate", error))?;
        self.ctl(&["eval", "ssl:clear_pem_cache()."]).map(|_| ())
    }

    /// What the node prints.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The node's process; `None` while it is stopped.
    #[must_use]
    pub fn process(&self) -> Option<Identity> {
        self.server.as_ref().and_then(|child| Identity::of(child.id()))
    }

    /// Kills the node as the kernel would. Persistent messages in durable queues survive.
    ///
    /// # Errors
    /// When it can't be signalled.
    pub fn kill9(&mut self) -> Result<()> {
        self.end("KILL")
    }

    /// Stops the node politely and waits until it is gone (up to 7 s).
    ///
    /// # Errors
    /// When it does not go.
    pub fn stop(&mut self) -> Result<()> {
        self.end("TERM")
    }

    /// Starts a stopped or killed node on its ports and waits until it accepts work.
    ///
    /// # Errors
    /// When it runs already or does not come up.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Err(ServiceError::new("RabbitMQ runs already"));
        }
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.start_once() {
                // The port mapper still holds the name of a node that has just been killed.
                Err(error) if error.to_string().contains("already running") && Instant::now() < deadline => {}
                other => return other,
            }
        }
    }

    /// Stops the node in its tracks: connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When it is not running.
    pub fn pause(&self) -> Result<()> {
        self.running()?.signal("STOP")
    }

    /// Lets a paused node go on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn resume(&self) -> Result<()> {
        self.running()?.signal("CONT")
    }

    /// Raises the memory alarm: publishing connections are blocked, without an error. Takes 1 to 3 s.
    ///
    /// # Errors
    /// When the node does not take the command.
    pub fn block_memory(&self) -> Result<()> {
        self.ctl(&["set_vm_memory_high_watermark", "0"]).map(|_| ())
    }

    /// Ends the memory alarm.
    ///
    /// # Errors
    /// When the node does not take the command.
    pub fn unblock_memory(&self) -> Result<()> {
        self.ctl(&["set_vm_memory_high_watermark", "0.4"]).map(|_| ())
    }

    /// Runs `rabbitmqctl` and returns what it prints. Costs 1 to 3 s a call.
    ///
    /// # Errors
    /// When the command fails.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let output = run(self.command("rabbitmqctl").arg("--quiet").args(arguments))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lets the node outlive this process.
    ///
    /// # Errors
    /// When it is stopped.
    pub fn detach(mut self) -> Result<Detached> {
        let mut processes = vec![self.running()?];
        processes.extend(self.mapper.as_ref().and_then(|child| Identity::of(child.id())));
        if let Some(guard) = self.guard.take() {
            guard.release()?;
        }
        self.server = None;
        self.mapper = None;
        Ok(Detached { processes, dir: self.dir.clone(), url: self.url(), management_url: self.management_url() })
    }

    fn running(&self) -> Result<Identity> {
        self.process().ok_or_else(|| ServiceError::new("RabbitMQ is not running"))
    }

    fn write_config(&self, tls: Option<&Tls<'_>>) -> Result<()> {
        let Ports { amqp, management, .. } = self.ports;
        let mut config = format!(
            "listeners.tcp.default = 127.0.0.1:{amqp}\n\
             management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\n\
             loopback_users = none\ndisk_free_limit.absolute = 50MB\nvm_memory_high_watermark.absolute = 512MB\n\
             log.console = true\nlog.console.level = warning\nlog.file = false\n"
        );
        if let Some(tls) = tls {
            config += &tls.config(&self.dir, self.ports.tls);
        }
        let write = |name: &str, text: &str| fs::write(self.dir.join(name), text);
        fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o700))
            .and_then(|()| write("rabbitmq.conf", &config))
            .and_then(|()| tls.map_or(Ok(()), |tls| tls.write(&self.dir)))
            .and_then(|()| write("env.conf", ""))
            .and_then(|()| write("enabled_plugins", "[rabbitmq_management].\n"))
            .and_then(|()| fs::create_dir(self.dir.join("home")))
            .map_err(|error| ServiceError::while_doing("can't write the broker's configuration", error))
    }

    /// The port mapper is started by us, so that we know its pid: one that Erlang starts outlives the node.
    fn start_mapper(&mut self) -> Result<()> {
        let port = self.ports.mapper;
        let log = self.dir.join("mapper.log");
        let mut command = Command::new(&self.binaries.epmd);
        command.args(["-port", &port.to_string(), "-address", "127.0.0.1"]).env("HOME", self.dir.join("home"));
        let child = spawn_server(command.current_dir(&self.dir), &log)?;
        self.watch(child.id())?;
        self.mapper = Some(child);
        if wait_until(START_LIMIT, || is_listening(port)) {
            return Ok(());
        }
        Err(ServiceError::new(format!("Erlang's port mapper did not start: {}", log_tail(&log))))
    }

    fn start_once(&mut self) -> Result<()> {
        let log = self.log();
        if log.exists() {
            fs::rename(&log, self.dir.join("log.before"))
                .map_err(|error| ServiceError::while_doing("can't put the log aside", error))?;
        }
        let mut child = spawn_server(&mut self.command("rabbitmq-server"), &log)?;
        self.watch(child.id())?;
        let Ports { amqp, management, .. } = self.ports;
        let mut ended = None;
        // The AMQP listener opens when the node and its plug-ins have booted: its greeting means that work is taken.
        let up = wait_until(START_LIMIT, || {
            ended = child.try_wait().ok().flatten();
            ended.is_some() || (greets(amqp) && is_listening(management))
        });
        if let Some(status) = ended {
            return Err(ServiceError::new(format!("RabbitMQ ended at its start ({status}): {}", log_tail(&log))));
        }
        // Kept before the answer: `Drop` must see a node that hangs too.
        self.server = Some(child);
        if up {
            return Ok(());
        }
        Err(ServiceError::new(format!("RabbitMQ was not ready within {START_LIMIT:?}: {}", log_tail(&log))))
    }

    fn watch(&mut self, pid: u32) -> Result<()> {
        match (self.guard.as_mut(), Identity::of(pid)) {
            (Some(guard), Some(process)) => guard.watch(&process),
            _ => Ok(()),
        }
    }

    /// A script of the release with the environment that ties it to this node.
    fn command(&self, script: &str) -> Command {
        let mut path = vec![self.binaries.erlang_bin.clone(), self.binaries.sbin.clone()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut command = Command::new(self.binaries.sbin.join(script));
        for (name, file) in [
            ("HOME", "home"),
            ("ERL_CRASH_DUMP", "erl_crash.dump"),
            ("RABBITMQ_CONF_ENV_FILE", "env.conf"),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced.config"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins"),
            ("RABBITMQ_MNESIA_BASE", "mnesia"),
            ("RABBITMQ_LOG_BASE", "logs"),
            ("RABBITMQ_PID_FILE", "pid"),
            ("RABBITMQ_GENERATED_CONFIG_DIR", "generated"),
        ] {
            command.env(name, self.dir.join(file));
        }
        command
            // Joining fails only on a path that holds a colon, which then was not on the PATH.
            .env("PATH", std::env::join_paths(&path).unwrap_or_default())
            .env("RABBITMQ_NODENAME", format!("outbox{}@localhost", self.ports.amqp))
            .env("RABBITMQ_DIST_PORT", self.ports.distribution.to_string())
            .env("ERL_EPMD_PORT", self.ports.mapper.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("LANG", "C.UTF-8")
            .env("RABBITMQ_CTL_ERL_ARGS", "+S 1:1")
            // The script then becomes the node instead of a parent that would stay behind after a kill.
            .env("RABBITMQ_ALLOW_INPUT", "true")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
            )
            .current_dir(&self.dir);
        command
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
        child.wait().map(|_| ()).map_err(|error| ServiceError::while_doing("can't wait for RabbitMQ", error))
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        // The guard kills the node and its port mapper and removes the directory.
        drop(self.guard.take());
        for mut child in self.server.take().into_iter().chain(self.mapper.take()) {
            if let Err(error) = child.wait() {
                eprintln!("a process of RabbitMQ could not be waited for: {error}");
            }
        }
    }
}

/// Whether a broker answers the AMQP protocol header with its first frame.
fn greets(port: u16) -> bool {
    let limit = Duration::from_secs(5);
    let greeted = || -> std::io::Result<u8> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(limit))?;
        socket.write_all(b"AMQP\x00\x00\x09\x01")?;
        let mut frame_type = [0];
        socket.read_exact(&mut frame_type)?;
        Ok(frame_type[0])
    };
    // 1 is a method frame: `connection.start`.
    greeted().is_ok_and(|frame_type| frame_type == 1)
}

fn is_about_a_port(text: &str) -> bool {
    ["eaddrinuse", "already in use", "port_already_used", "port mapper did not start"]
        .iter()
        .any(|sign| tail(text, 4000).contains(sign))
}
