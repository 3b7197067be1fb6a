//! An endpoint as a customer has it: an HTTP server that records what comes and answers as it is told.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use outbox_testkit::certificates::{Authority, Identity};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The example secret of Standard Webhooks.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The longest wait for something that should happen soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Received {
    pub(crate) fn id(&self) -> &str {
        self.headers["webhook-id"].to_str().unwrap()
    }

    /// All headers, decoded as CloudEvents' HTTP binding says.
    pub(crate) fn decoded(&self) -> BTreeMap<String, String> {
        let text = |value: &[u8]| String::from_utf8(decode(value)).unwrap();
        self.headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
    }

    /// Whether the reference library of Standard Webhooks accepts the request.
    pub(crate) fn is_signed_by(&self, secret: &str) -> bool {
        standardwebhooks::Webhook::new(secret).unwrap().verify(&self.body, &self.headers).is_ok()
    }
}

fn decode(value: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = value;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let hex = std::str::from_utf8(&[*high, *low]).unwrap().to_owned();
                decoded.push(u8::from_str_radix(&hex, 16).unwrap());
                rest = tail;
            }
            _ => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    decoded
}

/// What the endpoint does with a request that it has recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Answers with a status, headers and a text.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Never answers.
    Hang,
    /// Ends the connection.
    Cut,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new(), String::new())
    }

    pub(crate) fn text(status: u16, text: impl Into<String>) -> Self {
        Self::Answer(status, Vec::new(), text.into())
    }

    pub(crate) fn with(status: u16, name: &'static str, value: impl Into<String>) -> Self {
        Self::Answer(status, vec![(name, value.into())], String::new())
    }
}

type Script = Box<dyn Fn(&Received) -> Reply + Send>;

struct State {
    received: watch::Sender<Vec<Received>>,
    connections: watch::Sender<usize>,
    script: Mutex<Script>,
}

/// The server. Ends with all its connections when dropped.
pub(crate) struct Receiver {
    pub(crate) addr: SocketAddr,
    scheme: &'static str,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    /// Over `http://`, answering 204.
    pub(crate) async fn start() -> Self {
        Self::serve("http", None).await
    }

    /// Over `https://` with a certificate; with `clients`, only for clients that this authority has certified.
    pub(crate) async fn start_tls(identity: &Identity, clients: Option<&Authority>) -> Self {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
        let config = builder.with_single_cert(chain, key).unwrap();
        Self::serve("https", Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn serve(scheme: &'static str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let script: Script = Box::new(|_| Reply::status(204));
        let state = Arc::new(State {
            received: watch::Sender::default(),
            connections: watch::Sender::default(),
            script: Mutex::new(script),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, tls, Arc::clone(&state)));
        Self { addr, scheme, state, _tasks: tasks }
    }

    /// A URL by the name `localhost`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://localhost:{}{path}", self.scheme, self.addr.port())
    }

    /// How requests are answered from now on.
    pub(crate) fn answer(&self, script: impl Fn(&Received) -> Reply + Send + 'static) {
        *self.state.script.lock().unwrap() = Box::new(script);
    }

    pub(crate) fn answer_all(&self, reply: Reply) {
        self.answer(move |_| reply.clone());
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.received.borrow().clone()
    }

    /// Everything that has come, once it is at least `count`.
    pub(crate) async fn received_at_least(&self, count: usize) -> Vec<Received> {
        let mut received = self.state.received.subscribe();
        let enough = received.wait_for(|received| received.len() >= count);
        let in_time = tokio::time::timeout(PATIENCE, enough).await;
        assert!(in_time.is_ok(), "{} of {count} requests came", self.received().len());
        self.received()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.received().iter().map(|received| received.id().to_owned()).collect()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.state.connections.borrow()
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else { continue };
        state.connections.send_modify(|count| *count += 1);
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        connections.spawn(async move {
            match tls {
                None => serve_connection(stream, state).await,
                // A handshake that fails is the client's finding.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve_connection(stream, state).await;
                    }
                }
            }
        });
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let service = hyper::service::service_fn(move |request| respond(request, Arc::clone(&state)));
    let mut server = hyper::server::conn::http1::Builder::new();
    // A connection that ends without an answer is what `Reply::Cut` asks for.
    let _ = server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(request: Request<Incoming>, state: Arc<State>) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let path = head.uri.path_and_query().unwrap().as_str().to_owned();
    let received = Received { method: head.method.to_string(), path, headers: head.headers, body };
    let reply = (state.script.lock().unwrap())(&received);
    state.received.send_modify(|all| all.push(received));
    match reply {
        Reply::Answer(status, headers, text) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Full::from(text)).map_err(std::io::Error::other)
        }
        Reply::Hang => std::future::pending().await,
        Reply::Cut => Err(std::io::Error::other("cut")),
    }
}
