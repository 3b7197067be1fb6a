//! The TCP and TLS side of a connection: bounded, and closed for certain when nobody needs it any more.

use std::cell::RefCell;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use lapin::tcp::{AMQPUriTcpExt, OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};

use crate::config::RabbitMqConfig;

/// The name that the broker's management interface shows.
const CONNECTION_NAME: &str = "outbox";

/// How the parts of a PEM file begin. Of a key without the words before it: `EC`, `RSA` and PKCS#8 are all taken.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// A second handle on a connection's socket that shuts it down when dropped.
///
/// The client library reads from its socket on a thread of its own, without a time-out during the handshake. A
/// hung broker would cost one thread and one socket for each attempt to connect.
#[derive(Debug, Default)]
pub(crate) struct SocketGuard(Arc<Mutex<SocketState>>);

#[derive(Debug, Default)]
struct SocketState {
    stream: Option<TcpStream>,
    released: bool,
}

impl SocketGuard {
    fn register(state: &Mutex<SocketState>, stream: TcpStream) {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.released {
            shut_down(&stream);
        } else {
            state.stream = Some(stream);
        }
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.released = true;
        if let Some(stream) = state.stream.take() {
            shut_down(&stream);
        }
    }
}

fn shut_down(stream: &TcpStream) {
    // It fails only when the peer or the library was faster: then it is closed, which is all that is wanted.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Why no connection came to be.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: lapin::Error,
    /// TLS stood, and then the connection broke without a word of AMQP. With TLS 1.3 a client learns that its
    /// certificate was refused only then, and may see a bare reset instead of the broker's alert.
    pub(crate) after_tls: bool,
}

/// Opens a connection. Dropping the future, as its caller's time-out does, closes what it had opened.
pub(crate) async fn connect(uri: AMQPUri, config: &RabbitMqConfig) -> Result<(Connection, SocketGuard), Failure> {
    let secured = Arc::new(AtomicBool::new(false));
    open(uri, config, Arc::clone(&secured)).await.map_err(|error| {
        let after_tls = secured.load(Ordering::Relaxed) && !error.is_amqp_error();
        Failure { error, after_tls }
    })
}

async fn open(
    uri: AMQPUri,
    config: &RabbitMqConfig,
    secured: Arc<AtomicBool>,
) -> Result<(Connection, SocketGuard), lapin::Error> {
    let tls = tls_config(config).await?;
    let guard = SocketGuard::default();
    let state = Arc::clone(&guard.0);
    let timeout = config.connect_timeout;
    let connection = Connection::connector(
        uri,
        lapin::runtime::default_runtime()?,
        async move |uri, runtime| {
            mute_this_thread();
            let plain = AMQPUri { scheme: AMQPScheme::AMQP, ..uri.clone() };
            let stream = bounded(timeout, plain.connect_with_config_async(tls.as_ref(), &runtime)).await?;
            if let AsyncTcpStream::Plain(tcp) = &stream {
                SocketGuard::register(&state, tcp.get_ref().as_fd().try_clone_to_owned()?.into());
            }
            match uri.scheme {
                AMQPScheme::AMQP => Ok(stream),
                AMQPScheme::AMQPS => {
                    let stream = bounded(timeout, stream.into_tls(&uri.authority.host, tls.as_ref())).await?;
                    secured.store(true, Ordering::Relaxed);
                    Ok(stream)
                }
            }
        },
        ConnectionProperties::default().with_connection_name(CONNECTION_NAME.into()),
    )
    .await?;
    Ok((connection, guard))
}

async fn bounded<T>(timeout: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, step).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Reads the files at each connect, so that renewed certificates are taken up without a restart.
async fn tls_config(config: &RabbitMqConfig) -> io::Result<OwnedTLSConfig> {
    let (ca, cert, key) = (config.ca_file.clone(), config.cert_file.clone(), config.key_file.clone());
    if ca.is_none() && cert.is_none() {
        return Ok(OwnedTLSConfig::default());
    }
    let read = move || {
        // tidy: certificates are renewed while a relay runs, so the adapter reads them at each connect
        let pem = |path: &Path, label: &str| {
            let named =
                |kind, problem: &dyn fmt::Display| io::Error::new(kind, format!("{}: {problem}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|error| named(error.kind(), &error))?;
            // The library takes a file without any for one that adds nothing, and then blames the broker's certificate.
            let holds = text.contains(label);
            holds.then_some(text).ok_or_else(|| named(io::ErrorKind::InvalidData, &format!("holds no `{label}`")))
        };
        let cert_chain = ca.map(|path| pem(&path, CERTIFICATE)).transpose()?;
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => {
                let (cert, key) = (pem(&cert, CERTIFICATE)?, pem(&key, PRIVATE_KEY)?);
                Some(OwnedIdentity::PKCS8 { pem: cert.into(), key: key.into() })
            }
            _ => None,
        };
        Ok(OwnedTLSConfig { identity, cert_chain })
    };
    tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
}

thread_local! {
    static MUTED: RefCell<Option<tracing::subscriber::DefaultGuard>> = const { RefCell::new(None) };
}

/// Keeps the client library's own log lines out of the process's log.
///
/// Its I/O thread, on which this runs, logs each returned message with its payload, and every lost connection as
/// an error. Payloads don't belong in logs, and what matters is in the errors that this crate returns.
fn mute_this_thread() {
    MUTED.with_borrow_mut(|guard| {
        guard.get_or_insert_with(|| tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::default()));
    });
}
