//! Single steps of a lane's memory: what is full, what holds `low` back, what another route's backlog costs.

use super::*;

#[test]
fn a_full_memory_reads_late_events_only_until_low_has_moved() {
    let mut memory = Memory::default();
    let snapshot = Snapshot::parse("10:10:").unwrap();
    let holder = || vec![Holder { vxid: "3/1".into(), xid: None }];
    let ids: Vec<i64> = (1..=i64::try_from(MAX_LEFT_OUT).unwrap() + 1).collect();
    memory.note(0, holder(), Instant::now());
    assert_eq!(memory.forward(&snapshot, None).through, i64::MAX);
    memory.forward_made(&snapshot, &ids, End::Limit);
    memory.take_in(&[], &ids);
    memory.note(ids.len() as i64, holder(), Instant::now());
    let full = memory.forward(&snapshot, None);
    assert_eq!((full.after, full.through), (0, memory.cursor()));
    memory.forward_made(&snapshot, &[], End::Nothing);
    for _ in 0..2 {
        memory.note(ids.len() as i64, Vec::new(), Instant::now());
        memory.forward_made(&snapshot, &[], End::Nothing);
    }
    let free = memory.forward(&snapshot, None);
    assert_eq!((free.after, free.through, free.leave_out.len()), (memory.cursor(), i64::MAX, 0));
}

/// A lock that is held without a transaction id, for as long as one likes.
fn held() -> Vec<Holder> {
    vec![Holder { vxid: "3/1".into(), xid: None }]
}

#[test]
fn another_routes_backlog_is_passed_once() {
    let (mut memory, snapshot) = (Memory::default(), Snapshot::parse("10:10:").unwrap());
    let mut reads = Vec::new();
    for _ in 0..5 {
        memory.note(300_000, Vec::new(), Instant::now());
        let start = memory.forward(&snapshot, Some(100_000));
        reads.push((start.after, start.through));
        let end = memory.filtered_end(&start);
        memory.forward_made(&snapshot, &[], end);
    }
    let end = (300_000, 400_000);
    // Until the second read has been made, nothing is known about who wrote before the first.
    assert_eq!(reads, [(0, 100_000), (0, 200_000), (200_000, 300_000), end, end]);
}

#[test]
fn a_filtered_lane_gets_on_while_low_is_held_back() {
    let (mut memory, snapshot) = (Memory::default(), Snapshot::parse("10:10:").unwrap());
    for read in 1..=10 {
        memory.note(1_000_000, held(), Instant::now());
        let start = memory.forward(&snapshot, Some(100_000));
        assert_eq!((start.after, start.through), (0, read * 100_000), "the look-back, and as much again");
        let end = memory.filtered_end(&start);
        assert_eq!(end == End::NothingOfOurs, read == 10);
        memory.forward_made(&snapshot, &[], end);
    }
}

#[test]
fn a_full_memory_of_a_filtered_lane_passes_nothing() {
    let (mut memory, snapshot) = (Memory::default(), Snapshot::parse("10:10:").unwrap());
    let ids: Vec<i64> = (1..=i64::try_from(MAX_LEFT_OUT).unwrap() + 1).collect();
    memory.note(0, held(), Instant::now());
    memory.forward_made(&snapshot, &ids, End::Limit);
    let cursor = memory.cursor();
    memory.note(500_000, held(), Instant::now());
    let start = memory.forward(&snapshot, Some(100_000));
    assert_eq!((start.through, memory.filtered_end(&start)), (cursor, End::Nothing));
    memory.forward_made(&snapshot, &[], End::Nothing);
    // Once `low` has moved beyond the cursor, what lies between is read.
    for _ in 0..3 {
        memory.note(500_000, Vec::new(), Instant::now());
        let start = memory.forward(&snapshot, Some(100_000));
        assert!(start.after <= cursor);
        memory.forward_made(&snapshot, &[], End::Nothing);
    }
    assert_eq!(memory.forward(&snapshot, Some(100_000)).after, cursor);
}
