//! Where RabbitMQ and its Erlang are on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::URL_VARIABLE;
use crate::{Result, ServiceError, install};

/// The root of a tree that holds `usr/lib/rabbitmq` and `usr/lib/erlang`, to use before any other.
pub const ROOT_VARIABLE: &str = "OUTBOX_TEST_RABBITMQ_ROOT";

/// The scripts and the Erlang that run a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// Holds `rabbitmq-server` and `rabbitmqctl`: those of the release, for the packaged ones insist on a user.
    pub sbin: PathBuf,
    /// Holds `erl`.
    pub erlang_bin: PathBuf,
    /// Holds `epmd`.
    pub epmd: PathBuf,
}

impl Binaries {
    /// Looks, in this order, at [`ROOT_VARIABLE`], the system's packages and what `cargo xtask services up` has
    /// downloaded.
    ///
    /// # Errors
    /// When there are none.
    pub fn find() -> Result<Self> {
        let roots = [
            std::env::var_os(ROOT_VARIABLE).map(PathBuf::from),
            Some(PathBuf::from("/")),
            Some(install::base_dir().join("rabbitmq")),
        ];
        roots.into_iter().flatten().find_map(|root| Self::in_root(&root)).ok_or_else(|| {
            ServiceError::new(format!(
                "no RabbitMQ here: set {URL_VARIABLE} to a running broker, or install `rabbitmq-server`, or run \
                 `cargo xtask services up`"
            ))
        })
    }

    fn in_root(root: &Path) -> Option<Self> {
        let releases = children(&root.join("usr/lib/rabbitmq/lib"));
        let sbin = releases.map(|release| release.join("sbin")).find(|sbin| sbin.join("rabbitmq-server").is_file())?;
        let erlang = root.join("usr/lib/erlang");
        let erlang_bin = Some(erlang.join("bin")).filter(|bin| bin.join("erl").is_file())?;
        let epmd = children(&erlang).map(|dir| dir.join("bin/epmd")).find(|epmd| epmd.is_file())?;
        Some(Self { sbin, erlang_bin, epmd })
    }
}

fn children(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}
