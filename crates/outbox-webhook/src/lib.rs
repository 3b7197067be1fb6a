#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod connector;
mod encode;
mod endpoint;
mod error;
mod examine;
mod exchange;
mod guard;
mod health;
mod publisher;
mod sign;
mod tls;

pub use config::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_REQUEST_TIMEOUT, PlainHttp,
    PrivateAddresses, Signing, WebhookConfig,
};
pub use error::ConfigError;
pub use publisher::{TURN_PATIENCE, WebhookPublisher};
