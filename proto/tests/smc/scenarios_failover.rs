//! Two ends on two links, of which one dies: streams go on over the other and not a byte is lost; then the last one.

use smcr_proto::smc::Time;
use smcr_proto::smc::link::{Event, SECOND};
use smcr_proto::smc::llc::LinkReason;

use crate::pair::{CLIENT, Pair, SERVER};
use crate::scenarios::{Stream, transfer};

fn two_links(seed: u64, connections: usize) -> (Pair, Vec<usize>) {
    let mut pair = Pair::new(seed);
    pair.two_devices = true;
    let places: Vec<usize> = (0..connections).map(|_| pair.connect()).collect();
    for end in &pair.ends {
        assert_eq!((end.second, &end.down[..]), (1, &[][..]));
    }
    (pair, places)
}

#[test]
fn a_second_link_comes_up_where_both_ends_have_a_device() {
    let (mut pair, places) = two_links(1, 2);
    pair.write(CLIENT, places[1], b"hello");
    pair.advance(Time::from_secs(300));
    assert_eq!(pair.read(SERVER, places[1], 100), b"hello");
    for end in [CLIENT, SERVER] {
        let (_, group) = pair.ends[end].group.as_ref().unwrap();
        assert!(group.is_active(0) && group.is_active(1), "both are tested and live");
        assert_eq!((group.number(0), group.number(1)), (1, 2));
    }
}

#[test]
fn a_second_link_that_does_not_come_up_leaves_the_first_alone() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.two_devices = true;
        pair.link_up[1] = false;
        let c = pair.connect();
        pair.write(SERVER, c, b"one");
        pair.advance(SECOND + Time::from_secs(40));
        assert_eq!(pair.read(CLIENT, c, 100), b"one");
        for end in [CLIENT, SERVER] {
            let (_, group) = pair.ends[end].group.as_ref().unwrap();
            assert!(group.is_active(0) && !group.is_active(1));
        }
        assert_eq!(pair.ends.iter().map(|e| e.second + e.down.len()).sum::<usize>(), 0);
    }
}

#[test]
fn streams_outlive_one_link_and_lose_nothing() {
    for seed in 0..150 {
        let (mut pair, places) = two_links(seed, 3);
        let mut streams: Vec<Stream> = places.iter().flat_map(|c| [Stream::new(CLIENT, *c, 200_000), Stream::new(SERVER, *c, 150_000)]).collect();
        let before = pair.random(400_000);
        transfer(&mut pair, &mut streams, before);
        pair.cut(0);
        // One end or both see it, sooner or later; the other hears of it.
        let first = pair.random(2);
        let mut rest = pair.random(300);
        while rest > 0 && pair.step() {
            rest -= 1;
        }
        pair.notice(first, 0);
        if pair.random(2) == 0 {
            pair.notice(1 - first, 0);
        }
        transfer(&mut pair, &mut streams, usize::MAX);
        pair.run();
        for end in [CLIENT, SERVER] {
            assert_eq!(pair.ends[end].down, [0], "seed {seed}");
            for slot in &pair.ends[end].slots {
                assert_eq!((slot.violation, slot.link), (None, 1), "seed {seed}, end {end}");
            }
        }
        // They close as ever, over the link that is left.
        for c in places {
            for end in [CLIENT, SERVER] {
                pair.close(end, c);
            }
            pair.run();
            assert!(pair.slot(CLIENT, c).conn.is_finished() && pair.slot(SERVER, c).conn.is_finished());
        }
    }
}

#[test]
fn what_was_written_before_the_end_arrives_over_the_other_link() {
    for seed in 0..60 {
        let (mut pair, places) = two_links(seed, 2);
        let c = places[seed as usize % 2];
        let bytes: Vec<u8> = (0..16384).map(|n| (n * 7 + seed as usize) as u8).collect();
        assert_eq!(pair.write(CLIENT, c, &bytes), bytes.len());
        if seed % 3 == 0 {
            pair.shutdown(CLIENT, c);
        } else {
            pair.close(CLIENT, c);
        }
        for _ in 0..pair.random(6) {
            pair.step();
        }
        let mut got = pair.read(SERVER, c, 5000);
        for _ in 0..pair.random(4) {
            pair.step();
        }
        pair.cut(0);
        pair.notice(seed as usize % 2, 0);
        loop {
            pair.run();
            let more = pair.read(SERVER, c, 3000);
            if more.is_empty() {
                break;
            }
            got.extend(more);
        }
        assert!(got == bytes, "seed {seed}: {} bytes", got.len());
        assert!(pair.slot(SERVER, c).conn.is_eof(), "seed {seed}");
        pair.close(SERVER, c);
        pair.close(CLIENT, c);
        pair.run();
        assert!(pair.slot(CLIENT, c).conn.is_finished() && pair.slot(SERVER, c).conn.is_finished());
    }
}

#[test]
fn a_close_that_is_lost_with_the_link_is_said_again() {
    let mut lost = 0;
    for seed in 0..200 {
        let (mut pair, places) = two_links(seed, 1);
        let c = places[0];
        let first = pair.random(2);
        pair.close(first, c);
        pair.run();
        pair.close(1 - first, c);
        for _ in 0..pair.random(3) {
            pair.step();
        }
        pair.cut(0);
        pair.run();
        lost += usize::from(!pair.slot(first, c).conn.is_finished());
        let notices = pair.random(2);
        pair.notice(notices, 0);
        pair.run();
        assert!(pair.slot(first, c).conn.is_finished() && pair.slot(1 - first, c).conn.is_finished(), "seed {seed}");
    }
    assert!(lost > 20);
}

#[test]
fn a_quiet_link_that_dies_is_noticed_by_its_test_and_nobody_sees_more_of_it() {
    let (mut pair, places) = two_links(3, 2);
    pair.cut(0);
    pair.advance(Time::from_secs(40));
    for end in [CLIENT, SERVER] {
        assert_eq!(pair.ends[end].down, [0]);
        assert!(pair.ends[end].terminated.is_empty());
    }
    pair.write(SERVER, places[0], b"still here");
    pair.run();
    assert_eq!(pair.read(CLIENT, places[0], 100), b"still here");
}

#[test]
fn the_last_link_ends_the_group() {
    let (mut pair, places) = two_links(4, 2);
    pair.cut(1);
    pair.advance(Time::from_secs(40));
    assert!(pair.ends.iter().all(|e| e.down == [1] && e.terminated.is_empty()));
    pair.write(SERVER, places[0], b"on the first");
    pair.run();
    assert_eq!(pair.read(CLIENT, places[0], 100), b"on the first");
    pair.cut(0);
    pair.advance(Time::from_secs(40));
    let over = Event::Terminated { by_peer: false, reason: LinkReason::LOST_PATH };
    assert!(pair.ends.iter().all(|e| e.terminated == [over]));
}
