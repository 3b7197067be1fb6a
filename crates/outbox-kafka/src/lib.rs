#![doc = include_str!("docs.md")]

mod config;
mod encode;
mod error;
mod link;
mod publisher;
mod topic;
mod transmit;

pub use config::{
    Compression, DEFAULT_BROKER, DEFAULT_CONFIRM_TIMEOUT, DEFAULT_CONNECT_TIMEOUT, DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TOPIC, KafkaConfig, SaslMechanism,
};
pub use error::ConfigError;
pub use publisher::KafkaPublisher;
