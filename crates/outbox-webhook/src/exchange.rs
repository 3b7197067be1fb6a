//! One request and its answer: signed as it is sent, bounded in time and bytes, told apart by how far it came.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{HeaderValue, LOCATION};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::connect::{Connect, capture_connection};
use hyper_util::client::legacy::{Client, ResponseFuture};
use outbox_core::{ErrorKind, PublishError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::answer::{MAX_EXCERPT_BYTES, excerpt, retry_after};
use crate::connector::ConnectError;
use crate::encode::{WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use crate::error::End;
use crate::sign::Keys;

/// An answer that is read to its end leaves its connection open for the next request; a longer one costs it.
const MAX_ANSWER_BYTES: usize = 16 * 1024;
/// Enough that a secret at the excerpt's end is recognised before it is cut.
const READ_FOR_EXCERPT_BYTES: usize = 2 * MAX_EXCERPT_BYTES;
/// The status is the answer. Its body is waited for only this long, since a turn is taken meanwhile.
const BODY_PATIENCE: Duration = Duration::from_secs(1);
/// The connector keeps its own time-out; a client that has none is given up a little later.
const CONNECT_MARGIN: Duration = Duration::from_millis(500);

type Send = dyn Fn(Request<Full<Bytes>>) -> ResponseFuture + std::marker::Send + Sync;

/// Sends requests over a client.
#[derive(Clone)]
pub(crate) struct Exchange {
    send: Arc<Send>,
    connect_timeout: Duration,
    request_timeout: Duration,
    secrets: Arc<[String]>,
}

/// What came of a request.
pub(crate) struct Exchanged {
    pub(crate) end: End,
    wait: Option<Duration>,
    detail: Detail,
}

enum Detail {
    Cause(Box<dyn Error + std::marker::Send + Sync>),
    TimedOut(Duration),
    Answer { text: Option<String>, elsewhere: Option<String> },
}

impl Exchange {
    pub(crate) fn new<C>(
        client: Client<C, Full<Bytes>>,
        connect_timeout: Duration,
        request_timeout: Duration,
        secrets: Vec<String>,
    ) -> Self
    where
        C: Connect + Clone + std::marker::Send + Sync + 'static,
    {
        let send = Arc::new(move |request| client.request(request));
        Self { send, connect_timeout, request_timeout, secrets: secrets.into() }
    }

    /// Posts one body.
    pub(crate) async fn post(
        &self,
        uri: Uri,
        id: &str,
        mut headers: HeaderMap,
        body: Bytes,
        keys: Option<&Keys>,
    ) -> Exchanged {
        // A receiver refuses what is older than minutes, so each sending has its own time. A clock before 1970 is
        // refused by every receiver in any case.
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        headers.insert(WEBHOOK_TIMESTAMP, timestamp.into());
        if let Some(signature) = keys.map(|keys| keys.sign(id, timestamp, &body)) {
            match HeaderValue::from_str(&signature) {
                Ok(value) => headers.insert(WEBHOOK_SIGNATURE, value),
                Err(error) => return Exchanged::nothing_sent(error),
            };
        }
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let response = match self.send(request).await {
            Ok(response) => response,
            Err(exchanged) => return exchanged,
        };
        self.read(response, &body).await
    }

    /// Sends a request and waits for the head of its answer.
    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Exchanged> {
        let mut connection = capture_connection(&mut request);
        let mut response = (self.send)(request);
        let waited = self.connect_timeout + CONNECT_MARGIN;
        tokio::select! {
            biased;
            ended = &mut response => return ended.map_err(Exchanged::of_client),
            _ = connection.wait_for_connection_metadata() => {}
            () = sleep(waited) => {
                return Err(Exchanged { end: End::Unreached, wait: None, detail: Detail::TimedOut(waited) });
            }
        }
        match timeout_at(Instant::now() + self.request_timeout, response).await {
            Ok(ended) => ended.map_err(Exchanged::of_client),
            Err(_) => {
                Err(Exchanged { end: End::Unanswered, wait: None, detail: Detail::TimedOut(self.request_timeout) })
            }
        }
    }

    async fn read(&self, response: Response<Incoming>, event: &[u8]) -> Exchanged {
        let status = response.status().as_u16();
        let wait = retry_after(response.headers(), SystemTime::now());
        let elsewhere = response.headers().get(LOCATION).and_then(|value| {
            let uri = value.to_str().ok()?.parse::<Uri>().ok()?;
            Some(format!("{}://{}", uri.scheme_str()?, uri.host()?))
        });
        let body = read_some(response.into_body()).await;
        let is_success = (200..300).contains(&status);
        let text = if is_success { None } else { excerpt(&body, event, &self.secrets) };
        let end = End::Answered { status, retry_after: wait.is_some() };
        Exchanged { end, wait, detail: Detail::Answer { text, elsewhere } }
    }
}

/// Reads the beginning of a body, and the rest as far as that is cheap.
async fn read_some(mut body: Incoming) -> Vec<u8> {
    let mut beginning = Vec::new();
    let reading = async {
        let mut bytes = 0;
        while bytes < MAX_ANSWER_BYTES && !body.is_end_stream() {
            // A body that breaks off changes nothing about the status, which has come.
            let Some(Ok(frame)) = body.frame().await else { break };
            if let Some(data) = frame.data_ref() {
                bytes += data.len();
                let room = READ_FOR_EXCERPT_BYTES - beginning.len();
                beginning.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    };
    // What has come by then is the beginning; the rest is not needed.
    let _ = tokio::time::timeout(BODY_PATIENCE, reading).await;
    beginning
}

impl Exchanged {
    /// No connection could be made.
    pub(crate) fn unreached(error: ConnectError) -> Self {
        let end = if matches!(error, ConnectError::Forbidden { .. }) { End::Forbidden } else { End::Unreached };
        Self { end, wait: None, detail: Detail::Cause(Box::new(error)) }
    }

    fn nothing_sent(error: impl Error + std::marker::Send + Sync + 'static) -> Self {
        Self { end: End::Unreached, wait: None, detail: Detail::Cause(Box::new(error)) }
    }

    fn of_client(error: hyper_util::client::legacy::Error) -> Self {
        let end = match (error.is_connect(), is_forbidden(&error)) {
            (true, true) => End::Forbidden,
            (true, false) => End::Unreached,
            // The client tells nothing more that could be relied on: it may have been sent.
            (false, _) => End::Unanswered,
        };
        Self { end, wait: None, detail: Detail::Cause(Box::new(error)) }
    }

    /// How long the endpoint asked to be left alone.
    pub(crate) fn wait(&self) -> Option<Duration> {
        // In other answers, such as redirects, it means something else.
        matches!(self.end, End::Answered { status: 429 | 503 | 425 | 507 | 509 | 529, .. })
            .then_some(self.wait)
            .flatten()
    }

    pub(crate) fn into_error(self, kind: ErrorKind, origin: &str, sizes: Option<&str>) -> PublishError {
        let detail = match (self.end, &self.detail) {
            (End::Answered { status, .. }, Detail::Answer { text, elsewhere }) => {
                let name = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
                let mut detail = format!("{origin} answered {status}");
                let parts = [
                    name.map(|name| format!(" {name}")),
                    sizes.map(|sizes| format!(" ({sizes})")),
                    (300..400).contains(&status).then(|| redirected(elsewhere.as_deref())),
                    text.as_ref().map(|text| format!(": {text}")),
                ];
                detail.extend(parts.into_iter().flatten());
                detail
            }
            (End::Unanswered, Detail::TimedOut(after)) => {
                format!("sent to {origin}, no answer within {after:?}")
            }
            (_, Detail::TimedOut(after)) => format!("no connection to {origin} within {after:?}"),
            (End::Unanswered, _) => format!("sent to {origin}, and the connection ended without an answer"),
            _ => format!("no connection to {origin}"),
        };
        let error = PublishError::new(kind, detail);
        match self.detail {
            Detail::Cause(cause) => error.with_source(Cause(cause)),
            _ => error,
        }
    }
}

fn redirected(elsewhere: Option<&str>) -> String {
    let place = elsewhere.map_or(String::new(), |place| format!(" to {place}"));
    format!(": a redirect{place}, which is not followed; set url to where the endpoint is now")
}

fn is_forbidden(error: &hyper_util::client::legacy::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(ConnectError::Forbidden { .. })) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A boxed error that is an error again.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Cause(#[from] Box<dyn Error + std::marker::Send + Sync>);
