//! Who may depend on whom, read from `cargo tree`.

use std::collections::BTreeSet;

use super::Finding;
use crate::Outcome;
use crate::cargo::{cargo, output};

/// A package with features, and what its normal and build dependencies must not hold.
struct Rule {
    package: &'static str,
    features: Vec<&'static str>,
    forbidden: Vec<&'static str>,
    remedy: &'static str,
}

/// Each adapter with its feature of the relay and the client that it alone brings. Webhooks have no client of their own:
/// the AWS SDK stands on the same HTTP library.
const ADAPTERS: [(&str, &str, &str); 6] = [
    ("outbox-pg", "postgres", "sqlx-core"),
    ("outbox-rabbitmq", "rabbitmq", "lapin"),
    ("outbox-nats", "nats", "async-nats"),
    ("outbox-sqs", "sqs", "aws-sdk-sqs"),
    ("outbox-kafka", "kafka", "krafka"),
    ("outbox-webhook", "webhook", "outbox-webhook"),
];

/// Second crypto providers, system libraries, and test code.
const NOWHERE: [&str; 6] =
    ["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls", "outbox-testkit", "outbox-services"];

/// All adapters and clients but those of one adapter.
fn others(adapter: &str) -> Vec<&'static str> {
    let other = ADAPTERS.into_iter().filter(|(name, ..)| *name != adapter);
    other.flat_map(|(name, _, client)| [name, client]).collect()
}

fn rules() -> Vec<Rule> {
    let mut rules = vec![
        Rule {
            package: "outbox-core",
            features: vec!["--all-features"],
            forbidden: [others(""), vec!["tokio", "outbox-relay"]].concat(),
            remedy: "the core is vocabulary: move what needs a runtime or a driver into an adapter or the relay",
        },
        Rule {
            package: "outbox-relay",
            features: vec!["--no-default-features"],
            forbidden: [others(""), vec!["axum", "clap"]].concat(),
            remedy: "the engine knows `dyn Store` and `dyn Publisher`: put the dependency behind a feature",
        },
        Rule {
            package: "outbox-relay",
            features: vec!["--all-features"],
            forbidden: NOWHERE.to_vec(),
            remedy: "one crypto provider (`ring`), no system library, and no test code in the relay: see who pulls it \
                     with `cargo tree -i`",
        },
        Rule {
            package: "xtask",
            features: vec!["--all-features"],
            forbidden: [others(""), vec!["tokio", "outbox-core"]].concat(),
            remedy: "the task runner compiles in seconds: keep drivers and runtimes out of it",
        },
    ];
    for (adapter, feature, _) in ADAPTERS {
        rules.push(Rule {
            package: adapter,
            features: vec!["--all-features"],
            forbidden: [others(adapter), NOWHERE.to_vec(), vec!["outbox-relay", "aws-config"]].concat(),
            remedy: "adapters know the core only: let the relay or the application bring them together",
        });
        rules.push(Rule {
            package: "outbox-relay",
            features: vec!["--no-default-features", "--features", feature],
            forbidden: [others(adapter), NOWHERE.to_vec()].concat(),
            remedy: "a relay for one broker holds no other broker's client: put it behind that broker's feature",
        });
    }
    rules
}

pub(super) fn check(findings: &mut Vec<Finding>) -> Outcome {
    for rule in rules() {
        let arguments = ["tree", "--locked", "-e", "normal,build", "--prefix", "none", "--format", "{p}", "-p"];
        let tree = output(cargo(&arguments).arg(rule.package).args(&rule.features))?;
        findings.extend(broken(&rule, &tree));
    }
    Ok(())
}

fn broken(rule: &Rule, tree: &str) -> Vec<Finding> {
    let names: BTreeSet<&str> = tree.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    let found = rule.forbidden.iter().filter(|name| names.contains(**name));
    found
        .map(|name| {
            let with = rule.features.join(" ");
            Finding::new(format!("{} ({with})", rule.package), format!("depends on `{name}`"), rule.remedy)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Rule, broken};

    #[test]
    fn a_forbidden_name_is_found_whole_and_the_package_itself_is_not() {
        let rule = Rule { package: "a", features: vec![], forbidden: vec!["a", "tokio"], remedy: "" };
        assert_eq!(broken(&rule, "a v0.1.0 (/a)\ntokio-util v1.0.0\nserde v1.0.0\n"), []);
        assert_eq!(broken(&rule, "a v0.1.0 (/a)\ntokio v1.0.0 (*)\n").len(), 1);
    }
}
