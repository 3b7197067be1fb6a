//! Snapshots as text, transaction ids over the end of an epoch, and how `low` moves.

use super::*;

fn holder(vxid: &str, xid: Option<u32>) -> Holder {
    Holder { vxid: vxid.to_owned(), xid }
}

#[test]
fn snapshots_are_read_or_refused() {
    let snapshot = |xmin, xmax, in_progress: &[u64]| {
        Some(Snapshot { xmin, xmax, in_progress: in_progress.iter().copied().collect() })
    };
    let check = |text, expected| assert_eq!(Snapshot::parse(text), expected, "{text}");
    check("5:5:", snapshot(5, 5, &[]));
    check("5:9:5,7", snapshot(5, 9, &[5, 7]));
    check("4294967297:4294967299:4294967297", snapshot(4_294_967_297, 4_294_967_299, &[4_294_967_297]));
    check("", None);
    check("5", None);
    check("5:9", None);
    check("5:x:", None);
    check("5:9:7;8", None);
}

#[test]
fn a_short_transaction_id_is_the_one_nearest_to_the_snapshot() {
    const EPOCH: u64 = 1 << 32;
    let check = |text: &str, xid: u64, ended: bool| {
        let short = u32::try_from(xid % EPOCH).unwrap();
        assert_eq!(Snapshot::parse(text).unwrap().has_ended(short), ended, "{xid} in {text}");
    };
    check("10:20:10,15", 9, true);
    check("10:20:10,15", 10, false);
    check("10:20:10,15", 12, true);
    check("10:20:10,15", 15, false);
    check("10:20:10,15", 20, false);
    check("10:20:10,15", 1_000_000, false);
    // The snapshot is in a new epoch, the transaction began in the one before.
    let old = EPOCH - 5;
    check(&format!("{old}:{}:{old}", EPOCH + 9), old, false);
    check(&format!("{}:{}:{old}", old - 1, EPOCH + 9), old + 1, true);
    check(&format!("{old}:{}:{old}", EPOCH + 9), EPOCH + 3, true);
    // The snapshot is at the end of an epoch, the transaction has begun in the next one.
    check(&format!("{old}:{}:", old), EPOCH + 3, false);
}

#[test]
fn low_waits_for_the_holders_of_a_note_and_for_a_read_after_they_are_gone() {
    let mut notes = Notes::default();
    let (now, snapshot) = (Instant::now(), Snapshot::parse("100:100:").unwrap());
    let mut read = |value, holders| {
        notes.note(value, holders, now);
        notes.read_made(&snapshot);
        notes.low()
    };
    assert_eq!(read(10, vec![holder("3/1", Some(200))]), 0);
    assert_eq!(read(12, vec![holder("3/1", Some(200)), holder("4/1", None)]), 0);
    assert_eq!(read(14, vec![holder("4/1", None)]), 10, "the first note's holder is gone");
    assert_eq!(read(15, vec![holder("5/1", None)]), 14, "the later notes' are gone too");
    assert_eq!(read(15, vec![]), 15);
}

#[test]
fn a_long_writer_is_kept_aside_once_it_has_a_transaction_id() {
    let start = Instant::now();
    let writer = |xid| vec![holder("3/1", xid)];
    let open = Snapshot::parse("50:60:50").unwrap();
    let mut notes = Notes::default();
    let read = |notes: &mut Notes, value, holders, after, snapshot: &Snapshot| {
        notes.note(value, holders, start + after);
        let back = notes.look_back_to(snapshot);
        notes.read_made(snapshot);
        (back, notes.low())
    };
    assert_eq!(read(&mut notes, 5, vec![], Duration::ZERO, &open), (0, 0));
    assert_eq!(read(&mut notes, 7, vec![], Duration::ZERO, &open), (0, 5));
    assert_eq!(read(&mut notes, 8, writer(None), Duration::ZERO, &open), (5, 7));
    let long = LONG * 2;
    assert_eq!(read(&mut notes, 9, writer(None), long, &open), (7, 7), "without an id it can't be recognised");
    assert_eq!(read(&mut notes, 10, writer(Some(50)), long, &open), (7, 9));
    assert_eq!(read(&mut notes, 20, writer(Some(50)), long, &open), (9, 10));
    assert_eq!(notes.settled_below(), 5, "its ids may lie above what `low` was when it was first seen");
    let ended = Snapshot::parse("60:60:").unwrap();
    assert_eq!(read(&mut notes, 21, writer(Some(50)), long, &ended).0, 5, "still listed, but its rows are visible");
    let low = notes.low();
    assert_eq!(read(&mut notes, 22, vec![], long, &ended), (low, 21), "looked back once");
    assert_eq!(notes.settled_below(), notes.low());
}

#[test]
fn the_number_of_notes_is_bounded() {
    let mut notes = Notes::default();
    let snapshot = Snapshot::parse("1:1:").unwrap();
    let now = Instant::now();
    for value in 0..5_000 {
        notes.note(value, vec![holder("3/1", None)], now);
        notes.read_made(&snapshot);
    }
    assert_eq!((notes.notes.len(), notes.low()), (MAX_NOTES, 0));
    notes.note(6_000, vec![], now);
    notes.read_made(&snapshot);
    assert_eq!(notes.low(), 4_999);
}
