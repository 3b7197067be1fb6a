//! Child processes that leave nothing behind: identity of a pid, signals, ports, private directories, the guard.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{Result, ServiceError};

/// The uid and gid `nobody`, as which PostgreSQL runs when we are root (it refuses root).
const NOBODY: u32 = 65_534;

/// How often a condition is looked at while waiting for it: short against a start (0.2 s at best), long against its cost.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// A process that can be told from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// The kernel's start time of the process, in clock ticks since boot.
    pub started: String,
}

impl Identity {
    /// The identity of a live process; `None` when there is none with this pid (a zombie counts as none).
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command name is in parentheses and may hold blanks: count fields after the last parenthesis.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        Some(Self { pid, started: fields.nth(18)?.to_owned() })
    }

    /// Whether this very process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Sends a signal (`KILL`, `TERM`, `STOP` …) if this very process still runs.
    ///
    /// # Errors
    /// When the process lives and can't be signalled.
    pub fn signal(&self, signal: &str) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        // The shell's own `kill`: std has none, and a separate binary need not exist.
        let sent = run(Command::new("sh").arg("-c").arg(format!("kill -{signal} {}", self.pid)));
        if sent.is_err() && !self.is_alive() {
            return Ok(());
        }
        sent.map(|_| ())
    }

    /// Whether each thread of the process stands still after a `STOP`, which takes a moment to reach them all.
    pub(crate) fn stands_still(&self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        threads.flatten().all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
        })
    }

    /// Waits until the process is gone.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn wait_gone(&self, limit: Duration) -> Result<()> {
        if wait_until(limit, || !self.is_alive()) {
            return Ok(());
        }
        Err(ServiceError::new(format!("process {} still runs after {limit:?}", self.pid)))
    }
}

/// Looks until `condition` holds; `false` when it does not within `limit`.
#[must_use]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Makes a command run as `nobody` when we are root; std drops the supplementary groups with the uid.
pub fn unprivileged(command: &mut Command) -> &mut Command {
    if is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

/// Runs a command to its end and returns its output.
///
/// # Errors
/// When it can't be started or fails; the text holds the command and the end of what it printed.
pub fn run(command: &mut Command) -> Result<Output> {
    let shown = format!("{:?}", command.get_program());
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| ServiceError::while_doing(&format!("can't start {shown}"), error))?;
    if output.status.success() {
        return Ok(output);
    }
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(ServiceError::new(format!("{shown} failed ({}): {}", output.status, tail(&said, 1500))))
}

/// The last `limit` bytes of a text, cut at a character.
#[must_use]
pub(crate) fn tail(text: &str, limit: usize) -> &str {
    let mut from = text.len().saturating_sub(limit);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].trim()
}

/// A loopback port that was free a moment ago. Another process may take it first: starting a server is retried.
///
/// # Errors
/// When the system gives none.
pub fn free_port() -> Result<u16> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| ServiceError::while_doing("no free port on 127.0.0.1", error))
}

/// Whether something accepts connections on this loopback port.
#[must_use]
pub fn is_listening(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
}

/// A new private directory below the system's temporary directory.
///
/// # Errors
/// When it can't be made.
pub fn private_dir(prefix: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let nanos =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let path = std::env::temp_dir().join(format!("{prefix}-{}-{number}-{nanos:x}", std::process::id()));
    let made = fs::DirBuilder::new().create(&path);
    made.map_err(|error| ServiceError::while_doing(&format!("can't make {}", path.display()), error))?;
    Ok(path)
}

/// Hands a directory to `nobody` when we are root, and closes it to others.
pub(crate) fn give_to_unprivileged(path: &Path) -> Result<()> {
    let given = fs::set_permissions(path, fs::Permissions::from_mode(0o700))
        .and_then(|()| if is_root() { std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)) } else { Ok(()) });
    given.map_err(|error| ServiceError::while_doing(&format!("can't give {} away", path.display()), error))
}

/// Starts a server in a process group of its own (so that an interrupt of the test run reaches us, not it), with its
/// output in `log`.
pub(crate) fn spawn_server(command: &mut Command, log: &Path) -> Result<Child> {
    let shown = format!("can't start {:?}", command.get_program());
    let out = fs::OpenOptions::new().create(true).append(true).open(log);
    let out = out.map_err(|error| ServiceError::while_doing(&shown, error))?;
    let err = out.try_clone().map_err(|error| ServiceError::while_doing(&shown, error))?;
    command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .map_err(|error| ServiceError::while_doing(&shown, error))
}

/// The end of a log file, for an error text.
pub(crate) fn log_tail(log: &Path) -> String {
    let mut text = String::new();
    match fs::File::open(log).and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => tail(&text, 1500).to_owned(),
        Err(error) => format!("(its log {} can't be read: {error})", log.display()),
    }
}

/// Ends servers and removes their directory even when the process that started them is killed.
///
/// A small shell holds the reading end of a pipe whose writing end is ours: when we end in any way, it reads the end
/// of file, kills the pids that it was told (only if they are still those processes) and removes the directory.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
    dir: PathBuf,
}

/// Reads lines `pid start-time`; at the end of file kills what still is that process, then removes `$1`.
const GUARD_SCRIPT: &str = r#"
trap '' HUP INT TERM
all=''
while read -r pid started; do
  [ "$pid" = release ] && exit 0
  all="$all $pid:$started"
done
for one in $all; do
  pid=${one%%:*}; started=${one##*:}
  stat=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
  rest=${stat##*) }
  set_started=$(echo "$rest" | cut -d' ' -f20)
  [ "$set_started" = "$started" ] && kill -KILL "$pid" 2>/dev/null
done
tries=0
while ! rm -rf "$1" 2>/dev/null && [ $tries -lt 20 ]; do tries=$((tries+1)); sleep 0.1; done
"#;

impl Guard {
    /// A guard for the servers living in `dir`.
    ///
    /// # Errors
    /// When no shell can be started.
    pub fn new(dir: &Path) -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", GUARD_SCRIPT, "outbox-guard"])
            .arg(dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| ServiceError::while_doing("can't start the guard (`sh`)", error))?;
        Ok(Self { shell, dir: dir.to_owned() })
    }

    /// Tells the guard a process to end.
    ///
    /// # Errors
    /// When the guard has gone.
    pub fn watch(&mut self, process: &Identity) -> Result<()> {
        self.write(&format!("{} {}\n", process.pid, process.started))
    }

    /// Lets the servers live on after us (they are ended by their recorded pids later).
    ///
    /// # Errors
    /// When the guard has gone.
    pub fn release(mut self) -> Result<()> {
        self.write("release 0\n")
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let gone = || ServiceError::new(format!("the guard of {} has gone", self.dir.display()));
        let pipe = self.shell.stdin.as_mut().ok_or_else(gone)?;
        pipe.write_all(line.as_bytes()).map_err(|error| ServiceError::while_doing("the guard has gone", error))
    }
}

impl Drop for Guard {
    /// Closes the pipe and waits: when this returns the servers are dead and the directory is gone.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        if let Err(error) = self.shell.wait() {
            eprintln!("the guard of {} could not be waited for: {error}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_identity_does_not_survive_its_process() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert!(identity.is_alive());
        assert!(!Identity { pid: identity.pid, started: "1".to_owned() }.is_alive());
        identity.signal("KILL").unwrap();
        child.wait().unwrap();
        assert!(!identity.is_alive());
        identity.signal("KILL").unwrap();
    }

    #[test]
    fn the_guard_kills_what_it_watches_and_nothing_else() {
        let dir = private_dir("outbox-guard-test").unwrap();
        let mut watched = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let mut guard = Guard::new(&dir).unwrap();
        guard.watch(&Identity::of(watched.id()).unwrap()).unwrap();
        guard.watch(&Identity { pid: other.id(), started: "1".to_owned() }).unwrap();
        drop(guard);
        assert!(!watched.wait().unwrap().success());
        assert!(Identity::of(other.id()).is_some());
        assert!(!dir.exists());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_released_guard_touches_nothing() {
        let dir = private_dir("outbox-guard-test").unwrap();
        Guard::new(&dir).unwrap().release().unwrap();
        assert!(dir.exists());
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn waiting_ends_at_its_limit() {
        assert!(!wait_until(Duration::from_millis(1), || false));
        assert!(wait_until(Duration::ZERO, || true));
    }

    #[test]
    fn a_tail_is_cut_at_a_character() {
        assert_eq!(tail("aé", 1), "");
        assert_eq!(tail("aé", 2), "é");
        assert_eq!(tail(" ab ", 10), "ab");
    }
}
