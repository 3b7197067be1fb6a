//! How much may be at the publisher at once, and of which buckets. Pure.

use outbox_core::Buckets;

/// Counts events from the moment they are handed to the publisher until their deletion has committed, so that a
/// database outage with a live broker stops here, and so that copies after a crash are bounded.
#[derive(Debug)]
pub(super) struct Window {
    max_events: usize,
    max_bytes: usize,
    /// The part of `max_events` that the destination bears now: halved when it throttles, regained by confirms.
    allowed: usize,
    events: usize,
    bytes: usize,
    /// Events of each bucket: while there are any, it can't be given back.
    of_buckets: [usize; Buckets::COUNT],
}

impl Window {
    pub(super) fn new(max_events: usize, max_bytes: usize) -> Self {
        Self { max_events, max_bytes, allowed: max_events, events: 0, bytes: 0, of_buckets: [0; Buckets::COUNT] }
    }

    /// Events and bytes that may be handed over now. One event always fits into an empty window.
    pub(super) fn room(&self) -> (usize, usize) {
        if self.events == 0 {
            return (self.allowed, self.max_bytes.max(1));
        }
        (self.allowed.saturating_sub(self.events), self.max_bytes.saturating_sub(self.bytes))
    }

    pub(super) fn events(&self) -> usize {
        self.events
    }

    /// Events of this bucket in the window.
    pub(super) fn holds(&self, bucket: u16) -> usize {
        self.of_buckets.get(usize::from(bucket)).copied().unwrap_or(0)
    }

    pub(super) fn enter(&mut self, bucket: u16, bytes: usize) {
        self.events += 1;
        self.bytes += bytes;
        if let Some(events) = self.of_buckets.get_mut(usize::from(bucket)) {
            *events += 1;
        }
    }

    pub(super) fn leave(&mut self, bucket: u16, bytes: usize) {
        self.events = self.events.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(events) = self.of_buckets.get_mut(usize::from(bucket)) {
            *events = events.saturating_sub(1);
        }
    }

    pub(super) fn throttled(&mut self) {
        self.allowed = (self.allowed / 2).max(1);
    }

    pub(super) fn confirmed(&mut self) {
        self.allowed = (self.allowed + 1).min(self.max_events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_event_always_fits_into_an_empty_window() {
        let mut window = Window::new(10, 100);
        assert_eq!(window.room(), (10, 100));
        window.enter(0, 5_000);
        assert_eq!(window.room(), (9, 0));
        window.leave(0, 5_000);
        assert_eq!(window.room(), (10, 100));
    }

    #[test]
    fn throttling_halves_and_confirms_regain() {
        let mut window = Window::new(8, 100);
        window.throttled();
        assert_eq!(window.room().0, 4);
        for _ in 0..5 {
            window.throttled();
        }
        assert_eq!(window.room().0, 1, "never zero: otherwise nothing could ever be confirmed");
        for _ in 0..20 {
            window.confirmed();
        }
        assert_eq!(window.room().0, 8);
    }

    proptest! {
        #[test]
        fn never_more_than_the_limits(steps in proptest::collection::vec((0_u8..4, 1_usize..50), 0..200)) {
            let mut window = Window::new(5, 100);
            let mut inside: Vec<usize> = Vec::new();
            for (step, bytes) in steps {
                match step {
                    0 if window.room().0 > 0 && (inside.is_empty() || window.room().1 >= bytes) => {
                        window.enter(7, bytes);
                        inside.push(bytes);
                    }
                    1 => if let Some(bytes) = inside.pop() { window.leave(7, bytes) },
                    2 => window.throttled(),
                    _ => window.confirmed(),
                }
                prop_assert!(inside.len() <= 5);
                prop_assert!(inside.len() <= 1 || inside.iter().sum::<usize>() <= 100);
                prop_assert_eq!(window.events(), inside.len());
                prop_assert_eq!((window.holds(7), window.holds(8)), (inside.len(), 0));
            }
        }
    }
}
