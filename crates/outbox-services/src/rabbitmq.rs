//! RabbitMQ launcher: not here yet.
