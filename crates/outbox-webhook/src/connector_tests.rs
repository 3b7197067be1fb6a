use std::net::Ipv4Addr;
use std::sync::Mutex;

use tokio::net::TcpListener;

use super::*;

/// A name server that gives one answer after the other, and then the last one again.
fn answers(answers: Vec<Vec<SocketAddr>>) -> Lookup {
    let rest = Mutex::new(answers);
    Arc::new(move |_, _| {
        let mut rest = rest.lock().unwrap();
        let answer = if rest.len() > 1 { rest.remove(0) } else { rest[0].clone() };
        Box::pin(std::future::ready(Ok(answer)))
    })
}

fn connector(reach: Reach, lookup: Lookup) -> Connector {
    let (host, timeout) = ("example.com".to_owned(), Duration::from_secs(10));
    Connector(Arc::new(Setup { host, port: 80, tls: None, reach, timeout, lookup }))
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn is_untouched(listener: &TcpListener) -> bool {
    // Connections to this machine are in the queue when `connect` returns: one look is enough.
    let mut accept = Box::pin(listener.accept());
    std::future::poll_fn(|context| Poll::Ready(accept.as_mut().poll(context).is_pending())).await
}

/// DNS rebinding: the name was harmless when it was looked at, and points to this machine when it is used.
#[tokio::test]
async fn each_connection_judges_the_addresses_that_it_uses() {
    let (listener, local) = listener().await;
    let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), local.port());
    let connector = connector(Reach::Public, answers(vec![vec![local], vec![mapped], vec![mapped, local]]));
    for _ in 0..3 {
        let error = connector.connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Forbidden { .. }), "{error}");
        assert!(error.to_string().contains("a loopback address"), "{error}");
    }
    assert!(is_untouched(&listener).await, "nothing was connected to");
}

/// Of several addresses only those that are allowed are tried, in any order.
#[tokio::test]
async fn a_refused_address_among_others_is_left_out() {
    let (refused, local) = listener().await;
    let public: SocketAddr = "203.0.114.1:80".parse().unwrap();
    let connector = connector(Reach::Public, answers(vec![vec![local, public]]));
    assert_eq!(connector.0.judge(vec![local, public]).unwrap(), [public]);
    assert_eq!(connector.0.judge(vec![public, local]).unwrap(), [public]);
    assert!(is_untouched(&refused).await);
}

#[tokio::test]
async fn plain_http_to_loopback_stays_there() {
    let (_listener, local) = listener().await;
    let connector = connector(Reach::Loopback, answers(vec![vec![local], vec!["192.0.2.1:80".parse().unwrap()]]));
    connector.connect().await.unwrap();
    let error = connector.connect().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "example.com is at 192.0.2.1:80, an address of another machine, which plain_http = \"loopback\" does not allow"
    );
}

#[tokio::test]
async fn a_name_without_an_address_and_a_failed_lookup_are_told() {
    let error = connector(Reach::Anywhere, answers(vec![vec![]])).connect().await.unwrap_err();
    assert_eq!(error.to_string(), "example.com has no address");
    let failing: Lookup = Arc::new(|_, _| Box::pin(std::future::ready(Err(io::Error::other("no name server")))));
    let error = connector(Reach::Anywhere, failing).connect().await.unwrap_err();
    assert_eq!(error.to_string(), "can't resolve example.com");
    let hanging: Lookup = Arc::new(|_, _| Box::pin(std::future::pending()));
    tokio::time::pause();
    let error = connector(Reach::Anywhere, hanging).connect().await.unwrap_err();
    assert_eq!(error.to_string(), "no connection to example.com within 10s");
}

/// The first address refuses; the second one answers.
#[tokio::test]
async fn the_next_address_is_tried() {
    let (gone, refused) = listener().await;
    drop(gone);
    let (_listener, local) = listener().await;
    connector(Reach::Anywhere, answers(vec![vec![refused, local]])).connect().await.unwrap();
    let error = connector(Reach::Anywhere, answers(vec![vec![refused]])).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Tcp { address, .. } if address == refused), "{error}");
}
