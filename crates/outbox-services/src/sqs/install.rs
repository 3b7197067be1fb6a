//! Gets an emulator through the machine's own package clients.

use std::path::PathBuf;
use std::process::Command;

use super::{Emulator, URL_VARIABLE};
use crate::install::{fresh, make_base_dir, part_of, publish, remove};
use crate::process::run;
use crate::{Result, ServiceError};

/// The newest fauxqs that runs on Node.js 20.
const FAUXQS: &str = "fauxqs@1.9.2";
const MINISTACK: &str = "ministack==1.5.33";

/// Downloads an emulator and returns its directory. Returns at once when it is there already.
///
/// # Errors
/// When its package client is missing or finds no package.
pub fn install(emulator: Emulator, progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let target = make_base_dir()?.join(emulator.name());
    if emulator.is_in(&target) {
        return Ok(target);
    }
    let work = fresh(&part_of(&target))?;
    let (client, program, needs) = match emulator {
        Emulator::Fauxqs => ("npm", "npm", "Node.js 20 with npm"),
        Emulator::Ministack => ("pip", "python3", "python3 with pip"),
    };
    progress(&format!("{}: downloading with {client}", emulator.name()));
    let mut command = Command::new(program);
    match emulator {
        Emulator::Fauxqs => command
            .args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
            .arg(&work)
            .arg(FAUXQS),
        Emulator::Ministack => command
            .args(["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"])
            .args(["--root-user-action", "ignore", "--target"])
            .arg(&work)
            .arg(MINISTACK),
    };
    run(command.current_dir(&work)).map_err(|error| {
        let advice = format!("install {needs}, or set {URL_VARIABLE} to a server that speaks SQS");
        ServiceError::new(format!("{} could not be downloaded ({advice}): {error}", emulator.name()))
    })?;
    publish(&work, &target)?;
    remove(&work)?;
    if emulator.is_in(&target) {
        return Ok(target);
    }
    Err(ServiceError::new(format!("{} does not hold what was expected: package changed?", target.display())))
}
