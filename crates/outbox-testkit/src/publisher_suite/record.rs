//! What came out of a check, noted for the table in `docs/brokers/conformance.md`.

use std::cell::RefCell;

use outbox_services::note_check;

/// What a check could not look at.
#[derive(Debug)]
enum Remark {
    /// Nothing of it.
    All(String),
    /// Not this part; the rest was checked.
    Part(String),
}

tokio::task_local! {
    static REMARKS: RefCell<Vec<Remark>>;
}

/// Runs a check and notes its result; for the tests that [`publisher_suite!`](crate::publisher_suite!) makes. The
/// variant is the last part of `module`. A check that fails panics, and nothing is noted.
#[doc(hidden)]
pub async fn recorded(package: &str, module: &str, check: &str, run: impl Future<Output = ()>) {
    let checked = async {
        Box::pin(run).await;
        REMARKS.with(RefCell::take)
    };
    let remarks = REMARKS.scope(RefCell::default(), checked).await;
    let variant = module.rsplit("::").next().unwrap_or(module);
    let (result, texts) = summary(remarks);
    note_check(package, variant, check, result, &texts);
}

fn summary(remarks: Vec<Remark>) -> (&'static str, Vec<String>) {
    let result = if remarks.iter().any(|remark| matches!(remark, Remark::All(_))) { "not claimed" } else { "passed" };
    let text = |remark| match remark {
        Remark::All(text) | Remark::Part(text) => text,
    };
    (result, remarks.into_iter().map(text).collect())
}

/// A check has nothing to check here.
pub(super) fn not_claimed(what: &str) {
    remark(what, Remark::All);
}

/// A check can't look at a part of what it is about; the rest of it counts.
pub(super) fn partly_not_claimed(what: &str) {
    remark(what, Remark::Part);
}

fn remark(what: &str, kind: fn(String) -> Remark) {
    println!("not claimed: {what}");
    // Whoever calls a check as a function, outside of the macro's tests, has no table: the print is for them.
    let _ = REMARKS.try_with(|remarks| remarks.borrow_mut().push(kind(what.to_owned())));
}

#[cfg(test)]
mod tests {
    use super::{Remark, summary};

    #[test]
    fn a_check_that_looked_at_something_has_passed() {
        let all = |text: &str| Remark::All(text.to_owned());
        let part = |text: &str| Remark::Part(text.to_owned());
        assert_eq!(summary(vec![]), ("passed", vec![]));
        assert_eq!(summary(vec![part("a")]), ("passed", vec!["a".to_owned()]));
        assert_eq!(summary(vec![all("b")]), ("not claimed", vec!["b".to_owned()]));
    }
}
