//! A handshake that outlives its process: how far it is stands in the page of its connection, and a forked child that has the
//! connection goes on from there when the process has ended. On TCP, whatever the peer says: the link would have been the parent's.
//!
//! Written after each step while there is no ring to receive in (`rendezvous::smc::gate`); empty during a step, and where only the one that
//! has the devices could go on: it ends with that one, who waits for it if it can (`link::parting`). [`super::super::heir`] says when a child does.

use super::about::names;
use super::greet::Late;
use super::{Machine, Shake};
use crate::family::process;
use crate::family::sock::{Sock, medium};
use crate::layout::RegionHeader;
use crate::link::slot::Id;
use crate::sys::net;
use smcr_proto::handshake::Peer;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::Client;
use smcr_proto::smc::handshake::server::Server;
use smcr_proto::smc::id::RmbeSize;
use std::sync::atomic::Ordering::*;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing has been said.
    Fresh,
    /// Client: the greeting is awaited.
    Greeting,
    /// Client: Accept is awaited.
    Proposed,
    /// Server: a Proposal is awaited.
    Greeted,
    /// It has ended on TCP, and what the program has sent is on its way there.
    Ended,
}

const STAGES: [Stage; 5] = [Stage::Fresh, Stage::Greeting, Stage::Proposed, Stage::Greeted, Stage::Ended];
const LATES: [Late; 4] = [Late::Nothing, Late::Greeting, Late::Proposal, Late::Decline];

/// What the page says: stage + 1 and what may come late in a byte each, then the bytes of the handshake in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Will {
    stage: Stage,
    late: Late,
    sent: u16,
    received: u16,
}

impl Will {
    fn word(self) -> u64 {
        let place = |stage| STAGES.iter().position(|s| *s == stage).unwrap_or(0) as u64;
        let late = LATES.iter().position(|l| *l == self.late).unwrap_or(0) as u64;
        (place(self.stage) + 1) | late << 8 | u64::from(self.sent) << 16 | u64::from(self.received) << 32
    }

    fn parse(word: u64) -> Option<Will> {
        let stage = *STAGES.get(usize::from(word as u8).checked_sub(1)?)?;
        let late = *LATES.get(usize::from((word >> 8) as u8))?;
        Some(Will { stage, late, sent: (word >> 16) as u16, received: (word >> 32) as u16 })
    }
}

impl Shake {
    fn page(&self) -> Option<&'static RegionHeader> {
        self.sock()?.region()
    }

    /// A step begins: nobody can go on from its middle.
    pub(super) fn revoke(&self) {
        if let Some(page) = self.page() {
            page.keeper.store(process::tid(), Relaxed);
            page.will[0].store(0, Relaxed);
        }
    }

    /// A step is over.
    pub(super) fn bequeath(&self) {
        let Some(page) = self.page() else { return };
        let inside = self.group.is_some() || self.awaits_link || self.proposal.is_some() || !self.out.is_empty();
        let stage = match &self.machine {
            _ if inside => None,
            Machine::Fresh => Some((Stage::Fresh, Time::ZERO)),
            Machine::Greeting(until) => Some((Stage::Greeting, *until)),
            Machine::Client(m) => m.awaits_accept().map(|until| (Stage::Proposed, until)),
            Machine::Server(m) => m.awaits_proposal().map(|until| (Stage::Greeted, until)),
            Machine::Over => self.drained.map(|_| (Stage::Ended, Time::ZERO)),
        };
        if let Some((stage, until)) = stage {
            let will = Will { stage, late: self.late, sent: self.sent as u16, received: self.received as u16 };
            page.will[1].store(until.as_nanos() as u64, Relaxed);
            page.will[0].store(will.word(), Release); // pairs with the Acquire in `inherited`
        }
    }

    /// The handshake of a process that has ended, by a descriptor and a number of our own.
    pub fn inherited(s: &'static Sock, page: &RegionHeader, fd: i32, id: Id, peer: Peer) -> Shake {
        let will = Will::parse(page.will[0].load(Acquire));
        let until = Time::from_nanos(page.will[1].load(Relaxed));
        let code = Diagnosis::MEMORY;
        let size = RmbeSize::at_least(s.rx_ring.load(Relaxed));
        let mut shake = Shake::new(s, fd, id, size, peer, Some((Reason::SharedByFork, code)));
        let Some(will) = will else {
            // It ended in the middle of a step.
            let _ = net::disconnect(fd);
            shake.fall_back(Reason::PeerSilent);
            return shake;
        };
        (shake.sent, shake.received, shake.late) = (will.sent.into(), will.received.into(), will.late);
        let (id, host) = names();
        match will.stage {
            Stage::Fresh => {}
            Stage::Greeting => shake.machine = Machine::Greeting(until),
            Stage::Proposed => shake.machine = Machine::Client(Client::proposed(until, id, code, host)),
            Stage::Greeted => shake.machine = Machine::Server(Server::greeted(until, id, code, host)),
            Stage::Ended => {
                shake.machine = Machine::Over;
                shake.drained = s.tx.dir().map(|dir| dir.tail.load(Acquire));
                shake.sends = s.tx_medium.load(Relaxed) == medium::TCP;
                shake.receives = s.rx_medium.load(Relaxed) == medium::TCP;
            }
        }
        shake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for stage in STAGES {
            for late in LATES {
                let will = Will { stage, late, sent: 0xfedc, received: 0x1234 };
                assert_eq!(Will::parse(will.word()), Some(will));
            }
        }
    }

    /// All that there can be of what decides; the upper half is two numbers, any of which are possible.
    #[test]
    fn what_is_read_is_what_was_written() {
        let read = (0..=0xffff).filter_map(|low| {
            let word = 0xfedc_1234 << 16 | low;
            Will::parse(word).inspect(|will| assert_eq!(will.word(), word))
        });
        assert_eq!(read.count(), STAGES.len() * LATES.len());
    }

    #[test]
    fn an_empty_page_says_nothing() {
        assert_eq!(Will::parse(0), None);
        assert_eq!(Will::parse(6), None);
        assert_eq!(Will::parse(0x0401), None);
    }
}
