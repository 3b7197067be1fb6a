//! The connections of the probes: bounded in number and in time, so that none that says nothing holds up the others.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Probes and scrapers of one host are a few; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;

/// How long a connection may live, idle or not: an answer takes milliseconds, and whoever comes every few seconds
/// connects anew once in a while.
const LIFETIME: Duration = Duration::from_secs(30);

/// A listener that hands out at most [`MAX_CONNECTIONS`] connections at a time.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    lifetime: Duration,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)), lifetime: LIFETIME }
    }
}

impl Listener for Bounded {
    type Io = Visitor;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visitor, SocketAddr) {
        let permit = loop {
            // Nobody closes the semaphore.
            if let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
                break permit;
            }
        };
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let end = Box::pin(tokio::time::sleep(self.lifetime));
        (Visitor { stream, end, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that reads its end when its time is over.
#[derive(Debug)]
pub(crate) struct Visitor {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Visitor {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Visitor {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.end.as_mut().poll(cx).is_ready() {
            // Who does not read its answer.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn connections_that_say_nothing_or_a_part_make_room_for_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let permits = Arc::new(Semaphore::new(2));
        let bounded = Bounded { listener, permits, lifetime: Duration::from_millis(200) };
        let app = axum::Router::new().route("/", axum::routing::get(async || "well"));
        let serving = tokio::spawn(async move { axum::serve(bounded, app).await });
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut partial = TcpStream::connect(address).await.unwrap();
        partial.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ").await.unwrap();
        let ask = async {
            let mut third = TcpStream::connect(address).await.unwrap();
            third.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            third.read_to_string(&mut answer).await.unwrap();
            let mut rest = Vec::new();
            // Closed by the other side, in order or not.
            let ended = silent.read_to_end(&mut rest).await.is_ok() | partial.read_to_end(&mut rest).await.is_ok();
            (answer, ended)
        };
        let (answer, ended) = tokio::time::timeout(Duration::from_secs(20), ask).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("well") && ended, "{answer}");
        serving.abort();
    }
}
