//! Every interleaving of producers and relays around the doorbell, with the fallback off: nobody sleeps over an event.
//!
//! The relays here are [`Bell`] itself; what PostgreSQL does is modelled: the key's lock, commits that become visible,
//! notifications that are delivered to those who listen. Broken variants show that the search sees what it looks for.

use std::collections::HashSet;

use super::bell::{Bell, Cover, Key, Seen};

/// What a producer does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Producer {
    /// Inserts, and with it tries the key in shared mode.
    Insert,
    /// Commits: its event becomes visible; `ring` when it saw the key held.
    Commit {
        ring: bool,
    },
    /// Gives its share of the key back, if it had one, and notifies, if it must: both are after visibility.
    End {
        ring: bool,
    },
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Relay {
    bell: Bell,
    /// A notification waits in its session.
    rung: bool,
    /// The read that is under way began with these visible.
    snapshot: Option<u8>,
    /// Of giving back: the unlock is done and the notification is not yet.
    unlocked: bool,
    /// It could not have the key and waits for something to change, as the pause of the real one does.
    paused: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    producers: Vec<Producer>,
    relays: Vec<Relay>,
    /// A bit for each visible event, and for each that was read. Relays own buckets, so each event has one reader.
    visible: u8,
    taken: u8,
    key: Option<usize>,
}

/// A defect that the search must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    /// Sleeps on the key without another read.
    NoVerifying,
    /// Sleeps under another's key without another read.
    NoVerifyingWhenCovered,
    /// Notifies those it covers before it gives the key back.
    NotifiesFirst,
    /// Gives the key back without a word.
    SaysNothing,
    /// Producers give the key back before their event is visible.
    SharesTooShort,
    /// Forgets notifications after it has got the key.
    DrainsLate,
}

impl World {
    fn new(producers: usize, relays: usize) -> Self {
        let relay = Relay { bell: Bell::Awake, rung: false, snapshot: None, unlocked: false, paused: false };
        Self {
            producers: vec![Producer::Insert; producers],
            relays: vec![relay; relays],
            visible: 0,
            taken: 0,
            key: None,
        }
    }

    /// Producers that hold the key in shared mode.
    fn sharers(&self, defect: Defect) -> bool {
        let shares =
            |producer: &Producer| matches!(producer, Producer::Commit { ring: false } | Producer::End { ring: false });
        defect != Defect::SharesTooShort && self.producers.iter().any(shares)
    }

    fn ring(&mut self) {
        for relay in &mut self.relays {
            relay.rung = true;
        }
    }

    /// Something that a paused relay waits for may have changed.
    fn stir(&mut self) {
        for relay in &mut self.relays {
            relay.paused = false;
        }
    }

    /// Every world that one step of one party leads to.
    fn steps(&self, defect: Defect) -> Vec<Self> {
        let mut next = Vec::new();
        for place in 0..self.producers.len() {
            let mut world = self.clone();
            if world.producer(place) {
                world.stir();
                next.push(world);
            }
        }
        for place in 0..self.relays.len() {
            next.extend(self.relay(place, defect));
        }
        next
    }

    fn producer(&mut self, place: usize) -> bool {
        self.producers[place] = match self.producers[place] {
            Producer::Insert => Producer::Commit { ring: self.key.is_some() },
            Producer::Commit { ring } => {
                self.visible |= 1 << place;
                Producer::End { ring }
            }
            Producer::End { ring } => {
                if ring {
                    self.ring();
                }
                Producer::Done
            }
            Producer::Done => return false,
        };
        true
    }

    fn relay(&self, place: usize, defect: Defect) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        let relay = self.relays[place];
        let own = (0..self.producers.len()).filter(|event| event % self.relays.len() == place);
        let own = own.fold(0_u8, |bits, event| bits | 1 << event);
        // A read: its snapshot first, then what it finds among the events of its own buckets.
        if let Some(snapshot) = relay.snapshot {
            step(&|world| {
                let found = snapshot & !world.taken & own;
                world.taken |= found;
                let relay = &mut world.relays[place];
                relay.snapshot = None;
                relay.bell = relay.bell.after(if found == 0 { Seen::Nothing } else { Seen::Work });
                world.stir();
            });
            return next;
        }
        match relay.bell {
            Bell::Awake if relay.paused => {}
            Bell::Awake | Bell::Verifying(_) => {
                if relay.rung && relay.bell != Bell::Awake {
                    step(&|world| world.hear(place));
                }
                step(&|world| world.relays[place].snapshot = Some(world.visible));
            }
            Bell::Asking => step(&|world| {
                let answer = match world.key {
                    Some(_) => Key::Held,
                    None if world.sharers(defect) => Key::Busy,
                    None => Key::Got,
                };
                if answer == Key::Got {
                    world.key = Some(place);
                }
                let relay = &mut world.relays[place];
                relay.rung = false;
                relay.bell = relay.bell.after(Seen::Answer(answer));
                let skips = match relay.bell {
                    Bell::Verifying(Cover::Own) => defect == Defect::NoVerifying,
                    Bell::Verifying(Cover::Other) => defect == Defect::NoVerifyingWhenCovered,
                    _ => false,
                };
                if skips {
                    relay.bell = relay.bell.after(Seen::Nothing);
                }
                if answer == Key::Busy {
                    relay.paused = true;
                }
            }),
            Bell::Asleep(_) => {
                if relay.rung && defect == Defect::DrainsLate && relay.bell == Bell::Asleep(Cover::Own) {
                    step(&|world| world.relays[place].rung = false);
                } else if relay.rung {
                    step(&|world| world.hear(place));
                }
            }
            Bell::GivingBack => {
                let notifies_now = relay.unlocked != (defect == Defect::NotifiesFirst);
                let both_done = relay.unlocked;
                step(&|world| {
                    if notifies_now && defect != Defect::SaysNothing {
                        world.ring();
                    }
                    if !notifies_now {
                        world.key = None;
                    }
                    let relay = &mut world.relays[place];
                    relay.unlocked = !both_done;
                    if both_done {
                        relay.bell = relay.bell.after(Seen::GivenBack);
                    }
                    world.stir();
                });
            }
        }
        next
    }

    fn hear(&mut self, place: usize) {
        let relay = &mut self.relays[place];
        relay.rung = false;
        relay.bell = relay.bell.after(Seen::Rung);
    }

    /// Everything that can happen has happened, and an event lies there unread.
    fn sleeps_over_an_event(&self) -> bool {
        self.visible & !self.taken != 0
    }
}

/// The number of worlds that were seen, or the one in which everybody sleeps over an event.
fn search(producers: usize, relays: usize, defect: Defect) -> Result<usize, Box<World>> {
    let start = World::new(producers, relays);
    let (mut known, mut open) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(world) = open.pop() {
        let steps: Vec<World> = world.steps(defect).into_iter().filter(|next| *next != world).collect();
        if steps.is_empty() && world.sleeps_over_an_event() {
            return Err(Box::new(world));
        }
        for next in steps {
            if known.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(known.len())
}

#[test]
fn nobody_sleeps_over_an_event_in_any_interleaving() {
    for (producers, relays) in [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (2, 3)] {
        let worlds = search(producers, relays, Defect::None).unwrap_or_else(|world| panic!("{world:?}"));
        assert!(worlds > 10, "{producers} producers and {relays} relays: only {worlds} worlds");
    }
}

#[test]
fn the_search_finds_what_is_broken() {
    let broken = [
        (Defect::NoVerifying, 1),
        (Defect::SaysNothing, 2),
        (Defect::NotifiesFirst, 2),
        (Defect::NoVerifyingWhenCovered, 2),
        (Defect::SharesTooShort, 1),
        (Defect::DrainsLate, 1),
    ];
    for (defect, relays) in broken {
        assert!(search(2, relays, defect).is_err(), "{defect:?} with {relays} relays was not seen");
    }
}
