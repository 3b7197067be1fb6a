//! Rules for single source files.

use std::collections::BTreeSet;
use std::fs;

use super::source::{Source, is_test_path, test_modules};
use super::{Finding, named_tests};
use crate::Outcome;
use crate::cargo::{output, root};

/// About 400 is where a file has more than one purpose; a tenth more is no reason to cut it in the middle.
const MAX_LINES: usize = 440;

/// Where the environment and files may be touched: the command line, and what never ships.
const MAY_TOUCH_SYSTEM: [&str; 7] = [
    "crates/outbox-relay/src/cli/",
    "crates/outbox-relay/src/main.rs",
    "crates/outbox-testkit/",
    "crates/outbox-services/",
    "xtask/",
    "examples/",
    "tests/",
];

/// Written in two halves, so that this list does not find itself.
const NOT_FOR_THE_REPOSITORY: [(&str, &str); 7] = [
    ("/wo", "rk/"),
    ("/ho", "me/"),
    ("py", "pi.org"),
    ("npm", "js.org"),
    ("deb.deb", "ian.org"),
    ("static.crates", ".io"),
    ("index.crates", ".io"),
];

/// Module names that say nothing.
const EMPTY_NAMES: [&str; 4] = ["utils", "common", "helpers", "types"];

/// Checks every file that git knows or would add, and returns how many it saw.
pub(super) fn check(findings: &mut Vec<Finding>) -> Outcome<usize> {
    let mut git = std::process::Command::new("git");
    let listed = output(git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root()))?;
    // Pictures and the like hold no rules to break; a deleted file is still listed until that is committed.
    let read = |path: &str| String::from_utf8(fs::read(root().join(path)).ok()?).ok();
    let files: Vec<(&str, String)> = listed.lines().filter_map(|path| Some((path, read(path)?))).collect();
    let is_rust = |path: &str| path.ends_with(".rs");
    let modules = files.iter().filter(|(path, _)| is_rust(path)).flat_map(|(path, text)| test_modules(path, text));
    let tests: BTreeSet<String> = modules.collect();
    for (path, text) in &files {
        check_any(path, text, findings);
        if is_rust(path) {
            let is_test = tests.contains(*path) || is_test_path(path);
            check_rust(&Source::new(path, text, is_test), is_test, findings);
        } else if path.starts_with("crates/outbox-pg/src/sql/") && path.ends_with(".sql") {
            check_sql(path, text, findings);
        }
    }
    named_tests::check(&files, findings);
    Ok(files.len())
}

fn check_any(path: &str, text: &str, findings: &mut Vec<Finding>) {
    if path.ends_with(".lock") {
        return;
    }
    for (at, line) in text.lines().enumerate() {
        for (one, two) in NOT_FOR_THE_REPOSITORY {
            let word = format!("{one}{two}");
            if line.contains(&word) {
                let remedy = "leave paths of one machine and hosts of registries out: the clients know theirs";
                findings.push(Finding::new(format!("{path}:{}", at + 1), format!("names `{word}`"), remedy));
            }
        }
    }
}

/// Whether a function of exactly this name is called.
fn calls(text: &str, name: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(&format!("{name}(")).any(|(at, _)| !text[..at].ends_with(continues))
}

fn check_sql(path: &str, text: &str, findings: &mut Vec<Finding>) {
    if !["-- Called by: ", "-- Caller: "].iter().any(|start| text.starts_with(start)) {
        let remedy = "start the file with `-- Called by: …`, then the index that it needs and the locks that it takes";
        findings.push(Finding::new(format!("{path}:1"), "no header", remedy));
    }
}

fn check_rust(source: &Source<'_>, is_test: bool, findings: &mut Vec<Finding>) {
    let path = source.path;
    let at = |number: usize| format!("{path}:{number}");
    if source.len() > MAX_LINES {
        let problem = format!("{} lines, at most {MAX_LINES}", source.len());
        findings.push(Finding::new(path, problem, "it is two rooms: split it by purpose"));
    }
    let within_documented = is_test && path.contains("/src/");
    if !source.is_documented() && !within_documented {
        findings.push(Finding::new(at(1), "no module documentation", "start the file with `//!` and its purpose"));
    }
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let folder = path.rsplit('/').nth(1).unwrap_or_default();
    if EMPTY_NAMES.iter().any(|empty| *empty == name || *empty == folder) {
        findings.push(Finding::new(path, "a module name that says nothing", "name it after its purpose"));
    }
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    let touches_system = MAY_TOUCH_SYSTEM.iter().any(|place| path.starts_with(place));
    for line in source.code() {
        let text = line.text;
        if line.lifted {
            continue;
        }
        if line.in_tests {
            if calls(text, concat!("sle", "ep")) {
                let remedy =
                    "wait for the condition itself, with a deadline; pause the clock where time is the subject";
                findings.push(Finding::new(at(line.number), "a test that sleeps", remedy));
            }
            continue;
        }
        if is_product && holds_sql(text) {
            let remedy = "put the statement into crates/outbox-pg/src/sql/, one a file";
            findings.push(Finding::new(at(line.number), "SQL in Rust", remedy));
        }
        let touched = ["std::env::", "std::fs::", "tokio::fs::", "use std::env;", "use std::fs;", "env::var("];
        // Taking over a handle opens nothing.
        let code = text.replace("std::fs::File::from(", "");
        if !touches_system && path != "build.rs" && touched.iter().any(|what| code.contains(what)) {
            let remedy = "only the relay's `cli` reads the environment and files: pass the value in";
            findings.push(Finding::new(at(line.number), "touches the environment or files", remedy));
        }
        // The testkit is test code as a whole: a panic is how it reports.
        let panics = [".unwrap()", ".expect("].iter().any(|call| text.contains(call));
        if panics
            && !line.explained
            && !path.starts_with("crates/outbox-testkit/")
            && path != "xtask/src/tidy/sources.rs"
        {
            let remedy = "handle it, or say in a comment on the line before why it can't fail";
            findings.push(Finding::new(at(line.number), "may panic, unexplained", remedy));
        }
    }
    for (number, line) in source.all() {
        if line.contains(concat!("unsafe", " {")) || line.contains(concat!("#[allow(unsafe", "_code")) {
            findings.push(Finding::new(at(number), "unsafe code", "find a safe way"));
        }
    }
}

/// Whether a line of code holds a statement; upper-case words as all SQL here has them.
fn holds_sql(text: &str) -> bool {
    let update = text.find("UPDATE ").is_some_and(|from| text[from..].contains(" SET "));
    // Split, so that the rule does not find itself.
    update
        || [["SEL", "ECT "], ["INS", "ERT INTO"], ["DEL", "ETE FROM"]].iter().any(|word| text.contains(&word.concat()))
}

#[cfg(test)]
mod tests {
    use super::{Finding, Source, check_any, check_rust, check_sql};

    fn rust(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_rust(&Source::new(path, text, false), false, &mut findings);
        findings.into_iter().map(|finding: Finding| format!("{} {}", finding.place, finding.problem)).collect()
    }

    #[test]
    fn each_rule_finds_its_breach_and_its_place() {
        let lib = "crates/outbox-core/src/lib.rs";
        let cases = [
            ("fn a() {}", vec!["1 no module documentation"]),
            ("//! D.\nlet s = \"SELECT 1\";", vec!["2 SQL in Rust"]),
            ("//! D.\nlet s = \"UPDATE t SET a = 1\";", vec!["2 SQL in Rust"]),
            ("//! D.\n// SELECT 1\nlet update = 1;", vec![]),
            ("//! D.\nlet a = std::env::var(\"A\");", vec!["2 touches the environment or files"]),
            ("//! D.\na.unwrap();", vec!["2 may panic, unexplained"]),
            ("//! D.\n// tidy: a message\nlet s = \"SELECT 1\";", vec![]),
            ("//! D.\n// Checked above.\na.unwrap();", vec![]),
            (concat!("//! D.\n#[cfg(test)]\nmod tests {\na.unwrap();\nsle", "ep(b);\n}"), vec!["5 a test that sleeps"]),
        ];
        for (text, expected) in cases {
            let expected: Vec<String> = expected.iter().map(|end| format!("{lib}:{end}")).collect();
            assert_eq!(rust(lib, text), expected, "{text}");
        }
        assert_eq!(rust("crates/outbox-relay/src/cli/mod.rs", "//! D.\nstd::fs::read(p)?;"), Vec::<String>::new());
        assert_eq!(rust("xtask/src/utils.rs", "//! D.\n"), ["xtask/src/utils.rs a module name that says nothing"]);
        assert_eq!(rust("a.rs", &"//! D.\n".repeat(441)), ["a.rs 441 lines, at most 440"]);
    }

    #[test]
    fn a_statement_needs_its_header() {
        let mut findings = Vec::new();
        check_sql("a.sql", "-- Called by: x. Index: none. Locks: none.\nSELECT 1", &mut findings);
        assert_eq!(findings, []);
        check_sql("a.sql", "SELECT 1 -- Called by: x", &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let mut findings = Vec::new();
        check_any("a.md", &format!("see\n{}{}x", "/wo", "rk/"), &mut findings);
        assert_eq!(findings[0].place, "a.md:2");
    }
}
