//! The relay as a process of its own: configured, started, killed, stopped.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use outbox_examples::consumer::{Arrivals, Failure, read_lines};
use outbox_testkit::services::process::{Guard, Identity, private_dir};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::broker::BrokerKind;

/// How many events a relay may have handed to the broker and not yet deleted: what may be sent again after a kill.
pub(crate) const WINDOW: usize = 2000;

/// Above the relay's own grace of 20 s.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How much of the relay's log is shown when something went wrong.
const LOG_LINES: usize = 20;

/// A relay process, or the place for one. Dropped, the process is killed and its directory removed.
pub(crate) struct Relay {
    running: Option<Running>,
    launch: Launch,
    arrivals: Arrivals,
    dir: PathBuf,
    // Ends the process also when this one is killed.
    guard: Guard,
}

struct Running {
    child: Child,
    reader: Option<JoinHandle<std::io::Result<()>>>,
}

/// Where the events go: a broker, and what leads to a place at it.
pub(crate) struct Target {
    pub(crate) broker: BrokerKind,
    pub(crate) settings: Vec<(&'static str, String)>,
}

/// What is started.
struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    reads_stdout: bool,
}

impl Relay {
    /// Writes the configuration and migrates the database. Starts nothing yet.
    pub(crate) async fn prepare(
        database: &str,
        target: &Target,
        custom: bool,
        arrivals: Arrivals,
    ) -> Result<Self, Failure> {
        let dir = private_dir("outbox-demo")?;
        let guard = Guard::new(&dir)?;
        let config = dir.join("outbox.toml");
        // It may hold passwords.
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&config)?;
        file.write_all(configuration(database, target)?.as_bytes())?;
        let config = config.display().to_string();
        let program = outbox_relay()?;
        let migrated = Command::new(&program).args(["migrate", "up", "--config", &config]).output().await?;
        if !migrated.status.success() {
            return Err(format!("the migration failed: {}", String::from_utf8_lossy(&migrated.stderr)).into());
        }
        let reads_stdout = target.broker == BrokerKind::Stdout;
        let launch = if custom {
            let mut arguments = vec![database.to_owned(), target.broker.name().to_owned()];
            arguments.extend(target.settings.iter().map(|(_, value)| value.clone()));
            Launch { program: beside_us("custom-relay")?, arguments, reads_stdout }
        } else {
            let arguments = ["run", "--config", &config].map(str::to_owned).to_vec();
            Launch { program, arguments, reads_stdout }
        };
        Ok(Self { running: None, launch, arrivals, dir, guard })
    }

    /// Starts the process.
    pub(crate) fn start(&mut self) -> Result<(), Failure> {
        let Launch { program, arguments, reads_stdout } = &self.launch;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(if *reads_stdout { Stdio::piped() } else { Stdio::null() })
            .stderr(log)
            // A Ctrl-C is for us; we then end the relay.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{} can't be started: {error}", program.display()))?;
        if let Some(identity) = child.id().and_then(Identity::of) {
            self.guard.watch(&identity)?;
        }
        let reader = child.stdout.take().map(|output| tokio::spawn(read_lines(output, self.arrivals.clone())));
        self.running = Some(Running { child, reader });
        Ok(())
    }

    /// Fails when the process has ended, which it never should by itself.
    pub(crate) fn must_run(&mut self) -> Result<(), Failure> {
        let Some(running) = &mut self.running else { return Err("the relay was not started".into()) };
        match running.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the relay ended by itself ({status})").into()),
        }
    }

    /// Kills the process as the kernel would, and waits until all that it wrote has been read.
    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        running.child.kill().await?;
        read_to_end(running).await
    }

    /// Asks the process to stop and waits for it: afterwards everything that it sent can be received.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        if let Some(identity) = running.child.id().and_then(Identity::of) {
            identity.signal("TERM")?;
        }
        let ended = tokio::time::timeout(STOP_LIMIT, running.child.wait()).await;
        let status = ended.map_err(|_| format!("the relay did not stop within {STOP_LIMIT:?}"))??;
        if !status.success() {
            return Err(format!("the relay did not stop cleanly ({status})").into());
        }
        read_to_end(running).await
    }

    /// The end of what the relay logged.
    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("relay.log")
    }
}

async fn read_to_end(running: Running) -> Result<(), Failure> {
    if let Some(reader) = running.reader {
        reader.await??;
    }
    Ok(())
}

fn configuration(database: &str, target: &Target) -> Result<String, Failure> {
    // A JSON string is a TOML string as well.
    let quoted = |text: &str| serde_json::to_string(text);
    let mut table = format!("[route.{}]\n", target.broker.name());
    for (key, value) in &target.settings {
        table.push_str(&format!("{key} = {}\n", quoted(value)?));
    }
    // A short lease, for the relay that follows a killed one waits for its end; and no full sweep, which would deliver
    // late what the ordinary reads had passed over.
    Ok(format!(
        "[database]\nurl = {}\n\n\
         [relay]\nname = \"demo\"\nwindow = {WINDOW}\nlease = \"3s\"\nfull_sweep_interval = \"1h\"\n\n\
         [admin]\nlisten = \"off\"\n\n\
         [[route]]\nname = \"orders\"\n\n{table}",
        quoted(database)?
    ))
}

/// The relay's binary: `OUTBOX_RELAY_BIN`, else the one built beside this one.
fn outbox_relay() -> Result<PathBuf, Failure> {
    match std::env::var_os("OUTBOX_RELAY_BIN") {
        Some(path) => Ok(path.into()),
        None => beside_us("outbox-relay"),
    }
}

fn beside_us(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let path = own.parent().unwrap_or(Path::new(".")).join(name);
    if path.is_file() {
        return Ok(path);
    }
    let hint = "cargo build -p outbox-relay -p outbox-examples --bins --all-features";
    Err(format!("{} is not there: build it with `{hint}`, or run `cargo xtask demo`", path.display()).into())
}
