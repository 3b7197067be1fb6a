#![doc = include_str!("docs.md")]

mod config;
mod connection;
mod encode;
mod error;
mod publisher;
mod queue;
mod socket;
mod transmit;
mod verdict;

pub use config::{
    DEFAULT_CHANNELS, DEFAULT_CONFIRM_TIMEOUT, DEFAULT_CONNECT_TIMEOUT, DEFAULT_HEARTBEAT, DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TOPIC, DEFAULT_URL, RabbitMqConfig,
};
pub use error::ConfigError;
pub use publisher::RabbitMqPublisher;
