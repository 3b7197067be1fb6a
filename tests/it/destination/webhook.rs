//! An endpoint of a customer: an HTTP server that notes the events and answers 204, and 404 until it is made.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use outbox_core::EventId;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::{Destination, Mortal, event_id};
use crate::relay::RelayConfig;

/// The example secret of Standard Webhooks.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub(crate) struct WebhookEndpoint {
    address: SocketAddr,
    desk: Arc<Desk>,
    server: JoinHandle<()>,
}

/// What outlives a kill of the server.
#[derive(Debug, Default)]
struct Desk {
    is_made: AtomicBool,
    arrived: Mutex<Vec<EventId>>,
}

impl WebhookEndpoint {
    pub(crate) async fn own() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, desk) = (listener.local_addr().unwrap(), Arc::<Desk>::default());
        let server = tokio::spawn(serve(listener, Arc::clone(&desk)));
        Self { address, desk, server }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

impl Drop for WebhookEndpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[async_trait]
impl Destination for WebhookEndpoint {
    fn kind(&self) -> &'static str {
        "webhook"
    }

    fn lead(&self, config: RelayConfig) -> RelayConfig {
        config.with("route.0.webhook.url", &self.url()).with("route.0.webhook.secret", SECRET)
    }

    fn name_when_missing(&self) -> &str {
        "404"
    }

    async fn make(&mut self) {
        self.desk.is_made.store(true, SeqCst);
    }

    async fn arrived(&mut self) -> Vec<EventId> {
        self.desk.arrived.lock().unwrap().clone()
    }
}

#[async_trait]
impl Mortal for WebhookEndpoint {
    async fn go_down(&mut self) {
        // Ends the listener and, wherever they are, all connections: what a kill does to a process.
        self.server.abort();
        let ended = (&mut self.server).await.unwrap_err();
        assert!(ended.is_cancelled(), "{ended}");
    }

    async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.server = tokio::spawn(serve(listener, Arc::clone(&self.desk)));
    }
}

async fn serve(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else { continue };
        let desk = Arc::clone(&desk);
        let service = hyper::service::service_fn(move |request| take(request, Arc::clone(&desk)));
        connections.spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn take(request: Request<Incoming>, desk: Arc<Desk>) -> Result<Response<Empty<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    body.collect().await?;
    let mut response = Response::new(Empty::new());
    if desk.is_made.load(SeqCst) {
        // Noted before the answer: a kill between the two makes a copy, never a loss.
        desk.arrived.lock().unwrap().push(event_id(head.headers["webhook-id"].to_str().unwrap()));
        *response.status_mut() = hyper::StatusCode::NO_CONTENT;
    } else {
        *response.status_mut() = hyper::StatusCode::NOT_FOUND;
    }
    Ok(response)
}
