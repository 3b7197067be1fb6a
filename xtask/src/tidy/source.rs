//! One Rust file as the rules see it: which lines are test code, which are comments.

/// A Rust source file.
pub(super) struct Source<'a> {
    /// Below the workspace's root, with `/`.
    pub(super) path: &'a str,
    lines: Vec<&'a str>,
    /// The first line (from 0) of the tests at the file's end.
    tests_from: usize,
}

/// One line that is not a comment.
pub(super) struct Line<'a> {
    /// From 1.
    pub(super) number: usize,
    pub(super) text: &'a str,
    pub(super) in_tests: bool,
    /// Whether this line or the one before carries a comment that may explain it.
    pub(super) explained: bool,
    /// Whether a comment `// tidy: <reason>` on this line or a few before lifts the rules.
    pub(super) lifted: bool,
}

/// How many lines after a `// tidy: <reason>` it still counts: the length of one statement.
const LIFTED_LINES: usize = 6;

impl<'a> Source<'a> {
    /// `is_test`: whether all of the file is test code.
    pub(super) fn new(path: &'a str, text: &'a str, is_test: bool) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let tests_from = if is_test {
            0
        } else {
            let module =
                |at: usize| lines[at + 1..].iter().map(|line| line.trim()).find(|line| !line.starts_with("#["));
            let opens = |at: usize| module(at).is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'));
            (0..lines.len()).find(|at| lines[*at] == "#[cfg(test)]" && opens(*at)).unwrap_or(lines.len())
        };
        Self { path, lines, tests_from }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether the file starts with the documentation of its module.
    pub(super) fn is_documented(&self) -> bool {
        self.lines
            .iter()
            .map(|line| line.trim())
            .find(|line| !line.is_empty())
            .is_some_and(|line| line.starts_with("//!") || line.starts_with("#![doc = include_str!("))
    }

    /// The lines that hold code.
    pub(super) fn code(&self) -> impl Iterator<Item = Line<'a>> {
        self.lines.iter().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(at, text)| {
            let before = at.checked_sub(1).map_or("", |before| self.lines[before]).trim_start();
            let explained = text.contains("// ") || (before.starts_with("// ") || before.contains(" // "));
            let lifted = self.lines[at.saturating_sub(LIFTED_LINES)..=at].iter().any(|line| line.contains("// tidy: "));
            Line { number: at + 1, text, in_tests: at >= self.tests_from, explained, lifted }
        })
    }

    /// All lines with their numbers, comments too.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &'a str)> {
        self.lines.iter().enumerate().map(|(at, line)| (at + 1, *line))
    }
}

/// Whether a path says that all of its file is test code.
pub(super) fn is_test_path(path: &str) -> bool {
    let stem = path.rsplit('/').next().unwrap_or(path);
    path.starts_with("tests/") || path.contains("/tests/") || path.contains("/benches/") || stem.contains("_tests")
}

/// The files that a file declares as modules for tests: `#[cfg(test)] mod name;`, with or without a path.
pub(super) fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let inner = match file.trim_end_matches(".rs") {
        "mod" | "lib" | "main" => folder.to_owned(),
        stem => format!("{folder}/{stem}"),
    };
    let (mut found, mut in_test, mut at_path) = (Vec::new(), false, None);
    for line in text.lines().map(str::trim) {
        if line == "#[cfg(test)]" {
            in_test = true;
        } else if let Some(rest) = line.strip_prefix("#[path = \"") {
            at_path = rest.split('"').next();
        } else if !line.starts_with("#[") {
            if let Some(name) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")).filter(|_| in_test) {
                match at_path {
                    Some(relative) => found.push(format!("{folder}/{relative}")),
                    None => found.extend([format!("{inner}/{}.rs", name.1), format!("{inner}/{}/mod.rs", name.1)]),
                }
            }
            (in_test, at_path) = (false, None);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Source, is_test_path, test_modules};

    #[test]
    fn tests_at_the_end_are_told_from_code() {
        let text = "//! Doc.\n#[cfg(test)]\nmod other;\nlet a = 1;\n\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n}\n";
        let source = Source::new("crates/a/src/lib.rs", text, false);
        assert!(source.is_documented());
        let tests: Vec<usize> = source.code().filter(|line| line.in_tests).map(|line| line.number).collect();
        assert_eq!(tests, [6, 7, 8, 9]);
        assert!(Source::new("crates/a/tests/b.rs", "x", true).code().all(|line| line.in_tests));
        assert!(is_test_path("crates/a/tests/b.rs") && is_test_path("crates/a/src/b_tests.rs"));
        assert!(!is_test_path("crates/a/src/tests_of_b.rs"));
        assert!(Source::new("crates/a/src/lib.rs", "#![doc = include_str!(\"docs.md\")]\n", false).is_documented());
    }

    #[test]
    fn declared_test_files_are_found() {
        let text = "#[cfg(test)]\nmod a;\nmod b;\n#[cfg(test)]\n#[path = \"c_tests.rs\"]\nmod tests;\n";
        assert_eq!(test_modules("x/src/lib.rs", text), ["x/src/a.rs", "x/src/a/mod.rs", "x/src/c_tests.rs"]);
        assert_eq!(test_modules("x/src/y.rs", "#[cfg(test)]\nmod a;")[0], "x/src/y/a.rs");
    }

    #[test]
    fn a_reason_lifts_the_rules_for_a_statement() {
        let text = format!("// tidy: why\n{}", "a();\n".repeat(8));
        let source = Source::new("a.rs", &text, false);
        assert_eq!(source.code().filter(|line| line.lifted).map(|line| line.number).max(), Some(7));
    }

    #[test]
    fn a_comment_on_the_line_or_before_explains() {
        let source = Source::new("a.rs", "// Why.\na();\nb(); // why\nc();\nd();\n/// Doc.\ne();\n", false);
        let explained: Vec<usize> = source.code().filter(|line| line.explained).map(|line| line.number).collect();
        assert_eq!(explained, [2, 3, 4]);
    }
}
