//! Why a broker's table is refused.

use super::path::Path;
use super::problem::{Problem, nearest};
use crate::cli::brokers;

/// Why the table `[route.<name>]` at a path can't be used by a binary with these brokers; `None` when it can.
pub(crate) fn refusal(path: &Path, name: &str, compiled_in: &[&str]) -> Option<Problem> {
    let key = path.to_string();
    let have = list(compiled_in);
    match brokers::find(name) {
        Some(_) => {
            let absent = Problem::new(key, format!("broker `{name}` is not compiled in"));
            (!compiled_in.contains(&name)).then(|| absent.remedy(format!("enable feature `{name}`")))
        }
        None => {
            let near = nearest(name, brokers::ALL.iter().map(|broker| broker.name));
            let remedy =
                near.map_or_else(|| format!("this binary has {have}"), |near| format!("did you mean `{near}`?"));
            Some(Problem::new(key, format!("unknown broker `{name}`")).remedy(remedy))
        }
    }
}

/// `a`, `b` and `c`, each in backquotes.
pub(crate) fn list(names: &[&str]) -> String {
    joined(&names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>())
}

/// a, b and c.
pub(crate) fn joined(names: &[String]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_refused_with_the_reason() {
        let check = |name: &str, compiled_in: &[&str], text: Option<&str>| {
            assert_eq!(
                refusal(&Path::of_route(0, name), name, compiled_in).map(|problem| problem.to_string()).as_deref(),
                text
            );
        };
        let not_compiled_in = "route[0].rabbitmq: broker `rabbitmq` is not compiled in; enable feature `rabbitmq`";
        check("rabbitmq", &["stdout"], Some(not_compiled_in));
        check("rabbitmq", &["stdout", "rabbitmq"], None);
        check("stdout", &["stdout"], None);
        check("rabitmq", &["stdout"], Some("route[0].rabitmq: unknown broker `rabitmq`; did you mean `rabbitmq`?"));
        check("kafak", &["stdout"], Some("route[0].kafak: unknown broker `kafak`; did you mean `kafka`?"));
        check("zeromq", &["stdout"], Some("route[0].zeromq: unknown broker `zeromq`; this binary has `stdout`"));
    }
}
