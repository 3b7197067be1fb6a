//! The connections of the probes: bounded in number and in time, so that none that says nothing holds up the others.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Probes and scrapers of one host are a few. One more takes the place of the one that was quiet for longest.
const MAX_CONNECTIONS: usize = 64;

/// How long a connection may take to ask: whoever connects to a probe has its whole request ready.
const ASK_WITHIN: Duration = Duration::from_secs(3);

/// How long a connection that has asked may live, idle or not: an answer takes milliseconds, and whoever comes every few
/// seconds connects anew once in a while.
const LIFETIME: Duration = Duration::from_secs(30);

/// A listener that holds at most [`MAX_CONNECTIONS`] connections at a time, and always takes a new one.
#[derive(Debug)]
pub(crate) struct Bounded {
    listener: TcpListener,
    present: Arc<Present>,
    limits: Limits,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    connections: usize,
    ask_within: Duration,
    lifetime: Duration,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener) -> Self {
        let limits = Limits { connections: MAX_CONNECTIONS, ask_within: ASK_WITHIN, lifetime: LIFETIME };
        Self { listener, present: Arc::default(), limits }
    }
}

impl Listener for Bounded {
    type Io = Visitor;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visitor, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let asked_to_leave = CancellationToken::new();
        let turn = self.present.admit(asked_to_leave.clone(), self.limits.connections);
        let visitor = Visitor {
            stream,
            end: Box::pin(tokio::time::sleep(self.limits.ask_within)),
            last: Instant::now() + self.limits.lifetime,
            leave: Box::pin(asked_to_leave.cancelled_owned()),
            turn,
            present: Arc::clone(&self.present),
        };
        (visitor, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The connections that are there, the one that was quiet for longest first.
#[derive(Debug, Default)]
struct Present {
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    next: u64,
    visitors: BTreeMap<u64, CancellationToken>,
}

impl Present {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        // Its changes are whole at each step, so a panic elsewhere has spoilt nothing.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more and gives it the last turn.
    fn admit(&self, visitor: CancellationToken, most: usize) -> u64 {
        let mut turns = self.lock();
        while turns.visitors.len() >= most.max(1) {
            if let Some((_, quiet)) = turns.visitors.pop_first() {
                quiet.cancel();
            }
        }
        turns.give(visitor)
    }

    /// A visitor was answered: all others have been quiet for longer.
    fn answered(&self, turn: &mut u64) {
        let mut turns = self.lock();
        if let Some(visitor) = turns.visitors.remove(turn) {
            *turn = turns.give(visitor);
        }
    }
}

impl Turns {
    fn give(&mut self, visitor: CancellationToken) -> u64 {
        let turn = self.next;
        self.next += 1;
        self.visitors.insert(turn, visitor);
        turn
    }
}

/// A connection that reads its end when its time is over or another one needs its place.
#[derive(Debug)]
pub(crate) struct Visitor {
    stream: TcpStream,
    /// Until when it must have asked, then the end of its life.
    end: Pin<Box<Sleep>>,
    /// The end of its life.
    last: Instant,
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
    turn: u64,
    present: Arc<Present>,
}

impl Visitor {
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.leave.as_mut().poll(cx).is_ready() || self.end.as_mut().poll(cx).is_ready()
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.present.lock().visitors.remove(&self.turn);
    }
}

impl AsyncRead for Visitor {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_over(cx) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Visitor {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_over(cx) {
            // Who does not read its answer.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            // Only a whole request is answered.
            let Self { end, last, turn, present, .. } = &mut *self;
            if end.deadline() != *last {
                end.as_mut().reset(*last);
            }
            present.answered(turn);
        }
        written
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

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn serve(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = axum::Router::new().route("/", axum::routing::get(async || "well"));
        let bounded = Bounded { limits, ..Bounded::new(listener) };
        tokio::spawn(async move { axum::serve(bounded, app).await });
        address
    }

    async fn ask(stream: &mut TcpStream) -> bool {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while stream.read_buf(&mut answer).await.unwrap() > 0 && !answer.ends_with(b"well") {}
        answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"well")
    }

    /// Whether the other side has closed it, in order or not.
    async fn is_closed(stream: &mut TcpStream) {
        let closed = async { while stream.read_buf(&mut Vec::new()).await.is_ok_and(|bytes| bytes > 0) {} };
        tokio::time::timeout(PATIENCE, closed).await.expect("it is closed");
    }

    #[tokio::test]
    async fn a_new_connection_takes_the_place_of_the_one_that_was_quiet_for_longest() {
        let long = Duration::from_secs(600);
        let address = serve(Limits { connections: 3, ask_within: long, lifetime: long }).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut partial = TcpStream::connect(address).await.unwrap();
        partial.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ").await.unwrap();
        assert!(ask(&mut busy).await, "it is not the oldest any more");
        let mut others = Vec::new();
        for quiet in [&mut silent, &mut partial] {
            let mut next = TcpStream::connect(address).await.unwrap();
            is_closed(quiet).await;
            assert!(ask(&mut busy).await);
            assert!(ask(&mut next).await);
            others.push(next);
        }
    }

    #[tokio::test]
    async fn who_does_not_ask_in_time_is_closed_and_who_has_asked_may_stay_for_a_while() {
        let (soon, later) = (Duration::from_millis(300), Duration::from_millis(1500));
        let address = serve(Limits { connections: 9, ask_within: soon, lifetime: later }).await;
        let mut asking = TcpStream::connect(address).await.unwrap();
        let begun = Instant::now();
        assert!(ask(&mut asking).await);
        let mut silent = TcpStream::connect(address).await.unwrap();
        is_closed(&mut silent).await;
        let mut partial = TcpStream::connect(address).await.unwrap();
        partial.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ").await.unwrap();
        is_closed(&mut partial).await;
        is_closed(&mut asking).await;
        assert!(begun.elapsed() >= later, "{:?}", begun.elapsed());
    }
}
