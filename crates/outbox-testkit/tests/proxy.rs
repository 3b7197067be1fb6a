//! The fault proxy in front of an echoing server.

use std::io::{self, ErrorKind};
use std::time::Duration;

use outbox_testkit::proxy::{FaultProxy, Mode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Long for anything on loopback; only a broken proxy waits that long.
const LIMIT: Duration = Duration::from_secs(10);

/// Long enough that an answer on loopback would have come.
const SILENCE: Duration = Duration::from_millis(150);

/// Answers each chunk with itself and reports it.
async fn echo() -> io::Result<(String, mpsc::UnboundedReceiver<Vec<u8>>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let addr = listener.local_addr()?.to_string();
    let (report, reports) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let report = report.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok(read @ 1..) = socket.read(&mut buffer).await {
                    let _ = report.send(buffer[..read].to_vec());
                    if socket.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok((addr, reports))
}

async fn ask(client: &mut TcpStream, text: &[u8]) -> io::Result<()> {
    client.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    client.read_exact(&mut answer).await?;
    assert_eq!(answer, text);
    Ok(())
}

/// The next read ends with a reset, not with a polite end.
async fn assert_reset(client: &mut TcpStream) {
    let mut rest = Vec::new();
    let ended = timeout(LIMIT, client.read_to_end(&mut rest)).await.expect("the connection lives on");
    let error = ended.expect_err("a polite end instead of a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

async fn assert_silent(client: &mut TcpStream) {
    let mut byte = [0];
    assert!(timeout(SILENCE, client.read(&mut byte)).await.is_err(), "something came through");
}

#[tokio::test]
async fn pass_hands_megabytes_through_in_both_directions_and_the_end_too() {
    let (addr, _reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut reads, mut writes) = client.split();
    let send = async {
        writes.write_all(&sent).await?;
        writes.shutdown().await
    };
    let mut got = Vec::new();
    timeout(LIMIT, async { tokio::try_join!(send, reads.read_to_end(&mut got)) }).await.unwrap().unwrap();
    assert!(got == sent);
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn refuse_resets_the_living_and_the_new() {
    let (addr, _reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut old, b"before").await.unwrap();
    proxy.set_mode(Mode::Refuse);
    assert_reset(&mut old).await;
    let refused = match TcpStream::connect(proxy.addr()).await {
        Ok(mut new) => ask(&mut new, b"x").await,
        Err(error) => Err(error),
    };
    refused.unwrap_err();
    proxy.set_mode(Mode::Pass);
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut new, b"after").await.unwrap();
}

#[tokio::test]
async fn closed_resets_the_living_and_nobody_listens() {
    let (addr, _reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    for _ in 0..3 {
        let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
        ask(&mut old, b"before").await.unwrap();
        proxy.apply(Mode::Closed).await;
        assert_reset(&mut old).await;
        let error = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        proxy.apply(Mode::Pass).await;
    }
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut new, b"after").await.unwrap();
}

#[tokio::test]
async fn reset_after_hands_exactly_its_bytes_through() {
    let (addr, mut reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut client, b"not counted").await.unwrap();
    assert_eq!(reports.recv().await.unwrap(), b"not counted");
    proxy.set_mode(Mode::ResetAfter(4));
    client.write_all(b"abcdefgh").await.unwrap();
    assert_reset(&mut client).await;
    // The reset may destroy what the server has not read yet, never add to it.
    if let Ok(Some(seen)) = timeout(SILENCE, reports.recv()).await {
        assert_eq!(seen, b"abcd");
    }
    assert!(timeout(SILENCE, reports.recv()).await.is_err());
}

#[tokio::test]
async fn reset_after_nothing_resets_a_silent_connection() {
    let (addr, _reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut client, b"x").await.unwrap();
    proxy.set_mode(Mode::ResetAfter(0));
    assert_reset(&mut client).await;
}

#[tokio::test]
async fn a_black_hole_swallows_both_ways_and_gives_back() {
    let (addr, mut reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut client, b"before").await.unwrap();
    reports.recv().await.unwrap();
    proxy.set_mode(Mode::Blackhole);
    client.write_all(b"held").await.unwrap();
    assert_silent(&mut client).await;
    assert!(reports.try_recv().is_err());
    let mut new = timeout(LIMIT, TcpStream::connect(proxy.addr())).await.unwrap().unwrap();
    new.write_all(b"new").await.unwrap();
    assert_silent(&mut new).await;
    proxy.set_mode(Mode::Pass);
    let mut answer = [0; 4];
    timeout(LIMIT, client.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"held");
}

#[tokio::test]
async fn cut_replies_lets_the_request_arrive_and_loses_the_answer() {
    let (addr, mut reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut client, b"before").await.unwrap();
    reports.recv().await.unwrap();
    proxy.set_mode(Mode::CutReplies);
    client.write_all(b"lost").await.unwrap();
    assert_eq!(timeout(LIMIT, reports.recv()).await.unwrap().unwrap(), b"lost");
    assert_silent(&mut client).await;
    proxy.set_mode(Mode::Pass);
    ask(&mut client, b"after").await.unwrap();
}

#[tokio::test]
async fn latency_delays_request_and_answer() {
    let (addr, _reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.set_mode(Mode::Latency(Duration::from_millis(60)));
    let asked = std::time::Instant::now();
    ask(&mut client, b"x").await.unwrap();
    assert!(asked.elapsed() >= Duration::from_millis(120), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn cut_resets_the_living_only() {
    let (addr, _reports) = echo().await.unwrap();
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut client, b"x").await.unwrap();
    proxy.cut();
    assert_reset(&mut client).await;
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut new, b"y").await.unwrap();
    timeout(LIMIT, proxy.wait_accepted(2)).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_is_a_reset_and_stopping_ends_all() {
    let gone = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = gone.local_addr().unwrap().to_string();
    drop(gone);
    let proxy = FaultProxy::start(addr).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_reset(&mut client).await;
    let addr = proxy.addr();
    proxy.stop().await;
    TcpStream::connect(addr).await.unwrap_err();
}

#[tokio::test]
async fn a_url_keeps_all_but_host_and_port() {
    let proxy = FaultProxy::start("127.0.0.1:1").await.unwrap();
    let at = proxy.addr();
    assert_eq!(proxy.url_for("amqp://u:p@h:1/%2f?x=1"), format!("amqp://u:p@{at}/%2f?x=1"));
    assert_eq!(proxy.url_for("postgres://h?x=1"), format!("postgres://{at}?x=1"));
}

#[tokio::test]
async fn another_upstream_is_for_new_connections() {
    let ((first, mut at_first), (second, mut at_second)) = (echo().await.unwrap(), echo().await.unwrap());
    let proxy = FaultProxy::start(first).await.unwrap();
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut old, b"one").await.unwrap();
    proxy.set_upstream(second);
    ask(&mut old, b"two").await.unwrap();
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut new, b"three").await.unwrap();
    assert_eq!((at_first.recv().await, at_first.recv().await), (Some(b"one".to_vec()), Some(b"two".to_vec())));
    assert_eq!(at_second.recv().await, Some(b"three".to_vec()));
}
