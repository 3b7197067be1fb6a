//! `cargo xtask demo`: the demo of the examples package, with the services that it needs.

use crate::Outcome;
use crate::cargo::{bin_dir, cargo, must};
use crate::servers::{Broker, Servers};
use crate::test::lead_to_binaries;

pub(crate) fn run(arguments: &[String]) -> Outcome {
    println!("== build (minutes the first time)");
    // What the tests build too, so that neither compiles anything again for the other.
    must(&mut cargo(&["build", "--workspace", "--all-features", "--bins"]))?;
    run_built(arguments)
}

/// Runs binaries that stand built: `ci` has them from the tests.
pub(crate) fn run_built(arguments: &[String]) -> Outcome {
    let servers = if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        Servers::default()
    } else {
        println!("== services");
        Servers::acquire(None, &brokers(arguments))?
    };
    println!("== demo");
    let mut command = std::process::Command::new(bin_dir().join("demo"));
    command.args(arguments);
    servers.lead(&mut command);
    lead_to_binaries(&mut command);
    must(&mut command)
}

/// The brokers that the arguments name.
fn brokers(arguments: &[String]) -> Vec<Broker> {
    let names =
        [("rabbitmq", Broker::RabbitMq), ("nats", Broker::Nats), ("sqs", Broker::Sqs), ("kafka", Broker::Kafka)];
    let named = |name: &str| {
        let pair = |pair: &[String]| pair[0] == "--broker" && pair[1] == name;
        arguments.contains(&format!("--broker={name}")) || arguments.windows(2).any(pair)
    };
    names.into_iter().filter(|(name, _)| named(name)).map(|(_, broker)| broker).collect()
}

#[cfg(test)]
mod tests {
    use super::{Broker, brokers};

    #[test]
    fn a_demo_needs_the_broker_that_it_names() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(brokers(&words("--broker rabbitmq --events 5")), [Broker::RabbitMq]);
        assert_eq!(brokers(&words("--broker=nats")), [Broker::Nats]);
        assert_eq!(brokers(&words("--broker=sqs")), [Broker::Sqs]);
        assert_eq!(brokers(&words("--broker stdout")), []);
        assert_eq!(brokers(&[]), []);
    }
}
