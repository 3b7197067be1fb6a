//! What waits for an answer: one entry for each message in flight, found again by the token in its reply subject.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::answer::{self, Answer};

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// JetStream's answer to an event.
    Event(Answer),
    /// Whatever came to a question.
    Question { status: Option<u16>, payload: Bytes },
    /// The server does not let us publish on this subject; its words.
    PublishDenied(String),
    /// The server does not let us receive answers; its words.
    AnswersDenied(String),
}

/// What an entry takes for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// An answer of JetStream; anything else is passed over.
    Confirm,
    /// Any message.
    Anything,
}

#[derive(Debug)]
struct Entry {
    subject: String,
    awaits: Awaits,
    reply: oneshot::Sender<Reply>,
}

/// The entries of one session. Bounded by `max_in_flight`, and an entry goes with whoever waits for it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_token: u64,
    entries: HashMap<u64, Entry>,
}

/// A wait for one answer; dropping it forgets the entry.
#[derive(Debug)]
pub(crate) struct Wait {
    waiting: Arc<Waiting>,
    token: u64,
    answer: oneshot::Receiver<Reply>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait, before anything is sent.
    pub(crate) fn begin(self: &Arc<Self>, subject: &str, awaits: Awaits) -> Wait {
        let (reply, answer) = oneshot::channel();
        let mut state = self.lock();
        let token = state.next_token;
        state.next_token += 1;
        state.entries.insert(token, Entry { subject: subject.to_owned(), awaits, reply });
        Wait { waiting: Arc::clone(self), token, answer }
    }

    /// A message came to a token. Late ones, and ones that are no answer, are passed over.
    pub(crate) fn answer(&self, token: u64, status: Option<u16>, payload: Bytes) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get(&token) else { return };
        let reply = match entry.awaits {
            Awaits::Anything => Reply::Question { status, payload },
            Awaits::Confirm => match answer::read(status, &payload) {
                Some(answer) => Reply::Event(answer),
                None => return,
            },
        };
        Self::resolve(&mut state, token, reply);
    }

    /// The server refuses what is published on this subject. It does not say which message it means, so all that wait
    /// there are told: none of them can have been taken since.
    pub(crate) fn deny(&self, subject: &str, words: &str) {
        let mut state = self.lock();
        let on_subject = |(token, entry): (&u64, &Entry)| (entry.subject == subject).then_some(*token);
        let tokens: Vec<u64> = state.entries.iter().filter_map(on_subject).collect();
        for token in tokens {
            Self::resolve(&mut state, token, Reply::PublishDenied(words.to_owned()));
        }
    }

    /// The server refuses to deliver answers.
    pub(crate) fn deny_answers(&self, words: &str) {
        let mut state = self.lock();
        let tokens: Vec<u64> = state.entries.keys().copied().collect();
        for token in tokens {
            Self::resolve(&mut state, token, Reply::AnswersDenied(words.to_owned()));
        }
    }

    /// The connection broke: no answer will come any more.
    pub(crate) fn lose_all(&self) {
        self.lock().entries.clear();
    }

    fn resolve(state: &mut State, token: u64, reply: Reply) {
        if let Some(entry) = state.entries.remove(&token) {
            // Whoever waited may have gone in this moment.
            let _ = entry.reply.send(reply);
        }
    }
}

impl Wait {
    /// Stands at the end of the reply subject.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// The answer; `None` when the connection broke before it came.
    pub(crate) async fn reply(&mut self) -> Option<Reply> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waiting.lock().entries.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(waiting: &Waiting) -> usize {
        waiting.lock().entries.len()
    }

    #[tokio::test]
    async fn an_answer_finds_its_message_and_nothing_else_counts() {
        let waiting = Arc::new(Waiting::default());
        let mut first = waiting.begin("a", Awaits::Confirm);
        let mut second = waiting.begin("a", Awaits::Confirm);
        let mut question = waiting.begin("b", Awaits::Anything);
        waiting.answer(second.token(), None, Bytes::from_static(b"hello from an ordinary subscriber"));
        waiting.answer(second.token(), None, Bytes::from_static(br#"{"stream":"S","seq":1}"#));
        waiting.answer(first.token(), Some(503), Bytes::new());
        waiting.answer(question.token(), None, Bytes::from_static(b"?"));
        waiting.answer(77, None, Bytes::new());
        assert_eq!(first.reply().await, Some(Reply::Event(Answer::NoStream)));
        assert_eq!(second.reply().await, Some(Reply::Event(Answer::Stored { duplicate: false })));
        let expected = Reply::Question { status: None, payload: Bytes::from_static(b"?") };
        assert_eq!(question.reply().await, Some(expected));
        assert_eq!(open(&waiting), 0);
    }

    #[tokio::test]
    async fn a_denial_meets_its_subject_and_a_loss_meets_all() {
        let waiting = Arc::new(Waiting::default());
        let mut denied = [waiting.begin("a", Awaits::Confirm), waiting.begin("a", Awaits::Confirm)];
        let mut other = waiting.begin("b", Awaits::Confirm);
        waiting.deny("a", "no");
        for wait in &mut denied {
            assert_eq!(wait.reply().await, Some(Reply::PublishDenied("no".to_owned())));
        }
        assert_eq!(open(&waiting), 1);
        waiting.lose_all();
        assert_eq!(other.reply().await, None);
        let mut last = waiting.begin("c", Awaits::Confirm);
        waiting.deny_answers("none");
        assert_eq!(last.reply().await, Some(Reply::AnswersDenied("none".to_owned())));
    }

    #[test]
    fn an_abandoned_wait_leaves_nothing_behind() {
        let waiting = Arc::new(Waiting::default());
        drop(waiting.begin("a", Awaits::Confirm));
        assert_eq!(open(&waiting), 0);
    }
}
