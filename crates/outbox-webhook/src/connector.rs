//! Connections: resolve, judge the addresses, connect to one that was judged, TLS. Each step says what went wrong.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ProtocolVersion;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::guard::Reach;
use crate::tls::{Tls, TlsSource};

/// RFC 8305, section 5: the recommended delay before the next address is tried beside the one that does not answer.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// A name with more addresses is served well enough by the first ones.
const MAX_ADDRESSES: usize = 8;
/// TLS 1.3 tells a client that its certificate was refused only after the handshake has ended for the client. A server
/// that takes it sends session tickets, mostly; one that sends none costs this much for each connection.
const VERDICT_ON_CERTIFICATE: Duration = Duration::from_millis(500);

pub(crate) type Lookup = Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("can't resolve {host}")]
    Lookup { host: String, source: io::Error },
    #[error("{host} has no address")]
    NoAddress { host: String },
    #[error("{host} is at {address}, {what}, which {option} does not allow")]
    Forbidden { host: String, address: SocketAddr, what: &'static str, option: &'static str },
    #[error("can't connect to {address}")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("can't set up TLS")]
    Setup { source: io::Error },
    #[error("the TLS handshake with {host} failed")]
    Tls { host: String, source: io::Error },
    #[error("no connection to {host} within {after:?}")]
    TimedOut { host: String, after: Duration },
}

/// Makes connections to one endpoint's host.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Setup>);

struct Setup {
    host: String,
    port: u16,
    /// `None` for `http://`.
    tls: Option<TlsSource>,
    reach: Reach,
    timeout: Duration,
    lookup: Lookup,
}

impl Connector {
    pub(crate) fn new(host: &str, port: u16, tls: Option<TlsSource>, reach: Reach, timeout: Duration) -> Self {
        let lookup: Lookup =
            Arc::new(|host, port| Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) }));
        Self(Arc::new(Setup { host: host.to_owned(), port, tls, reach, timeout, lookup }))
    }

    /// Connects within the time-out.
    pub(crate) async fn connect(&self) -> Result<Socket, ConnectError> {
        let Setup { host, timeout: after, .. } = &*self.0;
        let late = |_| ConnectError::TimedOut { host: host.clone(), after: *after };
        timeout(*after, self.0.open()).await.map_err(late)?
    }
}

impl Setup {
    async fn open(&self) -> Result<Socket, ConnectError> {
        // Before the connection, so that a file that can't be read costs the endpoint nothing.
        let tls = match &self.tls {
            Some(source) => Some(source.get().await.map_err(|source| ConnectError::Setup { source })?),
            None => None,
        };
        let found = (self.lookup)(self.host.clone(), self.port).await;
        let found = found.map_err(|source| ConnectError::Lookup { host: self.host.clone(), source })?;
        let tcp = race(self.judge(found)?).await?;
        // A request is one write mostly; where it is more, the rest must not wait for an acknowledgement.
        let tcp = match tcp.set_nodelay(true) {
            Ok(()) => tcp,
            Err(source) => return Err(ConnectError::Setup { source }),
        };
        match tls {
            None => Ok(Socket::Plain(tcp)),
            Some(tls) => self.encrypt(tcp, tls).await,
        }
    }

    /// The addresses that may be connected to.
    fn judge(&self, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ConnectError> {
        let mut refused = None;
        let mut allowed = Vec::new();
        for address in found {
            match self.reach.refuses(address.ip()) {
                None => allowed.push(address),
                Some(what) => refused = Some((address, what)),
            }
        }
        allowed.truncate(MAX_ADDRESSES);
        match (allowed.is_empty(), refused) {
            (false, _) => Ok(allowed),
            (true, None) => Err(ConnectError::NoAddress { host: self.host.clone() }),
            (true, Some((address, what))) => {
                let option = match self.reach {
                    Reach::Loopback => "plain_http = \"loopback\"",
                    _ => "private_addresses = \"refuse\"",
                };
                Err(ConnectError::Forbidden { host: self.host.clone(), address, what, option })
            }
        }
    }

    async fn encrypt(&self, tcp: TcpStream, tls: Tls) -> Result<Socket, ConnectError> {
        let failed = |source| ConnectError::Tls { host: self.host.clone(), source };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| failed(io::Error::other(error)))?;
        let mut stream = TlsConnector::from(tls.config).connect(name, tcp).await.map_err(failed)?;
        let is_13 = stream.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if is_13 && tls.asked.load(Ordering::Relaxed) {
            wait_for_verdict(&mut stream).await.map_err(failed)?;
        }
        Ok(Socket::Tls(Box::new(stream)))
    }
}

/// Connects to the first address that answers; the next one is tried when one fails or is slow.
async fn race(addresses: Vec<SocketAddr>) -> Result<TcpStream, ConnectError> {
    let mut rest = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = None;
    loop {
        match rest.next() {
            Some(address) => attempts.push(async move {
                TcpStream::connect(address).await.map_err(|source| ConnectError::Tcp { address, source })
            }),
            None if attempts.is_empty() => break,
            None => {}
        }
        tokio::select! {
            ended = attempts.next(), if !attempts.is_empty() => match ended {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => last = Some(error),
                None => {}
            },
            () = sleep(ATTEMPT_DELAY), if rest.len() > 0 => {}
        }
    }
    // There was one address at least, and each attempt that ended without a stream left its error.
    Err(last.unwrap_or_else(|| ConnectError::NoAddress { host: "the endpoint".to_owned() }))
}

/// Waits until a server that asked for a certificate has said what it thinks of it.
async fn wait_for_verdict(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let mut verdict = pin!(std::future::poll_fn(|context| {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let what = if buffer.filled().is_empty() { "closed" } else { "spoke before it was asked" };
                Poll::Ready(Err(io::Error::other(format!("{what} after the certificates were exchanged"))))
            }
            Poll::Pending if stream.get_ref().1.tls13_tickets_received() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }));
    // No word within the time is no refusal.
    timeout(VERDICT_ON_CERTIFICATE, verdict.as_mut()).await.unwrap_or(Ok(()))
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Socket>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect().await.map(TokioIo::new) })
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }
}

#[cfg(test)]
#[path = "connector_tests.rs"]
mod tests;
