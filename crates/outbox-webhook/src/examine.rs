//! Whether what listens at the endpoint speaks HTTP: one question about the server itself, no event.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::handshake;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use outbox_core::{ErrorKind, PublishError};
use tokio::time::timeout;

use crate::connector::Socket;

/// A server answers this question by itself, without the application behind it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks `OPTIONS *` (RFC 9110, section 9.3.7: a "ping" of the server). Any answer of HTTP will do, a refusal as well.
pub(crate) async fn speaks_http(socket: Socket, authority: &str, origin: &str) -> Result<(), PublishError> {
    let asking = async {
        let (mut sender, connection) = handshake(TokioIo::new(socket)).await?;
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::OPTIONS;
        *request.uri_mut() = Uri::from_static("*");
        if let Ok(host) = HeaderValue::from_str(authority) {
            request.headers_mut().insert(HOST, host);
        }
        let answer = sender.send_request(request);
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer.map(drop),
            ended = connection => match ended {
                Ok(()) => answer.await.map(drop),
                Err(error) => Err(error),
            },
        }
    };
    match timeout(PATIENCE, asking).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let detail = format!("what listens at {origin} is no HTTP server: it did not answer `OPTIONS *` as one");
            Err(PublishError::new(ErrorKind::Misconfigured, detail).with_source(error))
        }
        Err(_) => {
            let detail = format!("what listens at {origin} did not answer `OPTIONS *` within {PATIENCE:?}");
            Err(PublishError::new(ErrorKind::Unconfirmed, detail))
        }
    }
}
