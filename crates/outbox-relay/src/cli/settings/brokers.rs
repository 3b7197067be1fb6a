//! Which brokers there are, and which of them this binary has.

use super::problem::{Problem, nearest};

/// The brokers that this version knows, as their route tables are called, compiled in or not.
pub(crate) const KNOWN: &[&str] = &["stdout", "rabbitmq"];

/// The brokers that a later version brings.
pub(crate) const LATER: &[&str] = &["nats", "sqs", "kafka", "webhook"];

/// The brokers in this binary.
pub(crate) const COMPILED_IN: &[&str] = &[
    "stdout",
    #[cfg(feature = "rabbitmq")]
    "rabbitmq",
];

/// Why the table `[route.<name>]` can't be used by a binary with these brokers; `None` when it can.
pub(crate) fn refusal(name: &str, compiled_in: &[&str]) -> Option<Problem> {
    let key = format!("route.{name}");
    if KNOWN.contains(&name) {
        let absent = Problem::new(key, format!("broker `{name}` is not compiled in"));
        return (!compiled_in.contains(&name)).then(|| absent.remedy(format!("enable feature `{name}`")));
    }
    let have = format!("this one has {}", list(compiled_in));
    if LATER.contains(&name) {
        return Some(Problem::new(key, format!("broker `{name}` comes in a later version")).remedy(have));
    }
    let near = nearest(name, KNOWN.iter().chain(LATER).copied());
    let remedy =
        near.map_or_else(|| format!("this binary has {}", list(compiled_in)), |n| format!("did you mean `{n}`?"));
    Some(Problem::new(key, format!("unknown broker `{name}`")).remedy(remedy))
}

/// `a`, `b` and `c`, each in backquotes.
pub(crate) fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_refused_with_the_reason() {
        let check = |name: &str, compiled_in: &[&str], text: Option<&str>| {
            assert_eq!(refusal(name, compiled_in).map(|problem| problem.to_string()).as_deref(), text);
        };
        let not_compiled_in = "route.rabbitmq: broker `rabbitmq` is not compiled in; enable feature `rabbitmq`";
        check("rabbitmq", &["stdout"], Some(not_compiled_in));
        check("rabbitmq", &["stdout", "rabbitmq"], None);
        check("stdout", &["stdout"], None);
        check("rabitmq", &["stdout"], Some("route.rabitmq: unknown broker `rabitmq`; did you mean `rabbitmq`?"));
        check("kafak", &["stdout"], Some("route.kafak: unknown broker `kafak`; did you mean `kafka`?"));
        check("zeromq", &["stdout"], Some("route.zeromq: unknown broker `zeromq`; this binary has `stdout`"));
        check(
            "nats",
            &["stdout", "rabbitmq"],
            Some("route.nats: broker `nats` comes in a later version; this one has `stdout` and `rabbitmq`"),
        );
    }
}
