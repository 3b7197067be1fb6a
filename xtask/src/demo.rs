//! `cargo xtask demo`: the demo of the examples package, with the services that it needs.

use crate::Outcome;
use crate::cargo::{bin_dir, cargo, must};
use crate::servers::{Broker, Purpose, Servers};
use crate::test::lead_to_binaries;

/// Each broker of the demo but standard output, which needs none: its name, which is also its feature, and its server.
const BROKERS: [(&str, Option<Broker>); 5] = [
    ("rabbitmq", Some(Broker::RabbitMq)),
    ("nats", Some(Broker::Nats)),
    ("sqs", Some(Broker::Sqs)),
    ("kafka", Some(Broker::Kafka)),
    ("webhook", None),
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    println!("== build (minutes the first time)");
    // For the broker that was asked for only: the clients of all of them take longer to compile than all the rest.
    let packages = ["build", "-p", "outbox-relay", "-p", "outbox-examples", "--bins", "--features"];
    must(cargo(&packages).arg(features(arguments)))?;
    run_built(arguments)
}

/// Runs binaries that stand built: `ci` has them from the tests.
pub(crate) fn run_built(arguments: &[String]) -> Outcome {
    let servers = if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        Servers::default()
    } else {
        println!("== services");
        Servers::acquire(Purpose::Demo, None, &servers(arguments))?
    };
    println!("== demo");
    let mut command = std::process::Command::new(bin_dir().join("demo"));
    command.args(arguments);
    servers.lead(&mut command);
    lead_to_binaries(&mut command);
    must(&mut command)
}

/// What is built into relay and demo.
fn features(arguments: &[String]) -> String {
    let is_custom = arguments.iter().any(|argument| argument == "--custom-relay");
    // That relay is one file with all brokers in it.
    let chosen = BROKERS.iter().filter(|(name, _)| is_custom || is_named(arguments, name));
    let mut features = vec!["outbox-relay/cli".to_owned()];
    features.extend(chosen.map(|(name, _)| format!("outbox-examples/{name}")));
    features.extend(is_custom.then(|| "outbox-examples/custom-relay".to_owned()));
    features.join(",")
}

/// The servers that the arguments ask for.
fn servers(arguments: &[String]) -> Vec<Broker> {
    let named = BROKERS.iter().filter(|(name, _)| is_named(arguments, name));
    named.filter_map(|(_, server)| *server).collect()
}

fn is_named(arguments: &[String], broker: &str) -> bool {
    let pair = |pair: &[String]| pair[0] == "--broker" && pair[1] == broker;
    arguments.contains(&format!("--broker={broker}")) || arguments.windows(2).any(pair)
}

#[cfg(test)]
mod tests {
    use super::{Broker, features, servers};

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_demo_needs_the_server_of_the_broker_that_it_names() {
        assert_eq!(servers(&words("--broker rabbitmq --events 5")), [Broker::RabbitMq]);
        assert_eq!(servers(&words("--broker=nats")), [Broker::Nats]);
        assert_eq!(servers(&words("--broker=sqs")), [Broker::Sqs]);
        assert_eq!(servers(&words("--broker kafka")), [Broker::Kafka]);
        assert_eq!(servers(&words("--broker webhook")), []);
        assert_eq!(servers(&words("--broker stdout")), []);
        assert_eq!(servers(&[]), []);
    }

    #[test]
    fn a_demo_is_built_for_its_broker_only() {
        assert_eq!(features(&words("--events 5")), "outbox-relay/cli");
        assert_eq!(features(&words("--broker=webhook")), "outbox-relay/cli,outbox-examples/webhook");
        let custom = features(&words("--custom-relay --broker nats"));
        assert!(custom.contains("outbox-examples/sqs") && custom.ends_with("outbox-examples/custom-relay"), "{custom}");
    }
}
