//! Two whole ends in one thread: handshake, link group and connections, over a TCP stream per
//! connection and one RDMA link, or two, in virtual time.
//!
//! What may happen next is drawn from a seed: TCP gives any portion of what is under way; the link
//! delivers writes and messages in order, but an end handles the messages of different connections
//! in any order, and tells its peer late. A link can be cut, TCP held back. Memory is real: a
//! write outside the ring that it is meant for is a panic.

mod back;
mod drivers;
mod programs;
mod wire;

use std::collections::VecDeque;

use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{Cdc, ProducerFlags};
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::clc::proposal::Release;
use smcr_proto::smc::conn::{Conn, Violation};
use smcr_proto::smc::handshake::Outcome;
use smcr_proto::smc::handshake::client::Client;
use smcr_proto::smc::handshake::server::Server;
use smcr_proto::smc::id::{RmbeSize, Token};
use smcr_proto::smc::link::key::GroupKey;
use smcr_proto::smc::link::{Event, Group, LINKS};

use crate::parts;
use back::Back;
pub use wire::base;

/// Places of the two ends in [`Pair::ends`].
pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;

pub struct Pair {
    pub now: Time,
    pub ends: [End; 2],
    /// False: what is posted to the link is lost.
    pub link_up: [bool; LINKS],
    /// Both ends have a second device.
    pub two_devices: bool,
    /// True: bytes in TCP streams stay under way.
    pub hold_tcp: bool,
    /// Connections go back to TCP where the last link has died.
    pub way_back: bool,
    /// Posted to each link by each end, not delivered yet.
    wire: [[VecDeque<Work>; LINKS]; 2],
    random: u64,
}

#[derive(Default)]
pub struct End {
    pub group: Option<(GroupKey, Group)>,
    pub slots: Vec<Slot>,
    /// Link events that concern the tests.
    pub terminated: Vec<Event>,
    /// Second links that came up, links that went down.
    pub second: usize,
    pub down: Vec<usize>,
    rts: [bool; LINKS],
    llc: VecDeque<(usize, Vec<u8>)>,
}

/// One connection at one end.
pub struct Slot {
    handshake: Handshake,
    pub outcome: Option<Outcome>,
    /// Bytes that TCP will bring.
    pub tcp: VecDeque<u8>,
    pub conn: Conn,
    pub violation: Option<Violation>,
    pub urgent: Option<u8>,
    /// The link that it uses.
    pub link: usize,
    /// How far it has left its link for TCP.
    pub back: Back,
    own: Endpoint,
    ring: Vec<u8>,
    /// All that the program has written.
    out: Vec<u8>,
    arrived: [VecDeque<Vec<u8>>; LINKS],
    /// Messages that have not arrived.
    uncompleted: u32,
    /// The driver has not polled since something was done.
    dirty: bool,
    /// The program writes no more.
    shut: bool,
}

// The tests hold a few of them.
#[allow(clippy::large_enum_variant)]
enum Handshake {
    Client(Client),
    Server(Server),
}

enum Work {
    Write(u64, Vec<u8>),
    Send(Vec<u8>),
}

#[derive(Clone, Copy)]
enum Action {
    Tcp(usize, usize),
    Deliver(usize, usize),
    Llc(usize),
    Cdc(usize, usize, usize),
    Poll(usize, usize),
    State(usize, usize),
    Hear(usize, usize),
}

impl Pair {
    pub fn new(seed: u64) -> Pair {
        Pair {
            now: Time::from_secs(1),
            ends: Default::default(),
            link_up: [true; LINKS],
            two_devices: false,
            hold_tcp: false,
            way_back: false,
            wire: Default::default(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// A number below `end`.
    pub fn random(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % end
    }

    /// Begins a connection in which both can speak version 2; the ends use rings of these sizes.
    pub fn begin(&mut self, client: RmbeSize, server: RmbeSize) -> usize {
        let proposal = parts::proposal(true, Some(Release::V21(parts::limits(1 + u8::from(self.two_devices)))));
        let offer = parts::offer(true, Some(parts::limits(2)));
        let host = parts::host();
        let handshakes = [
            Handshake::Client(Client::new(self.now, proposal, host)),
            Handshake::Server(Server::new(self.now, parts::peer_id(parts::SERVER), Ok(offer), host)),
        ];
        self.begin_with(handshakes, [client, server])
    }

    /// The same in version 1.
    pub fn begin_v1(&mut self) -> usize {
        let (proposal, offer) = (parts::proposal(true, None), parts::offer(true, None));
        let host = parts::host();
        let handshakes = [
            Handshake::Client(Client::new(self.now, proposal, host)),
            Handshake::Server(Server::new(self.now, parts::peer_id(parts::SERVER), Ok(offer), host)),
        ];
        self.begin_with(handshakes, [RmbeSize::MIN; 2])
    }

    fn begin_with(&mut self, handshakes: [Handshake; 2], sizes: [RmbeSize; 2]) -> usize {
        let place = self.ends[CLIENT].slots.len();
        for (end, (handshake, size)) in handshakes.into_iter().zip(sizes).enumerate() {
            let who = if end == CLIENT { parts::CLIENT } else { parts::SERVER };
            let own = parts::endpoint(who, place as u32 + 1, size);
            self.ends[end].slots.push(Slot {
                handshake,
                outcome: None,
                tcp: VecDeque::new(),
                conn: Conn::new(own.token, size),
                violation: None,
                urgent: None,
                link: 0,
                back: Back::default(),
                own,
                ring: vec![0; size.bytes() as usize],
                out: Vec::new(),
                arrived: Default::default(),
                uncompleted: 0,
                dirty: false,
                shut: false,
            });
        }
        self.pump(CLIENT, place);
        place
    }

    /// A connection with small rings that became SMC-R.
    pub fn connect(&mut self) -> usize {
        let place = self.begin(RmbeSize::MIN, RmbeSize::MIN);
        self.run();
        for end in [CLIENT, SERVER] {
            let outcome = self.ends[end].slots[place].outcome;
            assert!(matches!(outcome, Some(Outcome::Smc(_))), "{outcome:?}");
        }
        place
    }

    pub fn slot(&mut self, end: usize, place: usize) -> &mut Slot {
        &mut self.ends[end].slots[place]
    }

    /// Lets happen what can happen now.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Lets one thing happen, whichever; false if nothing can.
    pub fn step(&mut self) -> bool {
        let mut ready = Vec::new();
        for end in [CLIENT, SERVER] {
            for link in (0..LINKS).filter(|link| !self.wire[end][*link].is_empty()) {
                ready.push(Action::Deliver(end, link));
            }
            if !self.ends[end].llc.is_empty() {
                ready.push(Action::Llc(end));
            }
            for (place, slot) in self.ends[end].slots.iter().enumerate() {
                if !self.hold_tcp && slot.handshake_wants() > 0 && !slot.tcp.is_empty() {
                    ready.push(Action::Tcp(end, place));
                }
                for link in (0..LINKS).filter(|link| slot.is_due(*link)) {
                    ready.push(Action::Cdc(end, place, link));
                }
                if slot.dirty && !slot.back.is_wanted() {
                    ready.push(Action::Poll(end, place));
                }
                if self.may_state(end, place) {
                    ready.push(Action::State(end, place));
                }
                if !self.hold_tcp && slot.handshake_wants() == 0 && !slot.tcp.is_empty() {
                    ready.push(Action::Hear(end, place));
                }
            }
        }
        if ready.is_empty() {
            return false;
        }
        self.now += Time::from_micros(1);
        match ready[self.random(ready.len())] {
            Action::Tcp(end, place) => self.take_tcp(end, place),
            Action::Deliver(from, link) => self.deliver(from, link),
            Action::Llc(end) => {
                let (link, message) = self.ends[end].llc.pop_front().unwrap();
                let now = self.now;
                if let Some((_, group)) = &mut self.ends[end].group {
                    group.handle_llc(now, link, &message).expect("events were taken");
                }
                self.pump_group(end);
            }
            Action::Cdc(end, place, link) => self.take_cdc(end, place, link),
            Action::State(end, place) => self.state(end, place),
            Action::Hear(end, place) => self.hear(end, place),
            Action::Poll(end, place) => {
                let slot = &mut self.ends[end].slots[place];
                let (link, message) = (slot.link, slot.conn.poll_cdc());
                // A failover message is followed by another.
                slot.dirty = message.is_some();
                slot.uncompleted += u32::from(slot.dirty);
                if let Some(message) = message {
                    self.send(end, link, message.to_vec());
                }
            }
        }
        true
    }

    /// Lets this much time pass, and everything happen in it.
    pub fn advance(&mut self, time: Time) {
        let until = self.now + time;
        loop {
            self.run();
            let group = |end: &End| end.group.as_ref().and_then(|(_, group)| group.poll_timeout());
            let timers = self.ends.iter().filter_map(group);
            let slots = self.ends.iter().flat_map(|end| &end.slots);
            let next = timers.chain(slots.filter_map(Slot::timeout)).min();
            let Some(next) = next.filter(|next| *next <= until) else {
                break;
            };
            self.now = self.now.max(next);
            for end in [CLIENT, SERVER] {
                if let Some((_, group)) = &mut self.ends[end].group {
                    group.handle_timeout(self.now);
                }
                self.pump_group(end);
                for place in 0..self.ends[end].slots.len() {
                    match &mut self.ends[end].slots[place].handshake {
                        Handshake::Client(client) => client.handle_timeout(self.now),
                        Handshake::Server(server) => server.handle_timeout(self.now),
                    }
                    self.pump(end, place);
                }
            }
        }
        self.now = self.now.max(until);
    }

    fn take_tcp(&mut self, end: usize, place: usize) {
        let slot = &self.ends[end].slots[place];
        let most = slot.tcp.len().min(slot.handshake_wants());
        let part = 1 + self.random(most);
        let slot = &mut self.ends[end].slots[place];
        let bytes: Vec<u8> = slot.tcp.drain(..part).collect();
        let taken = match &mut slot.handshake {
            Handshake::Client(client) => client.handle_bytes(&bytes),
            Handshake::Server(server) => server.handle_bytes(&bytes),
        };
        assert_eq!(taken, part, "what was wanted is taken");
        self.pump(end, place);
    }

    /// A port has come up at an end.
    pub fn hint(&mut self, end: usize) {
        let now = self.now;
        if let Some((_, group)) = &mut self.ends[end].group {
            group.retry_link(now);
        }
        self.pump_group(end);
    }

    /// An end sees that a link is dead.
    pub fn notice(&mut self, end: usize, link: usize) {
        if let Some((_, group)) = &mut self.ends[end].group {
            group.handle_link_down(link);
        }
        self.pump_group(end);
    }
}

impl Slot {
    /// Whether a message of this link may be taken: one that says that the peer has left the other link, not before
    /// all that came by that.
    fn is_due(&self, link: usize) -> bool {
        let Some(message) = self.arrived[link].front() else { return false };
        let moved = Cdc::parse(message).unwrap().producer_flags.contains(ProducerFlags::FAILOVER);
        !moved || self.arrived[1 - link].is_empty()
    }

    fn handshake_wants(&self) -> usize {
        match &self.handshake {
            Handshake::Client(client) => client.want(),
            Handshake::Server(server) => server.want(),
        }
    }

    fn timeout(&self) -> Option<Time> {
        match &self.handshake {
            Handshake::Client(client) => client.poll_timeout(),
            Handshake::Server(server) => server.poll_timeout(),
        }
    }

    /// The peer's token.
    pub fn token(&self) -> Token {
        self.own.token
    }
}
