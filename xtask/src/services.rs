//! `cargo xtask services up|down|status`: services that stay up between runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outbox_services::process::Identity;
use outbox_services::{install, kafka, postgres, rabbitmq};
use serde_json::{Map, Value, json};

use crate::servers::{start_kafka, start_postgres, start_rabbitmq, variable};
use crate::{Outcome, test};

const USAGE: &str = "usage: cargo xtask services up [--pg MAJOR] | down | status";

/// A killed server is gone at once; only a machine in trouble takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A polite stop of RabbitMQ takes up to 7 s, of PostgreSQL as long as its checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// What is said of each service: its key in the state, its name, its variable.
const SERVICES: [(&str, &str, &str); 3] = [
    ("postgres", "PostgreSQL", postgres::URL_VARIABLE),
    ("rabbitmq", "RabbitMQ", rabbitmq::URL_VARIABLE),
    ("kafka", "Kafka", kafka::URL_VARIABLE),
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (major, rest) = test::take_major(arguments)?;
    match rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["up"] => up(major),
        ["down"] if major.is_none() => down(),
        ["status"] if major.is_none() => {
            status(&read_state()?);
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn up(major: Option<u32>) -> Outcome {
    let mut state = read_state()?;
    if variable(postgres::URL_VARIABLE).is_none() && live(&state, "postgres").is_none() {
        let server = start_postgres(major)?;
        let version = server.binaries().major;
        let left = server.detach().map_err(|error| error.to_string())?;
        let mut entry = entry(&[left.process], &left.dir, &left.url);
        entry["major"] = json!(version);
        state.insert("postgres".to_owned(), entry);
        write_state(&state)?;
    } else if let Some(major) = major {
        let running = live(&state, "postgres").and_then(|entry| entry["major"].as_u64());
        if running != Some(u64::from(major)) {
            return Err(format!(
                "another PostgreSQL than {major} is in use: `cargo xtask services down` first, and unset {}",
                postgres::URL_VARIABLE
            ));
        }
    }
    if variable(rabbitmq::URL_VARIABLE).is_none() && live(&state, "rabbitmq").is_none() {
        let left = start_rabbitmq()?.detach().map_err(|error| error.to_string())?;
        let mut entry = entry(&left.processes, &left.dir, &left.url);
        entry["management_url"] = json!(left.management_url);
        state.insert("rabbitmq".to_owned(), entry);
        write_state(&state)?;
    }
    if variable(kafka::URL_VARIABLE).is_none() && live(&state, "kafka").is_none() {
        let left = start_kafka()?.detach().map_err(|error| error.to_string())?;
        state.insert("kafka".to_owned(), entry(&[left.process], &left.dir, &left.url));
        write_state(&state)?;
    }
    status(&state);
    Ok(())
}

fn down() -> Outcome {
    let mut state = read_state()?;
    for (key, name, _) in SERVICES {
        let Some(entry) = state.get(key) else { continue };
        let processes = identities(entry);
        let alive = processes.iter().any(Identity::is_alive);
        // The first process is the server itself and gets the chance to end politely.
        if let Some(server) = processes.first() {
            let polite = if key == "postgres" { "INT" } else { "TERM" };
            server.signal(polite).map_err(|error| error.to_string())?;
            if server.wait_gone(STOP_LIMIT).is_err() {
                println!("{name}: does not stop politely; killing it");
            }
        }
        for process in &processes {
            process.signal("KILL").and_then(|()| process.wait_gone(KILL_LIMIT)).map_err(|error| error.to_string())?;
        }
        remove_dir(Path::new(entry["dir"].as_str().unwrap_or_default()))?;
        state.remove(key);
        write_state(&state)?;
        println!("{name}: {}", if alive { "stopped" } else { "was not running any more" });
    }
    status(&state);
    Ok(())
}

fn status(state: &Map<String, Value>) {
    for (key, name, url_variable) in SERVICES {
        if let Some(url) = variable(url_variable) {
            println!("{name}: {url_variable} is set ({})", without_password(&url));
        } else if let Some(entry) = live(state, key) {
            let pids: Vec<String> = identities(entry).iter().map(|process| process.pid.to_string()).collect();
            let version = entry["major"].as_u64().map_or_else(String::new, |major| format!(" {major}"));
            println!("{name}{version}: up, pid {}", pids.join(" and "));
            println!("  export {url_variable}={}", entry["url"].as_str().unwrap_or_default());
            if let Some(url) = entry["management_url"].as_str() {
                println!("  export {}={url}", rabbitmq::MANAGEMENT_URL_VARIABLE);
            }
        } else {
            println!("{name}: down");
        }
    }
}

/// The URL of a service that `up` left running.
pub(crate) fn live_url(key: &str) -> Option<String> {
    live_text(key, "url")
}

/// The management interface of the RabbitMQ that `up` left running.
pub(crate) fn live_management_url() -> Option<String> {
    live_text("rabbitmq", "management_url")
}

fn live_text(key: &str, field: &str) -> Option<String> {
    let state = read_state().ok()?;
    live(&state, key)?[field].as_str().map(str::to_owned)
}

fn live<'a>(state: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let entry = state.get(key)?;
    identities(entry).first().is_some_and(Identity::is_alive).then_some(entry)
}

fn entry(processes: &[Identity], dir: &Path, url: &str) -> Value {
    let processes: Vec<Value> =
        processes.iter().map(|process| json!({ "pid": process.pid, "started": process.started })).collect();
    json!({ "processes": processes, "dir": dir, "url": url })
}

fn identities(entry: &Value) -> Vec<Identity> {
    let read = |value: &Value| {
        let pid = u32::try_from(value["pid"].as_u64()?).ok()?;
        Some(Identity { pid, started: value["started"].as_str()?.to_owned() })
    };
    entry["processes"].as_array().into_iter().flatten().filter_map(read).collect()
}

fn state_path() -> PathBuf {
    install::base_dir().join("state.json")
}

fn read_state() -> Outcome<Map<String, Value>> {
    let path = state_path();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(format!("can't read {}: {error}", path.display())),
    };
    serde_json::from_str(&text).map_err(|error| format!("{} is not readable (remove it?): {error}", path.display()))
}

fn write_state(state: &Map<String, Value>) -> Outcome {
    let path = state_path();
    install::make_base_dir().map_err(|error| error.to_string())?;
    let text = format!("{:#}\n", Value::Object(state.clone()));
    fs::write(&path, text).map_err(|error| format!("can't write {}: {error}", path.display()))
}

/// Removes a server's directory, and nothing but a launcher's directory.
fn remove_dir(dir: &Path) -> Outcome {
    let ours = dir.parent() == Some(&std::env::temp_dir())
        && dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("outbox-"));
    if !ours {
        return Err(format!("{} is not a launcher's directory: left alone", dir.display()));
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("can't remove {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// A URL without its user and password, to be printed; a path stays as it is.
pub(crate) fn without_password(url: &str) -> String {
    if url.starts_with('/') {
        return url.to_owned();
    }
    let Some((scheme, rest)) = url.split_once("://") else { return "(not a URL)".to_owned() };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn no_secret_is_printed() {
        assert_eq!(without_password("amqp://u:p@h:1/%2f"), "amqp://h:1/%2f");
        assert_eq!(without_password("postgres://h/d?password=p"), "postgres://h/d");
        assert_eq!(without_password("/usr/bin"), "/usr/bin");
        assert_eq!(without_password("password=p"), "(not a URL)");
    }
}
