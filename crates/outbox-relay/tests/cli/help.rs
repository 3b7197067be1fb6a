//! The help teaches: every command has a sentence and those with arguments an example.

use crate::binary::relay;

#[test]
fn every_command_helps() {
    let directory = tempfile::tempdir().unwrap();
    let check = |args: &[&str], parts: &[&str]| {
        let done = relay(directory.path(), args, &[], "");
        assert_eq!(done.code, Some(0), "{done:?}");
        for part in parts {
            assert!(done.stdout.contains(part), "{args:?} lacks {part:?}:\n{}", done.stdout);
        }
    };
    check(&["--help"], &["run", "migrate", "check", "status", "enqueue", "Examples:", "Exit codes: 0 done"]);
    check(&["run", "--help"], &["SIGTERM", "/readyz", "Example:"]);
    check(&["migrate", "--help"], &["up", "status", "sql"]);
    check(&["migrate", "sql", "--help"], &["--roles", "psql"]);
    check(&["check", "--help"], &["--connect", "--show", "Examples:"]);
    check(&["status", "--help"], &["--output", "Example:"]);
    check(&["blocked", "--help"], &["list", "retry", "skip", "Examples:"]);
    check(&["blocked", "list", "--help"], &["--after", "--aggregate-id", "Examples:"]);
    check(&["blocked", "retry", "--help"], &["--all", "--dry-run", "Example:"]);
    check(&["blocked", "skip", "--help"], &["--event-id", "--reason", "Example:"]);
    check(&["enqueue", "--help"], &["--aggregate-id", "payload_base64", "Examples:"]);
    check(&["--version"], &[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn commands_of_later_versions_are_not_offered() {
    let directory = tempfile::tempdir().unwrap();
    let help = relay(directory.path(), &["--help"], &[], "").stdout;
    for name in ["dead-letters", "scheduled", "replay", "purge"] {
        assert!(!help.contains(name), "{name}");
        assert_eq!(relay(directory.path(), &[name], &[], "").code, Some(2));
    }
}
