//! A streaming replica of a server, and its promotion.

use std::fs;
use std::process::Command;

use super::Postgres;
use crate::process::{run, unprivileged};
use crate::{Result, ServiceError};

impl Postgres {
    /// Takes a base backup of this server and starts a standby from it, which answers reads and follows this server
    /// asynchronously. It has this server's settings.
    ///
    /// `upstream` is where the standby finds this server (`host:port`): its own address, or that of a proxy that can
    /// keep the standby behind.
    ///
    /// # Errors
    /// When `pg_basebackup` is missing or fails, or the standby does not come up.
    pub fn start_standby(&self, upstream: &str) -> Result<Self> {
        let (host, port) = upstream
            .rsplit_once(':')
            .ok_or_else(|| ServiceError::new(format!("a standby's upstream must be host:port, got `{upstream}`")))?;
        let follow = format!("host={host} port={port} user=postgres application_name=standby");
        let options = self.options.clone().with_setting("primary_conninfo", &follow);
        let mut standby = Self::without_data(self.binaries.clone(), options)?;
        let mut backup = Command::new(self.binaries.path("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-p", &self.port().to_string(), "-U", "postgres"]);
        backup.args(["-c", "fast", "-X", "stream", "--no-sync", "-D"]).arg(standby.data()).current_dir(&standby.dir);
        run(unprivileged(&mut backup))?;
        fs::write(standby.data().join("standby.signal"), "")
            .map_err(|error| ServiceError::while_doing("can't mark the standby", error))?;
        standby.come_up()?;
        Ok(standby)
    }

    /// Makes a standby a primary, on a timeline of its own, and waits until it takes writes. Its sessions stay.
    ///
    /// # Errors
    /// When it is no standby, or is not promoted within a minute.
    pub fn promote(&self) -> Result<()> {
        // tidy: the launcher speaks to its own server and knows no outbox
        match self.psql("SELECT pg_promote(true, 60)")?.as_str() {
            "t" => Ok(()),
            other => Err(ServiceError::new(format!("the standby was not promoted: pg_promote said `{other}`"))),
        }
    }
}
