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
        Servers::acquire(None, broker(arguments))?
    };
    println!("== demo");
    let mut command = std::process::Command::new(bin_dir().join("demo"));
    command.args(arguments);
    servers.lead(&mut command);
    lead_to_binaries(&mut command);
    must(&mut command)
}

fn broker(arguments: &[String]) -> Broker {
    let named = |pair: &[String]| pair[0] == "--broker" && pair[1] == "rabbitmq";
    let one = arguments.iter().any(|argument| argument == "--broker=rabbitmq");
    if one || arguments.windows(2).any(named) { Broker::RabbitMq } else { Broker::None }
}

#[cfg(test)]
mod tests {
    use super::{Broker, broker};

    #[test]
    fn only_the_rabbitmq_demo_needs_rabbitmq() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(broker(&words("--broker rabbitmq --events 5")), Broker::RabbitMq);
        assert_eq!(broker(&words("--broker=rabbitmq")), Broker::RabbitMq);
        assert_eq!(broker(&words("--broker stdout")), Broker::None);
        assert_eq!(broker(&[]), Broker::None);
    }
}
