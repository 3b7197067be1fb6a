//! An object store on a loopback port that lives as long as its value: the disk of a broker that is killed.
//!
//! It speaks the part of the S3 protocol that Tansu uses: put with conditions, get, head, list, delete. Objects are in
//! memory; nothing is authenticated.
//!
//! Tansu appends in three puts: the producer's sequence, the watermark, the records. Killed between the first and the
//! last it has a sequence without records, takes the producer's second try for a copy, and confirms what it does not
//! have. Apache Kafka learns sequences from the log itself and can't do that. So a kill of ours falls right behind an
//! append, before its answer: [`Objects::kill_behind_append`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Result, ServiceError};

/// A line of a request's head, and how many there are: a client of ours sends far less.
const MAX_LINE_BYTES: u64 = 64 * 1024;
const MAX_HEADERS: usize = 200;
/// The largest object that is taken.
const MAX_OBJECT_BYTES: usize = 64 * 1024 * 1024;
/// The bucket that all objects are in.
const BUCKET: &str = "outbox";
/// Part of the key of an object that holds records.
const RECORDS: &str = "/records/";
/// How long a kill waits for an append; a broker that appends nothing for so long has none half done.
const APPEND_LIMIT: Duration = Duration::from_secs(1);
const LAST_MODIFIED: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// A store with its listener. Its threads end with it, and with their connections.
#[derive(Debug)]
pub struct Objects {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    store: Arc<Store>,
}

#[derive(Debug, Default)]
struct Store {
    shelf: Mutex<Shelf>,
    changed: Condvar,
}

impl Store {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Shelf {
    objects: BTreeMap<String, Object>,
    /// Connections of killed brokers belong to an earlier one; what they still ask for is not done.
    generation: u64,
    kill: Kill,
    /// Of all puts so far: an entity tag is never used twice.
    puts: u64,
}

/// Whether somebody wants to kill the broker behind its next append, and whether that has come: nothing is stored then.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Kill {
    #[default]
    Unwanted,
    Wanted,
    Due,
}

#[derive(Debug, Clone)]
struct Object {
    body: Arc<Vec<u8>>,
    tag: String,
}

impl Objects {
    /// Listens on a free loopback port.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub fn start() -> Result<Self> {
        let failed = |error| ServiceError::while_doing("can't start the object store", error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let store = Arc::<Store>::default();
        let (shared, ended) = (Arc::clone(&store), Arc::clone(&stopped));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let store = Arc::clone(&shared);
                // A connection that fails is its client's to repeat.
                let Ok(client) = client else { continue };
                std::thread::spawn(move || serve(&client, &store));
            }
        });
        Ok(Self { address, stopped, store })
    }

    /// Calls `kill` right behind the next append, while nothing else is stored, and does nothing more for connections
    /// of the killed broker. Without an append within a second there is none to wait for.
    pub(super) fn kill_behind_append<T>(&self, kill: impl FnOnce() -> T) -> T {
        let mut shelf = self.store.shelf();
        shelf.kill = Kill::Wanted;
        let waited = self.store.changed.wait_timeout_while(shelf, APPEND_LIMIT, |shelf| shelf.kill == Kill::Wanted);
        let (mut shelf, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let result = kill();
        shelf.generation += 1;
        shelf.kill = Kill::Unwanted;
        drop(shelf);
        self.store.changed.notify_all();
        result
    }

    /// What leads a broker here: its storage engine and its environment.
    pub(super) fn storage(&self) -> (String, [(&'static str, String); 5]) {
        let environment = [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "outbox".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "outbox".to_owned()),
            ("AWS_DEFAULT_REGION", "us-east-1".to_owned()),
        ];
        (format!("s3://{BUCKET}/"), environment)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the listener's thread, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Response {
    status: &'static str,
    tag: Option<String>,
    body: Arc<Vec<u8>>,
}

impl Response {
    fn empty(status: &'static str) -> Self {
        Self { status, tag: None, body: Arc::default() }
    }
}

/// One connection, request after request, until its client leaves or sends what nobody understands.
fn serve(client: &TcpStream, store: &Store) {
    let mut reader = BufReader::new(client);
    let generation = store.shelf().generation;
    while let Ok(Some(request)) = read(&mut reader) {
        let shelf = store.shelf();
        let free = store.changed.wait_while(shelf, |shelf| shelf.kill == Kill::Due && shelf.generation == generation);
        let mut shelf = free.unwrap_or_else(PoisonError::into_inner);
        if shelf.generation != generation {
            return;
        }
        let response = answer(&request, &mut shelf);
        if shelf.kill == Kill::Due {
            store.changed.notify_all();
        }
        drop(shelf);
        if write(client, &response, request.method == "HEAD").is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = || {
        let mut line = String::new();
        reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)?;
        Ok::<_, std::io::Error>(line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
    let mut headers = BTreeMap::new();
    for _ in 0..MAX_HEADERS {
        let header = line()?;
        let Some((name, value)) = header.split_once(':') else { break };
        headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    if length > MAX_OBJECT_BYTES {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    let query = query.split('&').filter(|part| !part.is_empty()).map(pair).collect();
    Ok(Some(Request { method: method.to_owned(), path: decoded(path), query, headers, body }))
}

fn answer(request: &Request, shelf: &mut Shelf) -> Response {
    let key = request.path.trim_start_matches('/').strip_prefix(BUCKET).unwrap_or_default().trim_start_matches('/');
    match request.method.as_str() {
        "PUT" => put(key, request, shelf),
        "GET" if request.query.contains_key("list-type") => list(request, shelf),
        "GET" | "HEAD" => match shelf.objects.get(key) {
            Some(Object { body, tag }) => Response { status: "200 OK", tag: Some(tag.clone()), body: Arc::clone(body) },
            None => Response::empty("404 Not Found"),
        },
        "DELETE" => {
            shelf.objects.remove(key);
            Response::empty("204 No Content")
        }
        // Said aloud: a newer broker may use more of the protocol.
        other => {
            eprintln!("the object store does not know {other} {}", request.path);
            Response::empty("501 Not Implemented")
        }
    }
}

fn put(key: &str, request: &Request, shelf: &mut Shelf) -> Response {
    let present = shelf.objects.get(key);
    let expected = request.headers.get("if-match");
    if expected.is_some_and(|tag| present.is_none_or(|object| object.tag != *tag))
        || (request.headers.contains_key("if-none-match") && present.is_some())
    {
        return Response::empty("412 Precondition Failed");
    }
    shelf.puts += 1;
    if shelf.kill == Kill::Wanted && key.contains(RECORDS) {
        shelf.kill = Kill::Due;
    }
    let tag = format!("\"{}\"", shelf.puts);
    shelf.objects.insert(key.to_owned(), Object { body: Arc::new(request.body.clone()), tag: tag.clone() });
    Response { tag: Some(tag), ..Response::empty("200 OK") }
}

fn list(request: &Request, shelf: &Shelf) -> Response {
    let text = |name: &str| request.query.get(name).map_or("", String::as_str);
    let (prefix, delimiter, after) = (text("prefix"), text("delimiter"), text("start-after"));
    let mut groups = BTreeSet::new();
    let mut xml = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for (key, object) in shelf.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after) {
        let rest = &key[prefix.len()..];
        match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
            Some(end) => {
                groups.insert(&key[..prefix.len() + end + delimiter.len()]);
            }
            None => {
                xml += &format!(
                    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                     <ETag>{}</ETag><Size>{}</Size></Contents>",
                    escaped(key),
                    escaped(&object.tag),
                    object.body.len()
                );
            }
        }
    }
    for group in groups {
        xml += &format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(group));
    }
    xml += "</ListBucketResult>";
    Response { body: Arc::new(xml.into_bytes()), ..Response::empty("200 OK") }
}

fn write(mut client: &TcpStream, response: &Response, only_head: bool) -> std::io::Result<()> {
    let tag = response.tag.as_ref().map_or(String::new(), |tag| format!("ETag: {tag}\r\n"));
    let mut bytes = format!(
        "HTTP/1.1 {}\r\nContent-Length: {}\r\nLast-Modified: {LAST_MODIFIED}\r\n{tag}\r\n",
        response.status,
        response.body.len()
    )
    .into_bytes();
    if !only_head {
        bytes.extend_from_slice(&response.body);
    }
    client.write_all(&bytes)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Undoes percent-encoding; what is none stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%').and_then(|c| u8::from_str_radix(c, 16).ok());
        decoded.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(shelf: &mut Shelf, method: &str, target: &str, header: &str, body: &str) -> (String, String) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (decoded(name), decoded(value)));
        let request = Request {
            method: method.to_owned(),
            path: decoded(path),
            query: query.split('&').filter_map(pair).collect(),
            headers: header.split_once(": ").map(|(n, v)| (n.to_owned(), v.to_owned())).into_iter().collect(),
            body: body.as_bytes().to_vec(),
        };
        let response = answer(&request, shelf);
        (response.status[..3].to_owned(), String::from_utf8(response.body.to_vec()).unwrap())
    }

    #[test]
    fn objects_are_put_under_conditions_and_listed() {
        let mut shelf = Shelf::default();
        let mut check = |method: &str, target: &str, header: &str, body: &str, status: &str, answer: &str| {
            let found = ask(&mut shelf, method, target, header, body);
            assert_eq!((found.0.as_str(), found.1.contains(answer)), (status, true), "{method} {target}: {found:?}");
        };
        check("GET", "/outbox/a/1", "", "", "404", "");
        check("PUT", "/outbox/a/1", "if-none-match: *", "one", "200", "");
        check("PUT", "/outbox/a/1", "if-none-match: *", "two", "412", "");
        check("PUT", "/outbox/a/1", "if-match: \"7\"", "two", "412", "");
        check("PUT", "/outbox/a/1", "if-match: \"1\"", "two", "200", "");
        check("PUT", "/outbox/b", "if-match: \"1\"", "two", "412", "");
        check("PUT", "/outbox/a%2Fx/2", "", "three", "200", "");
        check("GET", "/outbox/a/1", "", "", "200", "two");
        check("GET", "/outbox?list-type=2&prefix=a%2F", "", "", "200", "<Key>a/1</Key>");
        let group = "<CommonPrefixes><Prefix>a/x/</Prefix></CommonPrefixes>";
        check("GET", "/outbox?list-type=2&prefix=a%2F&delimiter=%2F", "", "", "200", group);
        check("DELETE", "/outbox/a/1", "", "", "204", "");
        check("HEAD", "/outbox/a/1", "", "", "404", "");
        check("POST", "/outbox", "", "", "501", "");
    }
}
