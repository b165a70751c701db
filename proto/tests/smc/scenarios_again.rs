//! Two ends on two links that lose one and get another in its place, as often as one dies: streams go on, over both again.

use smcr_proto::smc::Time;
use smcr_proto::smc::link::{AGAIN, AGAIN_MOST, SECOND};

use crate::pair::{CLIENT, Pair, SERVER};
use crate::scenarios::{Stream, transfer};

/// Both ends have both links, and call them this.
fn has_two(pair: &Pair, numbers: (u8, u8)) {
    for end in &pair.ends {
        let (_, group) = end.group.as_ref().unwrap();
        assert!(group.is_active(0) && group.is_active(1));
        assert_eq!((group.number(0), group.number(1)), numbers);
    }
}

fn two_links(seed: u64, connections: usize) -> (Pair, Vec<usize>) {
    let mut pair = Pair::new(seed);
    pair.two_devices = true;
    let places = (0..connections).map(|_| pair.connect()).collect();
    has_two(&pair, (1, 2));
    (pair, places)
}

#[test]
fn a_link_that_died_is_made_again_and_the_other_may_die_then() {
    for seed in 0..120 {
        let (mut pair, places) = two_links(seed, 3);
        let mut streams: Vec<Stream> = places.iter().flat_map(|c| [Stream::new(CLIENT, *c, 300_000), Stream::new(SERVER, *c, 250_000)]).collect();
        // Number of the link at each place, and the highest so far.
        let (mut numbers, mut last) = ([1, 2], 2);
        for _ in 0..4 {
            let before = pair.random(150_000);
            transfer(&mut pair, &mut streams, before);
            let used = pair.slot(CLIENT, places[0]).link;
            let dies = if pair.random(4) == 0 { 1 - used } else { used };
            pair.cut(dies);
            let first = pair.random(2);
            pair.notice(first, dies);
            let more = pair.random(60_000);
            transfer(&mut pair, &mut streams, more);
            // Each end has to know of it before the path carries again.
            pair.run();
            pair.notice(1 - first, dies);
            pair.run();
            pair.mend(dies);
            pair.advance(AGAIN + AGAIN);
            last += 1;
            numbers[dies] = last;
            has_two(&pair, (numbers[0], numbers[1]));
        }
        transfer(&mut pair, &mut streams, usize::MAX);
        pair.run();
        for end in &pair.ends {
            assert!(end.terminated.is_empty() && end.down.len() == 4, "seed {seed}: {:?}", end.down);
            assert!(end.slots.iter().all(|slot| slot.violation.is_none()), "seed {seed}");
        }
    }
}

#[test]
fn a_path_that_stays_dead_is_tried_less_and_less_often() {
    let (mut pair, places) = two_links(7, 1);
    pair.cut(1);
    pair.notice(SERVER, 1);
    pair.run();
    pair.advance(Time::from_secs(3600));
    pair.write(CLIENT, places[0], b"all the same");
    pair.run();
    assert_eq!(pair.read(SERVER, places[0], 100), b"all the same");
    // Each attempt takes a number.
    pair.mend(1);
    pair.advance(AGAIN_MOST + SECOND);
    let (_, group) = pair.ends[SERVER].group.as_ref().unwrap();
    let attempts = group.number(1) - 2;
    assert!(group.is_active(1) && (3600 / 75..=3600 / 50).contains(&u64::from(attempts)), "{attempts} attempts");
}

#[test]
fn a_port_that_comes_up_at_either_end_is_used_soon() {
    for who in [CLIENT, SERVER] {
        let (mut pair, _) = two_links(8, 1);
        pair.cut(0);
        pair.notice(who, 0);
        pair.run();
        // Long after, when attempts are rare.
        pair.advance(Time::from_secs(600));
        pair.mend(0);
        pair.advance(SECOND + Time::from_millis(100));
        let known = pair.ends[who].group.as_ref().is_some_and(|(_, g)| g.is_active(0));
        if !known {
            pair.hint(who);
            pair.advance(AGAIN);
        }
        for end in &pair.ends {
            let (_, group) = end.group.as_ref().unwrap();
            assert!(group.is_active(0) && group.is_active(1));
        }
    }
}
