//! Documents that name the test for a promise name one that is there.

use super::Finding;

/// The documents whose tables name tests.
const DOCUMENTS: [&str; 2] = ["docs/failure-modes.md", "docs/guarantees.md"];

pub(super) fn check(files: &[(&str, String)], findings: &mut Vec<Finding>) {
    for (path, text) in files.iter().filter(|(path, _)| DOCUMENTS.contains(path)) {
        for (line, named) in
            text.lines().enumerate().flat_map(|(number, line)| names(line).map(move |name| (number, name)))
        {
            if !files.iter().any(|(path, text)| holds(path, text, named)) {
                let problem = format!("there is no test `{}::{}`", named.0, named.1);
                let remedy = "name the test that shows the row, by its module and name";
                findings.push(Finding::new(format!("{path}:{}", line + 1), problem, remedy));
            }
        }
    }
}

/// `module::name` in backticks, all in lower case: a type's name is no test.
fn names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter_map(|text| text.split_once("::")).filter(move |(module, name)| plain(module) && plain(name))
}

fn holds(path: &str, text: &str, (module, name): (&str, &str)) -> bool {
    let in_module = path.ends_with(&format!("/{module}.rs")) || path.contains(&format!("/{module}/"));
    in_module && path.ends_with(".rs") && text.contains(&format!("fn {name}("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_not_there_is_found() {
        let document = "| a | `kills::there`, `kills::gone` | `Order::take` and `outbox-relay` |";
        let files = [
            ("docs/guarantees.md", document.to_owned()),
            ("docs/else.md", "`kills::gone`".to_owned()),
            ("tests/it/kills.rs", "async fn there() {}".to_owned()),
            ("tests/it/other.rs", "fn gone() {}".to_owned()),
        ];
        let mut findings = Vec::new();
        check(&files, &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(
            (findings[0].place.as_str(), findings[0].problem.contains("kills::gone")),
            ("docs/guarantees.md:1", true)
        );
    }
}
