//! Whether ids still mean what they meant at the last read. Pure.

/// What a note tells about the server and the sequence behind the ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// When the server was started.
    pub(crate) started: String,
    /// Its own processes. All are new after a crash of one session, which restarts the server in place: sessions are
    /// gone then, virtual transactions are numbered anew, and ids whose transactions never committed may come again.
    /// Empty when they are not shown, which says nothing.
    pub(crate) processes: Vec<i32>,
    /// The file of the sequence: TRUNCATE … RESTART IDENTITY and ALTER SEQUENCE … RESTART make a new one.
    pub(crate) sequence_file: i64,
    /// The sequence's value.
    pub(crate) value: i64,
}

impl Identity {
    /// Why what is known about ids holds no longer, seen from a later note; `None` when it does.
    pub(crate) fn broken_by(&self, later: &Self) -> Option<String> {
        if self.started != later.started {
            return Some("the database server was restarted or replaced".to_owned());
        }
        let told = !self.processes.is_empty() && !later.processes.is_empty();
        if told && !self.processes.iter().any(|pid| later.processes.contains(pid)) {
            return Some("the database server has restarted itself after a crash of one of its processes".to_owned());
        }
        if self.sequence_file != later.sequence_file || later.value < self.value {
            let (before, after) = (self.value, later.value);
            return Some(format!("the ids of events were reset: the sequence went from {before} to {after}"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_breaks_ids_is_reported() {
        let before = Identity { started: "1".into(), processes: vec![10, 11, 12], sequence_file: 7, value: 100 };
        let check = |later: Identity, expected: Option<&str>| {
            let found = before.broken_by(&later);
            assert_eq!(found.is_some(), expected.is_some(), "{later:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(before.clone(), None);
        check(Identity { value: 101, ..before.clone() }, None);
        check(Identity { processes: vec![11, 12, 40], ..before.clone() }, None);
        check(Identity { processes: vec![], ..before.clone() }, None);
        check(Identity { value: 99, ..before.clone() }, Some("from 100 to 99"));
        check(Identity { sequence_file: 8, value: 500, ..before.clone() }, Some("reset"));
        check(Identity { started: "2".into(), ..before.clone() }, Some("restarted or replaced"));
        check(Identity { processes: vec![20, 21, 22], value: 500, ..before.clone() }, Some("after a crash"));
        let untold = Identity { processes: vec![], ..before.clone() };
        assert_eq!(untold.broken_by(&before), None);
    }
}
