//! Webhooks: an HTTP server that believes only what is signed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Arrivals, Destination, Failure, Reading};

const PATH: &str = "/events";

/// So many characters of base64 are a key of 24 bytes, the shortest that Standard Webhooks allows.
const SECRET_CHARACTERS: usize = 32;

/// An endpoint of this process.
pub struct Webhook {
    // Taken by the first consumer.
    listener: std::sync::Mutex<Option<TcpListener>>,
    address: SocketAddr,
    secret: String,
    end: CancellationToken,
}

/// Shows no secret.
impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Opens a port of this machine, for itself only, under a secret of its own.
    ///
    /// # Errors
    /// When no port can be opened.
    pub async fn create() -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        // Good enough for an example that ends with its process; a real key comes from a cryptographic source.
        let secret: String = std::iter::repeat_with(fastrand::alphanumeric).take(SECRET_CHARACTERS).collect();
        let secret = format!("whsec_{secret}");
        Ok(Self { listener: Some(listener).into(), address, secret, end: CancellationToken::new() })
    }

    fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }
}

#[async_trait]
impl Destination for Webhook {
    fn describe(&self) -> String {
        format!("a signed POST to {}", self.url())
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("url", self.url()), ("secret", self.secret.clone())]
    }

    async fn consume(&self, arrivals: Arrivals) -> Result<Reading, Failure> {
        let listener = self.listener.lock().map_err(|_| "the listener's lock is poisoned")?.take();
        let listener = listener.ok_or("there is one consumer only")?;
        let verifier = Arc::new(standardwebhooks::Webhook::new(&self.secret)?);
        let router = Router::new().route(PATH, post(receive)).with_state((verifier, arrivals));
        // It ends when the requests that are here have been answered and their connections closed.
        let server = axum::serve(listener, router).with_graceful_shutdown(self.end.clone().cancelled_owned());
        Ok(Box::pin(async move { Ok(server.await?) }))
    }

    async fn end(&self) -> Result<(), Failure> {
        self.end.cancel();
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

type Receiving = (Arc<standardwebhooks::Webhook>, Arrivals);

/// The answer is the confirmation: what is confirmed has been noted before.
async fn receive(State((verifier, arrivals)): State<Receiving>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if verifier.verify(&body, &headers).is_err() {
        arrivals.add_unreadable();
        return StatusCode::UNAUTHORIZED;
    }
    arrivals.add_by_id(headers.get("webhook-id").and_then(|id| id.to_str().ok()));
    StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    const BODY: &str = "{}";

    #[tokio::test]
    async fn what_is_not_signed_by_the_secret_is_refused_and_no_event() {
        let webhook = Webhook::create().await.unwrap();
        let arrivals = Arrivals::default();
        let reading = tokio::spawn(webhook.consume(arrivals.clone()).await.unwrap());
        let stranger = Webhook::create().await.unwrap().secret;
        for (secret, status) in [(&stranger, "401"), (&webhook.secret, "204"), (&stranger, "401")] {
            let answer = post(webhook.address, secret).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
        webhook.end().await.unwrap();
        reading.await.unwrap().unwrap();
        assert_eq!((arrivals.to_vec().len(), arrivals.unreadable()), (1, 2));
    }

    async fn post(to: SocketAddr, secret: &str) -> String {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let signer = standardwebhooks::Webhook::new(secret).unwrap();
        let signature = signer.sign(ID, i64::try_from(now).unwrap(), BODY.as_bytes()).unwrap();
        let request = format!(
            "POST {PATH} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-length: {}\r\n\
             webhook-id: {ID}\r\nwebhook-timestamp: {now}\r\nwebhook-signature: {signature}\r\n\r\n{BODY}",
            BODY.len()
        );
        let mut connection = TcpStream::connect(to).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }
}
