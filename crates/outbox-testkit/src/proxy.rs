//! A TCP proxy between a client and its server that fails on command.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use outbox_testkit::proxy::{FaultProxy, Mode};
//!
//! let proxy = FaultProxy::start("127.0.0.1:5672").await?;
//! // … connect the client to `proxy.addr()` …
//! proxy.set_mode(Mode::CutReplies); // the server works, its answers never arrive
//! proxy.set_mode(Mode::Pass);
//! proxy.cut(); // whoever is connected now sees a reset
//! # Ok(()) }
//! ```

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One read from a socket: large enough for throughput, small enough that a mode change is seen between two.
const CHUNK: usize = 16 * 1024;

/// Connections that wait to be accepted; what tokio's own listeners have.
const BACKLOG: u32 = 1024;

/// What the proxy does to connections. A change applies to live connections as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Hands everything through.
    #[default]
    Pass,
    /// Resets live connections, and new ones as soon as they are made.
    Refuse,
    /// Resets live connections, and nobody listens: connecting fails. For protocols in which the client speaks first,
    /// where a connection that is made and then reset leaves open what the server has seen. See
    /// [`FaultProxy::apply`].
    Closed,
    /// Hands this many bytes of requests through (each connection, counted from the change of mode or from its start),
    /// then resets it.
    ResetAfter(usize),
    /// Accepts and keeps connections, hands nothing through in either direction. What the client sends stays in
    /// buffers and arrives should the mode change back.
    Blackhole,
    /// Requests arrive, answers are thrown away: the outcome is unknown to the client. A connection that lost an
    /// answer is spoilt: cut it before passing again.
    CutReplies,
    /// Holds each chunk back for this long in each direction.
    Latency(Duration),
}

/// A proxy on a free loopback port. Ends with all its connections when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    upstream: watch::Sender<String>,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u64>,
    accepted: watch::Receiver<u64>,
    /// Whether the port takes connections.
    open: watch::Receiver<bool>,
    tasks: JoinSet<()>,
    /// Bound and never listened on: it keeps the port ours while nobody listens.
    _port: TcpSocket,
}

impl FaultProxy {
    /// Listens on a free loopback port and connects each client to `upstream` (`host:port`), in [`Mode::Pass`]. The
    /// upstream need not run yet: a client whose server is away is reset.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub async fn start(upstream: impl Into<String>) -> io::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), upstream).await
    }

    /// The same at a given address, such as that of a proxy that was stopped: then nothing listened there meanwhile,
    /// which refuses connections in a way that [`Mode::Refuse`] can't.
    ///
    /// # Errors
    /// When the address can't be listened on.
    #[allow(clippy::unused_async, reason = "it starts a task: an async function is called within a runtime")]
    pub async fn start_at(addr: SocketAddr, upstream: impl Into<String>) -> io::Result<Self> {
        let upstream = watch::Sender::new(upstream.into());
        let port = bind(addr)?;
        let addr = port.local_addr()?;
        let listener = listen(addr)?;
        let mode = watch::Sender::new(Mode::Pass);
        let cuts = watch::Sender::new(0);
        let (count, accepted) = watch::channel(0);
        let (opened, open) = watch::channel(true);
        let mut tasks = JoinSet::new();
        let door = Door { addr, listener: Some(listener), opened };
        tasks.spawn(accept(door, upstream.subscribe(), mode.clone(), cuts.clone(), count));
        Ok(Self { addr, upstream, mode, cuts, accepted, open, tasks, _port: port })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A server's URL with its host and port replaced by the proxy's.
    ///
    /// # Panics
    /// When `url` has no `scheme://authority`.
    #[must_use]
    pub fn url_for(&self, url: &str) -> String {
        let Some((scheme, rest)) = url.split_once("://") else { panic!("not a URL: no `://`") };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        format!("{scheme}://{user}{}{path}", self.addr)
    }

    /// Leads new connections to another server (`host:port`), as an address does that moves at a fail-over. Live ones
    /// stay where they are; see [`FaultProxy::cut`].
    pub fn set_upstream(&self, upstream: impl Into<String>) {
        self.upstream.send_replace(upstream.into());
    }

    /// Changes the mode for live and new connections.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Changes the mode and waits until the port is closed, or open again, as the mode says.
    pub async fn apply(&self, mode: Mode) {
        self.set_mode(mode);
        let mut open = self.open.clone();
        // The sender lives in the accept loop, which ends with `self` only.
        if open.wait_for(|open| *open == (mode != Mode::Closed)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resets all live connections; the mode stays.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How many connections have been accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        *self.accepted.borrow()
    }

    /// Waits until at least `count` connections have been accepted in all (for the moment when a client reconnects).
    pub async fn wait_accepted(&self, count: u64) {
        let mut accepted = self.accepted.clone();
        // The sender lives in the accept loop, which ends with `self` only.
        if accepted.wait_for(|seen| *seen >= count).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Stops listening and resets all connections.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Where clients come in.
struct Door {
    addr: SocketAddr,
    /// Absent while the port is closed.
    listener: Option<TcpListener>,
    opened: watch::Sender<bool>,
}

impl Door {
    /// Opens or closes the port as the mode says.
    fn follow(&mut self, mode: Mode) {
        if mode == Mode::Closed {
            self.listener = None;
        } else if self.listener.is_none() {
            let opened = listen(self.addr);
            self.listener = Some(opened.unwrap_or_else(|error| panic!("{} can't be listened on: {error}", self.addr)));
        }
        self.opened.send_replace(self.listener.is_some());
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        match &self.listener {
            Some(listener) => listener.accept().await.map(|(client, _)| client),
            None => std::future::pending().await,
        }
    }
}

/// A socket at an address that others of ours may share.
fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    bind(addr)?.listen(BACKLOG)
}

async fn accept(
    mut door: Door,
    upstream: watch::Receiver<String>,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u64>,
    count: watch::Sender<u64>,
) {
    let mut connections = JoinSet::new();
    let mut modes = mode.subscribe();
    loop {
        let accepted = tokio::select! {
            biased;
            // The other end lives in this task: it does not go.
            _ = modes.changed() => {
                door.follow(*modes.borrow_and_update());
                continue;
            }
            accepted = door.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // An accept error is about one connection (it was reset before we took it): go on with the next.
        let Ok(client) = accepted else { continue };
        count.send_modify(|seen| *seen += 1);
        if matches!(*mode.borrow(), Mode::Refuse | Mode::Closed) {
            reset(&client);
            continue;
        }
        let upstream = upstream.borrow().clone();
        connections.spawn(serve(client, upstream, mode.subscribe(), cuts.subscribe()));
    }
}

/// One connection, until both ends have closed it politely, or something resets it.
async fn serve(mut client: TcpStream, upstream: String, modes: watch::Receiver<Mode>, mut cuts: watch::Receiver<u64>) {
    let Ok(mut server) = TcpStream::connect(upstream).await else { return reset(&client) };
    let (mut refused, requests, replies) = (modes.clone(), modes.clone(), modes);
    let polite = {
        let ((client_reads, client_writes), (server_reads, server_writes)) = (client.split(), server.split());
        let requests = pump(client_reads, server_writes, Direction::Request, requests);
        let replies = pump(server_reads, client_writes, Direction::Reply, replies);
        tokio::select! {
            biased;
            _ = cuts.changed() => false,
            _ = refused.wait_for(|mode| matches!(mode, Mode::Refuse | Mode::Closed)) => false,
            ended = async { tokio::try_join!(requests, replies) } => ended.is_ok(),
        }
    };
    if !polite {
        reset(&client);
        reset(&server);
    }
}

/// Makes dropping the socket send a reset instead of a polite end.
fn reset(socket: &TcpStream) {
    // It fails only on a socket that is gone already, which is what the caller wants.
    let _ = socket.set_zero_linger();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

/// Hands one direction through as the mode says. `Ok` at its polite end, an error when the connection must be reset.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    mut modes: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut pending = 0..0;
    let mut passed = 0;
    loop {
        if modes.has_changed().map_err(io::Error::other)? {
            passed = 0;
        }
        let mode = *modes.borrow_and_update();
        match (mode, direction) {
            (Mode::Blackhole | Mode::Refuse | Mode::Closed, _) => {
                modes.changed().await.map_err(io::Error::other)?;
                passed = 0;
                continue;
            }
            (Mode::ResetAfter(limit), Direction::Request) => {
                let allowed = pending.len().min(limit.saturating_sub(passed));
                to.write_all(&buffer[pending.start..pending.start + allowed]).await?;
                passed += allowed;
                if passed >= limit {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
            }
            (Mode::CutReplies, Direction::Reply) => {}
            (Mode::Latency(delay), _) if !pending.is_empty() => {
                tokio::time::sleep(delay).await;
                to.write_all(&buffer[pending.clone()]).await?;
            }
            _ => to.write_all(&buffer[pending.clone()]).await?,
        }
        pending = 0..0;
        tokio::select! {
            read = from.read(&mut buffer) => match read? {
                0 => return to.shutdown().await,
                read => pending = 0..read,
            },
            changed = modes.changed() => {
                changed.map_err(io::Error::other)?;
                passed = 0;
            }
        }
    }
}
