#![doc = include_str!("docs.md")]

mod attributes;
mod body;
mod client;
mod config;
mod cut;
mod encode;
mod error;
mod publisher;
mod request;
mod verdict;

pub use config::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_REQUEST_TIMEOUT, SqsConfig,
};
pub use error::ConfigError;
pub use publisher::SqsPublisher;
