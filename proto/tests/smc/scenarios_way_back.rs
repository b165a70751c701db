//! Two ends of libsmcr on a link that dies, or that one connection leaves: the streams go on over TCP, and not a byte is lost or comes twice.

use crate::pair::{CLIENT, Pair, SERVER};
use crate::scenarios::{Stream, transfer};

const BOTH: [usize; 2] = [CLIENT, SERVER];

fn pair(seed: u64, connections: usize, two_devices: bool) -> (Pair, Vec<usize>) {
    let mut pair = Pair::new(seed);
    (pair.way_back, pair.two_devices) = (true, two_devices);
    let places = (0..connections).map(|_| pair.connect()).collect();
    (pair, places)
}

fn streams(places: &[usize]) -> Vec<Stream> {
    places.iter().flat_map(|c| [Stream::new(CLIENT, *c, 150_000), Stream::new(SERVER, *c, 120_000)]).collect()
}

/// Some of what may happen.
fn some_steps(pair: &mut Pair, most: usize) {
    let mut rest = pair.random(most);
    while rest > 0 && pair.step() {
        rest -= 1;
    }
}

fn are_home(pair: &Pair, places: &[usize], seed: u64) {
    for c in places {
        for end in BOTH {
            let slot = &pair.ends[end].slots[*c];
            assert!(slot.back.is_home() && slot.violation.is_none(), "seed {seed}, end {end}, connection {c}");
        }
    }
}

#[test]
fn streams_of_a_link_that_died_go_on_over_tcp() {
    for seed in 0..200 {
        let (mut pair, places) = pair(seed, 3, false);
        let mut streams = streams(&places);
        let before = pair.random(500_000);
        transfer(&mut pair, &mut streams, before);
        pair.cut(0);
        some_steps(&mut pair, 300);
        // One end sees it, or both; the other hears of it over TCP, on each connection.
        let first = pair.random(2);
        pair.notice(first, 0);
        some_steps(&mut pair, 100);
        if pair.random(2) == 0 {
            pair.notice(1 - first, 0);
        }
        transfer(&mut pair, &mut streams, usize::MAX);
        pair.run();
        are_home(&pair, &places, seed);
    }
}

#[test]
fn one_connection_leaves_a_live_link_and_the_others_stay() {
    for seed in 0..150 {
        let (mut pair, places) = pair(seed, 3, false);
        let mut streams = streams(&places);
        let before = pair.random(400_000);
        transfer(&mut pair, &mut streams, before);
        let (leaver, first) = (places[pair.random(3)], pair.random(2));
        pair.go_back(first, leaver);
        some_steps(&mut pair, 60);
        if pair.random(3) == 0 {
            pair.go_back(1 - first, leaver); // both wish it
        }
        transfer(&mut pair, &mut streams, usize::MAX);
        pair.run();
        are_home(&pair, &[leaver], seed);
        for c in places.iter().filter(|c| **c != leaver) {
            for end in BOTH {
                let slot = &pair.ends[end].slots[*c];
                assert!(!slot.back.is_wanted() && slot.violation.is_none(), "seed {seed}, end {end}");
            }
        }
    }
}

#[test]
fn the_second_link_dies_in_the_middle_of_a_failover() {
    for seed in 0..150 {
        let (mut pair, places) = pair(seed, 2, true);
        let mut streams = streams(&places);
        let before = pair.random(300_000);
        transfer(&mut pair, &mut streams, before);
        pair.cut(0);
        let first = pair.random(2);
        pair.notice(first, 0);
        some_steps(&mut pair, 120);
        pair.cut(1);
        some_steps(&mut pair, 60);
        let end = pair.random(2);
        pair.notice(end, 0);
        pair.notice(end, 1);
        transfer(&mut pair, &mut streams, usize::MAX);
        pair.run();
        are_home(&pair, &places, seed);
    }
}

#[test]
fn a_half_closed_stream_ends_over_tcp_behind_its_last_byte() {
    for seed in 0..100 {
        let (mut pair, places) = pair(seed, 1, false);
        let c = places[0];
        let bytes: Vec<u8> = (0..16384).map(|n| (n * 11 + seed as usize) as u8).collect();
        let sent = pair.write(CLIENT, c, &bytes);
        assert!(sent > 0);
        pair.shutdown(CLIENT, c);
        some_steps(&mut pair, 30);
        let mut got = pair.read(SERVER, c, seed as usize * 50);
        match seed % 3 {
            0 => pair.go_back(SERVER, c),
            1 => pair.go_back(CLIENT, c),
            _ => {
                pair.cut(0);
                pair.notice(seed as usize / 3 % 2, 0);
            }
        }
        pair.run();
        while !pair.is_at_end(SERVER, c) {
            let more = pair.read(SERVER, c, 5000);
            assert!(!more.is_empty(), "seed {seed}: neither bytes nor the end");
            got.extend(more);
            pair.run();
        }
        assert_eq!(got, bytes[..sent], "seed {seed}");
        // The other direction is open as before.
        assert_eq!(pair.write(SERVER, c, b"the answer"), 10);
        pair.run();
        assert_eq!(pair.read(CLIENT, c, 100), b"the answer");
        are_home(&pair, &places, seed);
    }
}
