//! What the library does at each end where a connection leaves its link for TCP: it falls quiet, says how much of the other's
//! stream it has, hears the same, and goes on from there (`smcr_proto::way_back`).

use std::collections::VecDeque;

use smcr_proto::way_back::{LEN, WayBack};

use super::{Pair, Slot};

/// How far one end of a connection has come.
#[derive(Default)]
pub struct Back {
    stage: Stage,
    /// What the other end has said, as far as it has come.
    heard: Vec<u8>,
    /// Bytes of its stream that came by TCP.
    came: VecDeque<u8>,
    /// The other end has sent its last byte.
    ended: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    No,
    /// Nothing more is posted; messages are on their way.
    Wanted,
    /// The other end is told; what the link brings is not looked at any more.
    Stated,
    /// Both have spoken.
    Home,
}

impl Back {
    pub fn is_wanted(&self) -> bool {
        self.stage >= Stage::Wanted
    }

    pub fn has_stated(&self) -> bool {
        self.stage >= Stage::Stated
    }

    pub fn is_home(&self) -> bool {
        self.stage == Stage::Home
    }

    pub(super) fn read(&mut self, max: usize) -> Vec<u8> {
        let n = max.min(self.came.len());
        self.came.drain(..n).collect()
    }
}

impl Slot {
    /// Whether its ring may be another connection's by now.
    pub(super) fn has_given_its_ring_up(&self) -> bool {
        self.back.is_home() && self.conn.readable() == 0
    }
}

impl Pair {
    /// A connection is to leave its link, by the wish of this end or because the link is dead.
    pub fn go_back(&mut self, end: usize, place: usize) {
        let back = &mut self.ends[end].slots[place].back;
        back.stage = back.stage.max(Stage::Wanted);
    }

    /// Whether it may say now what it has: of a dead link all that had arrived has been looked at, of a live one all that it
    /// has posted is through.
    pub(super) fn may_state(&self, end: usize, place: usize) -> bool {
        let slot = &self.ends[end].slots[place];
        let quiet = match self.ends[end].group {
            None => slot.arrived.iter().all(VecDeque::is_empty),
            Some(_) => self.wire[end][slot.link].is_empty(),
        };
        slot.back.stage == Stage::Wanted && quiet
    }

    pub(super) fn state(&mut self, end: usize, place: usize) {
        let slot = &mut self.ends[end].slots[place];
        let (received, _) = slot.conn.received_bytes();
        slot.back.stage = Stage::Stated;
        self.ends[1 - end].slots[place].tcp.extend(WayBack { received }.emit());
        self.go_home(end, place);
    }

    /// TCP brings some of what the other end has sent.
    pub(super) fn hear(&mut self, end: usize, place: usize) {
        let most = self.ends[end].slots[place].tcp.len();
        let part = 1 + self.random(most);
        let slot = &mut self.ends[end].slots[place];
        for byte in slot.tcp.drain(..part) {
            match slot.back.heard.len() {
                LEN => slot.back.came.push_back(byte),
                _ => slot.back.heard.push(byte),
            }
        }
        self.go_back(end, place);
        self.go_home(end, place);
    }

    /// Where both have spoken, this end's stream goes on through TCP from where the other one stands.
    fn go_home(&mut self, end: usize, place: usize) {
        let slot = &mut self.ends[end].slots[place];
        let heard: Result<[u8; LEN], _> = slot.back.heard[..].try_into();
        let (Stage::Stated, Ok(heard)) = (slot.back.stage, heard) else { return };
        let (sent, taken) = slot.conn.sent_bytes();
        let said = WayBack::parse(&heard).expect("what stands in TCP");
        let from = said.resume(taken, sent.max(slot.conn.told_bytes())).expect("a claim that can be right");
        slot.back.stage = Stage::Home;
        let rest = slot.out[from as usize..].to_vec();
        self.ends[1 - end].slots[place].tcp.extend(rest);
        self.end_home(end, place);
    }

    /// What the program writes while the connection leaves, or has left: as much as TCP takes.
    pub(super) fn write_home(&mut self, end: usize, place: usize, bytes: &[u8]) -> usize {
        if !self.ends[end].slots[place].back.is_home() {
            return 0;
        }
        self.ends[end].slots[place].out.extend_from_slice(bytes);
        self.ends[1 - end].slots[place].tcp.extend(bytes);
        bytes.len()
    }

    /// The program writes no more: TCP's end follows what is sent.
    pub(super) fn end_home(&mut self, end: usize, place: usize) {
        let slot = &self.ends[end].slots[place];
        if slot.back.is_home() && slot.shut {
            self.ends[1 - end].slots[place].back.ended = true;
        }
    }

    /// Whether the program has read all that ever comes.
    pub fn is_at_end(&self, end: usize, place: usize) -> bool {
        let slot = &self.ends[end].slots[place];
        match slot.back.is_home() {
            true => slot.conn.readable() == 0 && slot.tcp.is_empty() && slot.back.came.is_empty() && slot.back.ended,
            false => slot.conn.readable() == 0 && slot.conn.is_eof(),
        }
    }
}
