//! Migrations: the link, the pairs, and released files that never change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::Finding;
use crate::Outcome;
use crate::cargo::{output, root};

const LINK: &str = "crates/outbox-pg/migrations";
const FROZEN: &str = "migrations/FROZEN";

pub(super) fn check(findings: &mut Vec<Finding>) -> Outcome {
    let target = fs::read_link(root().join(LINK)).ok();
    if target.as_deref() != Some(Path::new("../../migrations")) {
        let remedy = "restore it with `ln -s ../../migrations crates/outbox-pg/migrations`";
        findings.push(Finding::new(LINK, "is not a link to ../../migrations", remedy));
    }
    let mut sums = BTreeMap::new();
    for name in names()? {
        let path = format!("migrations/{name}");
        if let Some(stem) = name.strip_suffix(".up.sql")
            && !root().join(format!("migrations/{stem}.down.sql")).is_file()
        {
            findings.push(Finding::new(&path, "can't be undone", "write the .down.sql beside it"));
        }
        if name.ends_with(".sql") {
            let sum = output(Command::new("sha256sum").arg(root().join(&path)))?;
            sums.insert(name, sum.split_whitespace().next().unwrap_or_default().to_owned());
        }
    }
    match fs::read_to_string(root().join(FROZEN)) {
        Ok(frozen) => findings.extend(changed(&frozen, &sums)),
        Err(error) => findings.push(Finding::new(
            FROZEN,
            format!("can't be read ({error})"),
            "restore it: it lists the sha256 and name of each released migration",
        )),
    }
    Ok(())
}

fn names() -> Outcome<Vec<String>> {
    let entries =
        fs::read_dir(root().join("migrations")).map_err(|error| format!("can't read migrations/: {error}"))?;
    let mut names: Vec<String> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect();
    names.sort();
    Ok(names)
}

/// The released files that are not what was released. Lines are `<sha256>  <name>`; `#` starts a comment.
fn changed(frozen: &str, sums: &BTreeMap<String, String>) -> Vec<Finding> {
    const REMEDY: &str = "databases have run it as it was: restore the file and write a new migration";
    let mut findings = Vec::new();
    for (number, line) in frozen.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let place = format!("{FROZEN}:{}", number + 1);
        match line.split_once(char::is_whitespace) {
            Some((sum, name)) if sums.get(name.trim()).is_some_and(|found| found == sum) => {}
            Some((_, name)) => {
                findings.push(Finding::new(place, format!("`{}` has changed since its release", name.trim()), REMEDY));
            }
            None => findings.push(Finding::new(place, "is not `<sha256>  <name>`", "write it as sha256sum prints it")),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn a_changed_or_missing_released_file_is_found() {
        let sums = [("a.sql".to_owned(), "11".to_owned())].into();
        assert_eq!(changed("# none yet\n\n11  a.sql\n", &sums), []);
        assert_eq!(changed("12  a.sql\n", &sums).len(), 1);
        assert_eq!(changed("11  gone.sql\n", &sums).len(), 1);
        assert_eq!(changed("nonsense\n", &sums)[0].place, "migrations/FROZEN:1");
    }
}
