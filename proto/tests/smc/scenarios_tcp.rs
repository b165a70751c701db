//! Two ends between TCP and SMC-R: version 1, early data, a link that never comes up, ends that
//! disagree about the link group.

use smcr_proto::smc::Time;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::{Agreed, Failure, Fallback, Outcome};
use smcr_proto::smc::id::RmbeSize;
use smcr_proto::smc::link::Event;

use crate::pair::{CLIENT, Pair, SERVER};

#[test]
fn version_1_works_alike() {
    let mut pair = Pair::new(1);
    for first_contact in [true, false] {
        let c = pair.begin_v1();
        pair.run();
        let Some(Outcome::Smc(params)) = pair.slot(SERVER, c).outcome else { panic!() };
        assert_eq!((params.version, params.first_contact), (Agreed::V1, first_contact));
        pair.write(CLIENT, c, b"one");
        pair.run();
        assert_eq!(pair.read(SERVER, c, 9), b"one");
    }
}

#[test]
fn connections_that_begin_together_share_no_step_but_the_link() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.connect();
        let all: Vec<usize> = (0..5).map(|_| pair.begin(RmbeSize::MIN, RmbeSize::MIN)).collect();
        pair.run();
        for (i, place) in all.iter().enumerate() {
            assert!(matches!(pair.slot(SERVER, *place).outcome, Some(Outcome::Smc(_))), "seed {seed}");
            pair.write(CLIENT, *place, &[i as u8; 10]);
        }
        pair.run();
        for (i, place) in all.iter().enumerate() {
            assert_eq!(pair.read(SERVER, *place, 100), [i as u8; 10]);
        }
    }
}

#[test]
fn data_may_overtake_the_confirm() {
    let mut pair = Pair::new(2);
    pair.connect();
    let c = pair.begin(RmbeSize::MIN, RmbeSize::MIN);
    while pair.slot(CLIENT, c).outcome.is_none() {
        pair.step();
    }
    pair.hold_tcp = true;
    pair.write(CLIENT, c, b"early");
    pair.shutdown(CLIENT, c);
    pair.run();
    assert_eq!(pair.slot(SERVER, c).outcome, None, "Confirm is still under way");
    assert_eq!(pair.slot(SERVER, c).conn.readable(), 5);
    pair.hold_tcp = false;
    pair.run();
    assert_eq!(pair.read(SERVER, c, 100), b"early");
    assert_eq!(pair.write(SERVER, c, b"answer"), 6);
    pair.run();
    assert_eq!(pair.read(CLIENT, c, 100), b"answer");
}

#[test]
fn a_link_that_never_comes_up_leaves_both_on_tcp_with_a_clean_stream() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed);
        pair.link_up[0] = false;
        let c = pair.begin(RmbeSize::MIN, RmbeSize::MIN);
        pair.advance(Time::from_millis(2200));
        assert_eq!(pair.slot(SERVER, c).outcome, None, "2 s for the link, 0.3 s for a Decline");
        pair.advance(Time::from_secs(10));
        let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
        let fallback = |by_peer| Some(Outcome::Fallback(Fallback { code, by_peer, end_group: false }));
        assert_eq!(pair.slot(SERVER, c).outcome, fallback(false));
        assert_eq!(pair.slot(CLIENT, c).outcome, fallback(true));
        assert!(pair.ends.iter().all(|end| end.slots[c].tcp.is_empty()), "no byte is left over");
        // The next one may do better.
        pair.link_up[0] = true;
        pair.connect();
    }
}

#[test]
fn a_client_that_forgot_the_group_ends_it_and_the_next_connection_makes_a_new_one() {
    let mut pair = Pair::new(3);
    let old = pair.connect();
    pair.ends[CLIENT].group = None;
    let c = pair.begin(RmbeSize::MIN, RmbeSize::MIN);
    pair.run();
    let code = Diagnosis::OUT_OF_SYNC;
    let fallback = |by_peer| Some(Outcome::Fallback(Fallback { code, by_peer, end_group: true }));
    assert_eq!(pair.slot(CLIENT, c).outcome, fallback(false));
    assert_eq!(pair.slot(SERVER, c).outcome, fallback(true));
    assert!(matches!(pair.ends[SERVER].terminated[..], [Event::Terminated { by_peer: false, .. }]));
    assert!(pair.slot(SERVER, old).conn.take_error().is_some());
    let c = pair.connect();
    let Some(Outcome::Smc(params)) = pair.slot(SERVER, c).outcome else { panic!() };
    assert!(params.first_contact);
}

#[test]
fn a_peer_that_falls_silent_in_the_handshake_fails_the_connection() {
    let mut pair = Pair::new(4);
    pair.hold_tcp = true;
    let c = pair.begin(RmbeSize::MIN, RmbeSize::MIN);
    pair.advance(Time::from_secs(31));
    for end in [CLIENT, SERVER] {
        assert_eq!(pair.slot(end, c).outcome, Some(Outcome::Fail(Failure::Timeout)));
    }
}
