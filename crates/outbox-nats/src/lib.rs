#![doc = include_str!("docs.md")]

mod address;
mod answer;
mod config;
mod connection;
mod encode;
mod error;
mod login;
mod probe;
mod publisher;
mod session;
mod tls;
mod waiting;

pub use config::{
    DEFAULT_CONFIRM_TIMEOUT, DEFAULT_CONNECT_TIMEOUT, DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TOPIC,
    DEFAULT_URL, NatsConfig,
};
pub use error::ConfigError;
pub use publisher::{NatsPublisher, QUESTION_TIMEOUT};
