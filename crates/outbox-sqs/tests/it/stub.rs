//! A server that answers as the test says: for what no emulator does and AWS can't be made to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_sqs::SqsConfig;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::queue::{KEY, REGION, SECRET};

/// What a request gets.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Status(u16, String),
    /// The beginning of an answer, then the end of the connection.
    Broken,
    /// Nothing, and the connection stays.
    Silence,
    /// Nothing before [`Stub::release`]; then success for each entry.
    Held,
}

impl Answer {
    /// An error of the JSON protocol.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        Self::Status(status, serde_json::json!({ "__type": code, "message": "as the test says" }).to_string())
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self::Status(200, value.to_string())
    }

    /// Success for each of these ids.
    pub(crate) fn taken<'a>(ids: impl IntoIterator<Item = &'a str>) -> Value {
        let entry = |id| serde_json::json!({ "Id": id, "MessageId": "m", "MD5OfMessageBody": "0" });
        serde_json::json!({ "Successful": ids.into_iter().map(entry).collect::<Vec<_>>(), "Failed": [] })
    }
}

/// The ids of a batch's entries.
pub(crate) fn entry_ids(request: &Value) -> Vec<&str> {
    request["Entries"].as_array().unwrap().iter().map(|entry| entry["Id"].as_str().unwrap()).collect()
}

/// Ends when dropped.
pub(crate) struct Stub {
    addr: SocketAddr,
    counts: Arc<Counts>,
    release: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

type Script = Arc<dyn Fn(&Value) -> Answer + Send + Sync>;

impl Stub {
    /// `script` gets the body of each request.
    pub(crate) async fn start(script: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (counts, release) = (Arc::new(Counts::default()), watch::Sender::new(false));
        let (script, shared, released): (Script, _, _) = (Arc::new(script), Arc::clone(&counts), release.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, Arc::clone(&script), Arc::clone(&shared), released.subscribe()));
            }
        });
        Self { addr, counts, release, _tasks: tasks }
    }

    pub(crate) fn config(&self) -> SqsConfig {
        let queue = format!("http://{}/123456789012/q", self.addr);
        SqsConfig::new(queue).with_region(REGION).with_access_key(KEY, SECRET)
    }

    pub(crate) fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// The most requests that were here at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.counts.most.load(Ordering::SeqCst)
    }

    /// Answers all that were held, and those to come.
    pub(crate) fn release(&self) {
        self.release.send_replace(true);
    }
}

async fn serve(mut socket: TcpStream, script: Script, counts: Arc<Counts>, mut release: watch::Receiver<bool>) {
    let (reads, mut writes) = socket.split();
    let mut reads = BufReader::new(reads);
    while let Some(request) = read_request(&mut reads).await {
        counts.requests.fetch_add(1, Ordering::SeqCst);
        let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        let mut answer = script(&request);
        if let Answer::Held = answer {
            release.wait_for(|released| *released).await.unwrap();
            answer = Answer::json(&Answer::taken(entry_ids(&request)));
        }
        counts.now.fetch_sub(1, Ordering::SeqCst);
        match answer {
            Answer::Status(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                if writes.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                    return;
                }
            }
            Answer::Broken => {
                // The peer may be gone already, which is as good.
                let _ = writes.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"Successful\":[").await;
                return;
            }
            Answer::Silence | Answer::Held => std::future::pending().await,
        }
    }
}

/// The JSON body of the next request; `None` at the end of the connection.
async fn read_request(reads: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reads.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            let mut body = vec![0; length];
            reads.read_exact(&mut body).await.ok()?;
            return Some(serde_json::from_slice(&body).unwrap());
        }
    }
}
