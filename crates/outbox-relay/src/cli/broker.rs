//! From the broker's table to its publisher.

use std::sync::Arc;

use outbox_core::Publisher;

use super::failure::Failure;
use super::settings::{Broker, Problem};
use crate::StdoutPublisher;

/// Makes the publisher. Checks its configuration; what has a connection makes it later, by itself.
pub(crate) fn publisher(broker: &Broker) -> Result<Arc<dyn Publisher>, Failure> {
    match broker {
        Broker::Stdout => {
            if stdout_was_closed() {
                let problem = "stdout is closed, so every event would be lost; give it a reader, a file or a pipe";
                return Err(Failure::Failed(format!("route.stdout: {problem}")));
            }
            let closed = |error| Failure::Failed(format!("route.stdout: stdout can't be used: {error}"));
            Ok(Arc::new(StdoutPublisher::new().map_err(closed)?))
        }
        #[cfg(feature = "rabbitmq")]
        Broker::RabbitMq(table) => Ok(Arc::new(rabbitmq(table).map_err(Failure::Config)?)),
        #[cfg(not(feature = "rabbitmq"))]
        Broker::RabbitMq(_) => {
            let problem = Problem::new("route.rabbitmq", "broker `rabbitmq` is not compiled in");
            Err(Failure::Config(vec![problem.remedy("enable feature `rabbitmq`")]))
        }
    }
}

/// Whether the process was started with a closed stdout. The runtime then puts `/dev/null`, opened to read and write, in
/// its place, and all that is written succeeds and is gone; `>/dev/null`, which somebody asked for, is opened to write.
/// Where the system does not tell (it is Linux that does), the answer is no.
fn stdout_was_closed() -> bool {
    let nowhere = std::fs::read_link("/proc/self/fd/1").is_ok_and(|path| path.as_os_str() == "/dev/null");
    let flags = std::fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    // Octal; its last digit is the way of access: 0 read, 1 write, 2 both.
    let both = flags.lines().any(|line| line.starts_with("flags:") && line.ends_with('2'));
    nowhere && both
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(table: &super::settings::RabbitMq) -> Result<outbox_rabbitmq::RabbitMqPublisher, Vec<Problem>> {
    let mut config = outbox_rabbitmq::RabbitMqConfig::new(table.url.reveal(), &table.exchange)
        .with_topic(&table.topic)
        .with_channels(u16::try_from(table.channels).unwrap_or(u16::MAX)) // above its largest value: refused
        .with_confirm_timeout(table.confirm_timeout)
        .with_connect_timeout(table.connect_timeout)
        .with_heartbeat(table.heartbeat)
        .with_max_message_bytes(table.max_message_bytes);
    config.ca_file.clone_from(&table.ca_file);
    config.cert_file.clone_from(&table.cert_file);
    config.key_file.clone_from(&table.key_file);
    let problem =
        |error: outbox_rabbitmq::ConfigError| Problem::new(format!("route.rabbitmq.{}", error.field), error.problem);
    outbox_rabbitmq::RabbitMqPublisher::connect(config).map_err(|errors| errors.into_iter().map(problem).collect())
}
