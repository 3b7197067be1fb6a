//! What waits for a channel: jobs of all calls in one queue, served by at most `channels` workers.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_core::Outcome;
use tokio::sync::{Notify, oneshot};

use crate::encode::Message;

/// Messages that one worker sends together. More would only make a full pipeline longer.
const MAX_GROUP_EVENTS: usize = 1000;
/// The same in bytes: the client library holds a copy until the socket has taken it. One larger message still goes
/// alone.
const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;

/// A part of one call's events.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ticket: u64,
    pub(crate) messages: Vec<Message>,
    pub(crate) reply: oneshot::Sender<Vec<Outcome>>,
}

/// The queue and the number of workers, under one lock: a job is never left without a worker.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    workers: usize,
    next_ticket: u64,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. `None` after [`Queue::close`]; otherwise its ticket and whether the caller must start a worker.
    pub(crate) fn push(
        &self,
        messages: Vec<Message>,
        reply: oneshot::Sender<Vec<Outcome>>,
        max_workers: usize,
    ) -> Option<(u64, bool)> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.jobs.push_back(Job { ticket, messages, reply });
        let start = state.workers < max_workers;
        state.workers += usize::from(start);
        Some((ticket, start))
    }

    /// Takes the next group; `None` ends the worker, which is already signed off.
    pub(crate) fn next_group(&self) -> Option<Vec<Job>> {
        let mut state = self.lock();
        let (mut group, mut events, mut bytes) = (Vec::new(), 0, 0);
        while let Some(job) = state.jobs.front() {
            let job_bytes: usize = job.messages.iter().map(|m| m.body.len() + m.header_frame_bytes).sum();
            let fits = events + job.messages.len() <= MAX_GROUP_EVENTS && bytes + job_bytes <= MAX_GROUP_BYTES;
            if !group.is_empty() && !fits {
                break;
            }
            // Nobody waits for it any more: the call was dropped before anything of it was sent.
            let Some(job) = state.jobs.pop_front().filter(|job| !job.reply.is_closed()) else { continue };
            events += job.messages.len();
            bytes += job_bytes;
            group.push(job);
        }
        if group.is_empty() {
            self.sign_off(&mut state);
            return None;
        }
        Some(group)
    }

    /// Takes a job back that no worker has begun; `false` when one has.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.lock();
        let before = state.jobs.len();
        state.jobs.retain(|job| job.ticket != ticket);
        state.jobs.len() < before
    }

    /// A worker ended in the middle, by a panic or with its runtime. What it left behind is answered by its absence.
    pub(crate) fn worker_lost(&self) {
        let mut state = self.lock();
        self.sign_off(&mut state);
        if state.workers == 0 {
            state.jobs.clear();
        }
    }

    fn sign_off(&self, state: &mut State) {
        state.workers -= 1;
        if state.workers == 0 {
            self.idle.notify_waiters();
        }
    }

    /// Takes no further jobs.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits until no worker is left.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.lock().workers == 0 {
                return;
            }
            idle.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lapin::BasicProperties;

    fn message(body_bytes: usize) -> Message {
        Message {
            routing_key: "k".into(),
            message_id: "i".into(),
            properties: BasicProperties::default(),
            body: Bytes::from(vec![0; body_bytes]),
            header_frame_bytes: 10,
        }
    }

    #[test]
    fn groups_are_cut_by_count_and_bytes_and_a_large_one_goes_alone() {
        let queue = Queue::default();
        let mut replies = Vec::new();
        let mut push = |messages: Vec<Message>| {
            let (reply, receiver) = oneshot::channel();
            replies.push(receiver);
            queue.push(messages, reply, 1).unwrap()
        };
        assert!(push(vec![message(1); 600]).1, "the first job starts the one worker");
        assert!(!push(vec![message(1); 400]).1);
        push(vec![message(1)]);
        push(vec![message(MAX_GROUP_BYTES + 1)]);
        push(vec![message(1)]);
        let sizes = |group: Vec<Job>| group.iter().map(|job| job.messages.len()).collect::<Vec<_>>();
        assert_eq!(sizes(queue.next_group().unwrap()), [600, 400]);
        assert_eq!(sizes(queue.next_group().unwrap()), [1]);
        assert_eq!(sizes(queue.next_group().unwrap()), [1]);
        assert_eq!(sizes(queue.next_group().unwrap()), [1]);
        assert!(queue.next_group().is_none());
        assert_eq!(queue.lock().workers, 0);
    }

    #[test]
    fn what_nobody_waits_for_is_not_sent_and_a_withdrawn_job_is_gone() {
        let queue = Queue::default();
        let (reply, dropped) = oneshot::channel();
        queue.push(vec![message(1)], reply, 1).unwrap();
        drop(dropped);
        let (reply, _kept) = oneshot::channel();
        let (ticket, _) = queue.push(vec![message(1)], reply, 1).unwrap();
        assert!(queue.withdraw(ticket));
        assert!(!queue.withdraw(ticket));
        assert!(queue.next_group().is_none());
        queue.close();
        let (reply, _kept) = oneshot::channel();
        assert!(queue.push(vec![message(1)], reply, 1).is_none());
    }
}
