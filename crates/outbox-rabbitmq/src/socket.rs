//! The TCP and TLS side of a connection: bounded, and closed for certain when nobody needs it any more.

use std::cell::RefCell;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::tcp::{AMQPUriTcpExt, OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};

use crate::config::RabbitMqConfig;

/// The name that the broker's management interface shows.
const CONNECTION_NAME: &str = "outbox";

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

/// Opens a connection. Dropping the future, as its caller's time-out does, closes what it had opened.
pub(crate) async fn connect(uri: AMQPUri, config: &RabbitMqConfig) -> Result<(Connection, SocketGuard), lapin::Error> {
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
                AMQPScheme::AMQPS => Ok(bounded(timeout, stream.into_tls(&uri.authority.host, tls.as_ref())).await?),
            }
        },
        ConnectionProperties::default().with_connection_name(CONNECTION_NAME.into()),
    )
    .await?;
    Ok((connection, guard))
}

async fn bounded<T>(timeout: Duration, step: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(timeout, step).await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
}

/// Reads the files at each connect, so that renewed certificates are taken up without a restart.
async fn tls_config(config: &RabbitMqConfig) -> std::io::Result<OwnedTLSConfig> {
    let (ca, cert, key) = (config.ca_file.clone(), config.cert_file.clone(), config.key_file.clone());
    if ca.is_none() && cert.is_none() {
        return Ok(OwnedTLSConfig::default());
    }
    let read = move || {
        // tidy: certificates are renewed while a relay runs, so the adapter reads them at each connect
        let named = |path: &std::path::Path| {
            std::fs::read(path)
                .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        let cert_chain = match ca {
            Some(path) => Some(String::from_utf8(named(&path)?).map_err(std::io::Error::other)?),
            None => None,
        };
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some(OwnedIdentity::PKCS8 { pem: named(&cert)?, key: named(&key)? }),
            _ => None,
        };
        Ok(OwnedTLSConfig { identity, cert_chain })
    };
    tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
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
