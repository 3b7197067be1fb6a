//! From the answer to a batch to one outcome for each of its entries. Pure.
//!
//! SQS answers a batch with success when each of its entries may have failed: only an id in the list of the successful
//! ones is a success. An id in no list, or in both, is unconfirmed; an id that was not sent speaks for nobody.

use aws_sdk_sqs::operation::send_message_batch::SendMessageBatchOutput;
use outbox_core::{ErrorKind, Outcome, PublishError, Receipt};

use crate::error::{Fault, Stage, classify, said};

/// The id of an entry within its batch.
pub(crate) fn entry_id(index: usize) -> String {
    index.to_string()
}

/// One outcome for each of the `count` entries that were sent.
pub(crate) fn outcomes(count: usize, answer: &SendMessageBatchOutput) -> Vec<Outcome> {
    let outcome = |index: usize| {
        let id = entry_id(index);
        let taken = answer.successful().iter().any(|entry| entry.id() == id);
        let refusal = answer.failed().iter().find(|entry| entry.id() == id);
        match (taken, refusal) {
            (true, None) => Ok(Receipt::confirmed()),
            (true, Some(_)) => Err(unconfirmed("sqs names it among the successful and among the failed")),
            (false, None) => Err(unconfirmed("sqs names it neither among the successful nor among the failed")),
            (false, Some(entry)) => {
                let (code, message) = (entry.code(), entry.message().unwrap_or_default());
                let verdict =
                    classify(Fault::Entry { sender_fault: entry.sender_fault(), code, message }, Stage::Sending);
                Err(PublishError::new(verdict.kind, format!("sqs refused the event with {}", said(code, message))))
            }
        }
    };
    (0..count).map(outcome).collect()
}

fn unconfirmed(detail: &str) -> PublishError {
    PublishError::new(ErrorKind::Unconfirmed, detail)
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::types::{BatchResultErrorEntry, SendMessageBatchResultEntry};

    use super::*;

    fn taken(id: &str) -> SendMessageBatchResultEntry {
        let entry = SendMessageBatchResultEntry::builder().id(id).message_id("m").md5_of_message_body("0");
        entry.build().unwrap()
    }

    fn refused(id: &str, code: &str, sender_fault: bool) -> BatchResultErrorEntry {
        BatchResultErrorEntry::builder().id(id).code(code).sender_fault(sender_fault).message("why").build().unwrap()
    }

    /// Field report B53.
    #[test]
    fn only_an_id_among_the_successful_is_a_success() {
        let mut answer = SendMessageBatchOutput::builder();
        for id in ["0", "1", "4", "5", "7", "99", ""] {
            answer = answer.successful(taken(id));
        }
        let answer = answer
            .failed(refused("2", "InvalidMessageContents", true))
            .failed(refused("3", "InternalError", false))
            .failed(refused("7", "InternalError", false))
            .failed(refused("8", "Strange", true))
            .failed(refused("-1", "InternalError", false))
            .build()
            .unwrap();
        let found = outcomes(9, &answer);
        let kinds: Vec<_> = found.iter().map(|outcome| outcome.as_ref().map_err(PublishError::kind).copied()).collect();
        let ok = Ok(Receipt::confirmed());
        let expected = [
            ok,
            ok,
            Err(ErrorKind::Rejected),
            Err(ErrorKind::Throttled),
            ok,
            ok,
            Err(ErrorKind::Unconfirmed), // in no list
            Err(ErrorKind::Unconfirmed), // in both
            Err(ErrorKind::Failed),
        ];
        assert_eq!(kinds, expected);
        let reason = found[2].as_ref().unwrap_err().report();
        assert_eq!(reason, "sqs refused the event with InvalidMessageContents: why");
    }

    #[test]
    fn an_empty_answer_confirms_nothing() {
        let answer = SendMessageBatchOutput::builder().set_successful(Some(vec![])).set_failed(Some(vec![]));
        assert!(outcomes(3, &answer.build().unwrap()).iter().all(Result::is_err));
    }
}
