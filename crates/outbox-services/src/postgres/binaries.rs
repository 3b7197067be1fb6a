//! Which PostgreSQL binaries to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install;
use crate::process::run;
use crate::{Result, ServiceError};

/// A directory with `initdb`, `postgres` and `psql` to use before any other.
pub const BIN_VARIABLE: &str = "OUTBOX_TEST_PG_BIN";

/// A directory with PostgreSQL's server binaries and their major version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// Holds `initdb`, `postgres` and `psql`.
    pub dir: PathBuf,
    /// For example 15.
    pub major: u32,
}

impl Binaries {
    /// Looks, in this order, at [`BIN_VARIABLE`], the `PATH`, `/usr/lib/postgresql/*/bin` (newest first) and what
    /// `cargo xtask services up` has downloaded.
    ///
    /// # Errors
    /// When there are none, or none of the major version asked for.
    pub fn find(major: Option<u32>) -> Result<Self> {
        let found = candidates().into_iter().filter_map(|dir| Self::in_dir(&dir).ok());
        let fits = |binaries: &Self| major.is_none_or(|wanted| wanted == binaries.major);
        found.into_iter().find(fits).ok_or_else(|| {
            let what = major.map_or_else(|| "PostgreSQL".to_owned(), |major| format!("PostgreSQL {major}"));
            let flag = major.map_or_else(String::new, |major| format!(" --pg {major}"));
            ServiceError::new(format!(
                "no {what} server here: set {} to a running one, or {BIN_VARIABLE} to a directory with initdb, or run \
                 `cargo xtask services up{flag}`",
                super::URL_VARIABLE
            ))
        })
    }

    /// The binaries in this directory.
    ///
    /// # Errors
    /// When one is missing, or `initdb` does not tell its version.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        for name in ["initdb", "postgres", "psql"] {
            if !dir.join(name).is_file() {
                return Err(ServiceError::new(format!("{} holds no `{name}`", dir.display())));
            }
        }
        let said = run(Command::new(dir.join("initdb")).arg("--version"))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let major = major_in(&said)
            .ok_or_else(|| ServiceError::new(format!("`initdb --version` told no version: {}", said.trim())))?;
        Ok(Self { dir: dir.to_owned(), major })
    }

    /// The path of one binary.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// `psql` for a server that is not ours: beside server binaries, else on the `PATH`.
pub(super) fn any_psql() -> PathBuf {
    let beside = candidates().into_iter().map(|dir| dir.join("psql")).find(|psql| psql.is_file());
    beside.unwrap_or_else(|| PathBuf::from("psql"))
}

fn candidates() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = std::env::var_os(BIN_VARIABLE).map(PathBuf::from).into_iter().collect();
    for dir in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        // A link on the PATH leads to the directory that holds the others.
        if let Ok(real) = dir.join("initdb").canonicalize() {
            dirs.extend(real.parent().map(Path::to_owned));
        }
    }
    let mut packaged: Vec<PathBuf> = children("/usr/lib/postgresql".as_ref()).map(|dir| dir.join("bin")).collect();
    packaged.sort();
    dirs.extend(packaged.into_iter().rev());
    let base = install::base_dir();
    for major in install::POSTGRES_MAJORS.rev() {
        dirs.extend(install::downloaded_postgres(&base.join(format!("postgresql-{major}"))));
    }
    dirs.retain(|dir| dir.join("initdb").is_file());
    dirs
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// `initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` → 15.
fn major_in(said: &str) -> Option<u32> {
    let (_, after) = said.split_once("(PostgreSQL) ")?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::major_in;

    #[test]
    fn the_major_version_is_read() {
        assert_eq!(major_in("initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_in("initdb (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_in("initdb: nonsense"), None);
    }
}
