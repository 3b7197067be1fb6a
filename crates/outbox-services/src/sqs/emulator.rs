//! Which emulators there are, and how each is started.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::URL_VARIABLE;
use crate::{Result, ServiceError, install};

/// A server that speaks SQS.
///
/// Neither enforces the ten attributes of a message, their names, or that a standard queue gets no deduplication id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emulator {
    /// `fauxqs`, of Node.js: close to AWS in partial failures, sizes and FIFO. Everything is in memory: queues go with
    /// the process.
    Fauxqs,
    /// `ministack`, of Python: as close, slower, and after a polite stop its queues and messages are there again. After
    /// a kill they are not.
    Ministack,
}

impl Emulator {
    /// The name of its package, and of its directory below [`install::base_dir`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fauxqs => "fauxqs",
            Self::Ministack => "ministack",
        }
    }

    /// Where it is.
    ///
    /// # Errors
    /// When it is not there.
    pub fn find(self) -> Result<PathBuf> {
        let dir = install::base_dir().join(self.name());
        if self.is_in(&dir) {
            return Ok(dir);
        }
        Err(ServiceError::new(format!(
            "no {} here: set {URL_VARIABLE} to a server that speaks SQS, or run `cargo xtask services up`",
            self.name()
        )))
    }

    pub(crate) fn is_in(self, dir: &Path) -> bool {
        match self {
            Self::Fauxqs => dir.join("node_modules/fauxqs/dist/app.js").is_file(),
            Self::Ministack => dir.join("ministack/app.py").is_file(),
        }
    }

    /// The path that answers when it is ready.
    pub(crate) const fn health_path(self) -> &'static str {
        match self {
            Self::Fauxqs => "/health",
            Self::Ministack => "/_ministack/health",
        }
    }

    /// The command that runs what lies in `root` on a loopback port, with `dir` for what it keeps.
    pub(crate) fn command(self, root: &Path, port: u16, dir: &Path) -> Command {
        match self {
            // Its own program listens on all interfaces and has no setting for that, so its application is started here.
            Self::Fauxqs => {
                let script = format!(
                    "import {{ buildApp }} from 'fauxqs';\
                     await buildApp({{ logger: false }}).listen({{ port: {port}, host: '127.0.0.1' }});"
                );
                let mut command = Command::new("node");
                // Packages are looked for from the current directory on.
                command.args(["--input-type=module", "--eval", &script]).current_dir(root);
                command
            }
            Self::Ministack => {
                let mut command = Command::new("python3");
                command
                    .args(["-c", "from ministack.app import main; main()"])
                    .env("PYTHONPATH", root)
                    .env("PYTHONDONTWRITEBYTECODE", "1")
                    .env("GATEWAY_PORT", port.to_string())
                    .env("BIND_HOST", "127.0.0.1")
                    .env("SERVICES", "sqs")
                    .env("IOT_MTLS_ENABLED", "0")
                    .env("SFTP_ENABLED", "0")
                    .env("PERSIST_STATE", "1")
                    .env("STATE_DIR", dir.join("state"))
                    .env("TMPDIR", dir)
                    .current_dir(dir);
                command
            }
        }
    }
}
