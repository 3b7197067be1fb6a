//! The table of the publishers' conformance suite: what each check found for each broker and variant, as the tests noted
//! it in the ledger. `docs/brokers/conformance.md` keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use outbox_services::CHECK;

use crate::Outcome;
use crate::cargo::root;

/// The page, below the workspace's root.
const PAGE: &str = "docs/brokers/conformance.md";

/// Set to write the page instead of comparing with it.
const UPDATE_VARIABLE: &str = "UPDATE_DOCS";

/// Its harnesses judge the suite itself, with publishers in memory: no broker.
const SUITES_OWN: &str = "outbox-testkit";

const TITLE: &str = "# Conformance

Every publisher against its real broker, in each variant, through the checks of `outbox_testkit::publisher_suite`.
`cargo xtask test` prints this table from what its tests noted and fails where this page differs; `UPDATE_DOCS=1 cargo
xtask test` writes it anew.

";

/// One check of one variant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Line<'a> {
    check: &'a str,
    column: String,
    passed: bool,
    remarks: &'a str,
}

/// Prints what ran. After a full run the page must be the same.
pub(crate) fn judge(ledger: &str, all_ran: bool) -> Outcome {
    let table = table(&lines(ledger)?);
    print!("{table}");
    if !all_ran {
        return Ok(());
    }
    let (path, page) = (root().join(PAGE), format!("{TITLE}{table}"));
    if std::env::var_os(UPDATE_VARIABLE).is_some() {
        return fs::write(&path, page).map_err(|error| format!("can't write {PAGE}: {error}"));
    }
    match fs::read_to_string(&path) {
        Ok(written) if written == page => Ok(()),
        Ok(_) => Err(format!(
            "{PAGE} differs from what the tests noted: a check or a variant is new, gone or judged otherwise ({UPDATE_VARIABLE}=1 writes it anew)"
        )),
        Err(error) => Err(format!("can't read {PAGE} ({UPDATE_VARIABLE}=1 writes it): {error}")),
    }
}

fn lines(ledger: &str) -> Outcome<BTreeSet<Line<'_>>> {
    let mut lines = BTreeSet::new();
    for text in ledger.lines() {
        let fields: Vec<&str> = text.split('\t').collect();
        match fields[..] {
            [CHECK, SUITES_OWN, ..] => {}
            [CHECK, package, variant, check, result, remarks] => {
                let broker = package.strip_prefix("outbox-").unwrap_or(package);
                // The relay's own publisher has no broker.
                let column = if broker == "relay" { variant.to_owned() } else { format!("{broker} {variant}") };
                let column = column.replace('_', " ");
                lines.insert(Line { check, column, passed: result == "passed", remarks });
            }
            [CHECK, ..] => return Err(format!("the ledger has a line that can't be read: {text}")),
            _ => {}
        }
    }
    Ok(lines)
}

/// A table in Markdown, with its notes.
fn table(lines: &BTreeSet<Line<'_>>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let columns: BTreeSet<&str> = lines.iter().map(|line| line.column.as_str()).collect();
    let mut notes: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for line in lines {
        let mut cell = if line.passed { "yes" } else { "-" }.to_owned();
        if !line.remarks.is_empty() {
            let at = notes.iter().position(|note| *note == line.remarks).unwrap_or_else(|| {
                notes.push(line.remarks);
                notes.len() - 1
            });
            cell.push_str(&format!(" ({})", at + 1));
        }
        rows.entry(line.check).or_default().insert(&line.column, cell);
    }
    let cells = rows.iter().map(|(check, row)| {
        // An empty cell: that check did not run there.
        let cells = columns.iter().map(|column| row.get(column).map_or("", String::as_str));
        std::iter::once(*check).chain(cells).collect::<Vec<_>>()
    });
    let head = std::iter::once("check").chain(columns.iter().copied()).collect();
    let mut text = aligned(&std::iter::once(head).chain(cells).collect::<Vec<_>>());
    text.push_str("\n`yes`: passed. `-`: not claimed, so there was nothing to check.\n\n");
    for (at, note) in notes.iter().enumerate() {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{}. Not claimed: {note}.", at + 1);
    }
    text
}

fn aligned(rows: &[Vec<&str>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if at == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{lines, table};

    #[test]
    fn each_result_has_its_place_and_each_reason_its_note() {
        let ledger = "pg\tused\tsome::test\n\
            check\toutbox-sqs\tfifo\tb\tpassed\t\n\
            check\toutbox-sqs\tstandard\tb\tpassed\tfaults; a part\n\
            check\toutbox-relay\tstdout\tb\tnot claimed\tfaults\n\
            check\toutbox-relay\tstdout\ta\tnot claimed\tfaults\n\
            check\toutbox-nats\tnew_server\ta\tpassed\t\n\
            check\toutbox-testkit\tcapable\ta\tpassed\t\n";
        let expected = "\
| check | nats new server | sqs fifo | sqs standard | stdout |
|-------|-----------------|----------|--------------|--------|
| a     | yes             |          |              | - (1)  |
| b     |                 | yes      | yes (2)      | - (1)  |

`yes`: passed. `-`: not claimed, so there was nothing to check.

1. Not claimed: faults.
2. Not claimed: faults; a part.
";
        assert_eq!(table(&lines(ledger).unwrap()), expected);
    }

    #[test]
    fn a_line_that_is_cut_short_is_told() {
        assert!(lines("check\toutbox-sqs\tfifo\tb\n").is_err());
        assert_eq!(table(&lines("pg\tused\ta\n").unwrap()), "");
    }
}
