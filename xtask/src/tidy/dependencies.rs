//! Who may depend on whom, read from `cargo tree`.

use std::collections::BTreeSet;

use super::Finding;
use crate::Outcome;
use crate::cargo::{cargo, output};

/// A package with features, and what its normal and build dependencies must not hold.
struct Rule {
    package: &'static str,
    features: &'static [&'static str],
    forbidden: &'static [&'static str],
    remedy: &'static str,
}

const RULES: [Rule; 7] = [
    Rule {
        package: "outbox-core",
        features: &["--all-features"],
        forbidden: &["tokio", "sqlx", "sqlx-core", "lapin", "krafka", "outbox-pg", "outbox-rabbitmq", "outbox-relay"],
        remedy: "the core is vocabulary: move what needs a runtime or a driver into an adapter or the relay",
    },
    Rule {
        package: "outbox-pg",
        features: &["--all-features"],
        forbidden: &["lapin", "outbox-rabbitmq", "outbox-relay"],
        remedy: "adapters know the core only: let the relay or the application bring them together",
    },
    Rule {
        package: "outbox-rabbitmq",
        features: &["--all-features"],
        forbidden: &["sqlx", "sqlx-core", "outbox-pg", "outbox-relay"],
        remedy: "adapters know the core only: let the relay or the application bring them together",
    },
    Rule {
        package: "outbox-kafka",
        features: &["--all-features"],
        forbidden: &[
            "sqlx",
            "sqlx-core",
            "lapin",
            "outbox-pg",
            "outbox-rabbitmq",
            "outbox-relay",
            "aws-lc-rs",
            "openssl-sys",
        ],
        remedy: "adapters know the core only, and `ring` alone: let the relay or the application bring them together",
    },
    Rule {
        package: "outbox-relay",
        features: &["--no-default-features"],
        forbidden: &[
            "sqlx",
            "sqlx-core",
            "lapin",
            "krafka",
            "outbox-pg",
            "outbox-rabbitmq",
            "outbox-kafka",
            "axum",
            "clap",
        ],
        remedy: "the engine knows `dyn Store` and `dyn Publisher`: put the dependency behind a feature",
    },
    Rule {
        package: "outbox-relay",
        features: &["--all-features"],
        forbidden: &["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls", "outbox-testkit", "outbox-services"],
        remedy: "one crypto provider (`ring`), no system library, and no test code in the relay: see who pulls it with \
                 `cargo tree -i`",
    },
    Rule {
        package: "xtask",
        features: &["--all-features"],
        forbidden: &["tokio", "sqlx", "lapin", "outbox-core"],
        remedy: "the task runner compiles in seconds: keep drivers and runtimes out of it",
    },
];

pub(super) fn check(findings: &mut Vec<Finding>) -> Outcome {
    for rule in &RULES {
        let arguments = ["tree", "--locked", "-e", "normal,build", "--prefix", "none", "--format", "{p}", "-p"];
        let tree = output(cargo(&arguments).arg(rule.package).args(rule.features))?;
        findings.extend(broken(rule, &tree));
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
        let rule = Rule { package: "a", features: &[], forbidden: &["a", "tokio"], remedy: "" };
        assert_eq!(broken(&rule, "a v0.1.0 (/a)\ntokio-util v1.0.0\nserde v1.0.0\n"), []);
        assert_eq!(broken(&rule, "a v0.1.0 (/a)\ntokio v1.0.0 (*)\n").len(), 1);
    }
}
