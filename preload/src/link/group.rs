//! A link group: its links, its LLC machine, the rings that its peer writes into.
//!
//! Driven by [`super::state`] under the lock of all links. The rules are those of `proto::smc::link`;
//! here is what its events mean for queue pairs ([`super::one`]) and connections. What may take a while, a second
//! link, is only noted here and done by the service thread ([`super::second`]); how it ends is in [`super::farewell`].

use super::admit::Hosts;
use super::farewell::Farewell;
use super::lock;
use super::one::{Link, PeerEnd};
use super::pool::{Element, Pool};
use crate::log;
use crate::sys::Res;
use crate::verbs::device::Device;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::handshake::{Agreed, Params, Role};
use smcr_proto::smc::id::{Gid, PeerId, Rkey, RmbeSize};
use smcr_proto::smc::immediate;
use smcr_proto::smc::link::{self as machine, Config, Event, LINKS, OwnKey};
use smcr_proto::smc::llc::{AddLink, Family, Message};
use std::collections::VecDeque;

/// A link group.
pub struct Group {
    /// This end's role.
    pub role: Role,
    /// The peer, once it is known, and the version.
    pub(super) peer: Option<(PeerId, Family)>,
    /// Server: the process, with libsmcr, that has asked for it.
    pub made_for: Option<PeerId>,
    /// The connection by which it was made.
    pub hosts: Option<Hosts>,
    /// Its links: the first, and perhaps a second one.
    pub links: Vec<Link>,
    /// Rings of the connections.
    pub rings: Pool,
    /// Their size.
    pub size: RmbeSize,
    /// LLC, from first contact on.
    pub(super) machine: Option<Box<machine::Group>>,
    /// Sending rings, and their sizes, of connections that are over, from which the card may still read.
    pub(super) retired: Vec<(Element, u32)>,
    /// Rings that are not given back, because the peer may write into them still.
    pub spoilt: u32,
    /// Records that use the group.
    pub users: usize,
    /// The first link was confirmed.
    pub is_ready: bool,
    /// Writes announce themselves, both ends have agreed.
    pub immediate: bool,
    /// The peer is libsmcr.
    pub ours: bool,
    /// The group is over, since this time.
    pub over: Option<Time>,
    /// How often a kernel still says that, or since when it has.
    pub(super) farewell: Farewell,
    /// Agreed user EID: for show.
    pub(super) eid: [u8; 32],
    /// Memories that the peer has withdrawn, by link, and whose connections are to be told.
    pub withdrawn: Vec<(usize, Rkey)>,
    /// What the service thread is to do for a second link.
    pub(super) second: Option<Second>,
    /// Server: GIDs by which it has been offered in this attempt.
    pub(super) tried: Vec<Gid>,
    /// Memories that the peer is to hear of.
    pub(super) announce: VecDeque<[OwnKey; LINKS]>,
}

/// This end's part of a second link.
pub(super) enum Second {
    /// Server: offer one.
    Offer,
    /// Client: the server offers this one.
    Answer(Box<AddLink>),
}

impl Group {
    /// A group without a peer yet, of one link.
    pub fn new(role: Role, link: Link, size: RmbeSize) -> Group {
        Group {
            role,
            peer: None,
            made_for: None,
            hosts: None,
            links: vec![link],
            rings: Pool::new(size.bytes() as usize, true),
            size,
            machine: None,
            retired: Vec::new(),
            spoilt: 0,
            users: 0,
            is_ready: false,
            immediate: false,
            ours: false,
            over: None,
            farewell: Farewell::None,
            eid: [0; 32],
            withdrawn: Vec::new(),
            second: None,
            tried: Vec::new(),
            announce: VecDeque::new(),
        }
    }

    /// First contact is agreed: LLC begins. A server's queue pair goes to RTS, a client's when the
    /// server confirms the link. `ours`: the peer is libsmcr.
    pub fn begin(&mut self, devices: &[Device], params: &Params, number: u32, ours: bool, now: Time) -> Res<()> {
        let first = &mut self.links[0];
        if self.role == Role::Server {
            first.raise(&devices[first.device])?;
        }
        let limits = params.version.limits();
        let mut m = machine::Group::new(Config {
            role: self.role,
            family: params.version.family(),
            mac: first.port.mac,
            gid: first.port.gid,
            qpn: params.local.qpn,
            direct: true,
            peer_gid: params.peer.gid,
            link: 1,
            link_uid: number + 1,
            max_links: limits.map_or(2, |l| l.max_links),
            max_conns: limits.map_or(machine::MAX_CONNECTIONS, |l| l.max_conns),
            test_link: Some(machine::TEST_LINK),
        });
        m.start(now);
        first.mtu = params.mtu.bytes();
        let peer = &params.peer;
        first.peer = Some(PeerEnd { gid: peer.gid, mac: peer.mac, qpn: peer.qpn });
        self.ours = ours;
        self.immediate = ours && limits.is_some_and(|l| l.features & immediate::FEATURE != 0);
        if let Agreed::V2 { eid, .. } = params.version {
            self.eid = eid.0;
        }
        self.peer = Some((peer.peer_id, params.version.family()));
        self.machine = Some(Box::new(m));
        Ok(())
    }

    /// Whether it is confirmed, and not over.
    pub(super) fn is_active(&self) -> bool {
        self.over.is_none() && self.machine.as_ref().is_some_and(|m| m.state() == machine::State::Active)
    }

    /// Whether new connections may join.
    pub fn is_open(&self) -> bool {
        self.is_active() && self.balanced().is_some()
    }

    /// The link for a new connection: the one that has fewer.
    pub fn balanced(&self) -> Option<usize> {
        let usable = (0..self.links.len()).filter(|i| self.links[*i].is_usable());
        usable.min_by_key(|i| self.links[*i].users)
    }

    /// A link that is left when this one is down.
    pub fn other_than(&self, link: usize) -> Option<usize> {
        (0..self.links.len()).find(|i| *i != link && self.links[*i].is_usable())
    }

    /// A connection is agreed upon: the memory of the peer's ring on this link.
    pub fn note_peer_key(&mut self, link: usize, end: &Endpoint) {
        self.with_machine(|m| m.note_peer_key(link, end.rkey, end.rmb_address));
    }

    /// A connection joins; false if there is no room for it.
    pub fn join(&mut self) -> bool {
        self.machine.as_mut().is_some_and(|m| m.connection_opened().is_ok())
    }

    /// A connection that had joined leaves.
    pub fn leave(&mut self, now: Time) {
        if let Some(m) = &mut self.machine {
            m.connection_closed(now);
        }
    }

    /// An LLC message came by a link; None: one that cannot be read.
    pub fn handle_llc(&mut self, devices: &[Device], link: usize, now: Time, message: Option<(Family, Message)>) {
        self.hear_farewell(message.as_ref().map(|(_, m)| m), now);
        if let Some(m) = &mut self.machine {
            let _ = m.handle_message(now, link, message);
        }
        self.run(devices, now);
    }

    /// A message came by a link: it is alive.
    pub fn handle_arrival(&mut self, link: usize, now: Time) {
        if let Some(m) = &mut self.machine {
            m.handle_arrival(now, link);
        }
    }

    /// A message was sent by a link.
    pub fn completed(&mut self, devices: &[Device], link: usize, room: u32) {
        if self.links[link].completed(room) {
            self.ready(link);
            self.run(devices, lock::now());
        }
    }

    pub(super) fn ready(&mut self, link: usize) {
        self.links[link].ready();
        self.is_ready = true;
        log::info!(target: "smcr::link", link, "link ready");
    }

    /// Whether a completion is waited for that nobody else may be waiting for.
    pub fn is_confirming(&self) -> bool {
        self.over.is_none() && self.links.iter().any(Link::is_confirming)
    }

    /// A queue pair failed.
    pub fn fail(&mut self, devices: &[Device], link: usize, now: Time) {
        if self.over.is_some() || self.links[link].is_down {
            return;
        }
        self.put_down(devices, link);
        match &mut self.machine {
            Some(m) => m.handle_link_down(link),
            None => self.over = Some(now),
        }
        self.run(devices, now);
    }

    pub(super) fn put_down(&mut self, devices: &[Device], link: usize) {
        if let Some(l) = self.links.get_mut(link) {
            l.put_down(&devices[l.device]);
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, devices: &[Device], now: Time) {
        if let Some(m) = &mut self.machine
            && m.poll_timeout().is_some_and(|at| at <= now)
        {
            m.handle_timeout(now);
            self.run(devices, now);
        }
        for link in 0..self.links.len() {
            if self.over.is_none() && self.links[link].stuck_at(self.ours).is_some_and(|at| at <= now) {
                log::warn!(target: "smcr::link", link, "the peer takes nothing: the link is given up");
                self.fail(devices, link, now);
            }
        }
    }

    /// When to call [`Group::tick`].
    pub fn timeout(&self) -> Option<Time> {
        let stuck = self.links.iter().filter_map(|l| l.stuck_at(self.ours)).filter(|_| self.over.is_none());
        let timer = self.machine.as_ref().and_then(|m| m.poll_timeout());
        let asked = self.links.iter().filter_map(|l| l.questions.due());
        stuck.chain(timer).chain(asked).min()
    }

    /// Whether the peer, or its network card, is to answer within a time that counts.
    pub fn awaits(&self) -> bool {
        self.over.is_none() && (self.links.iter().any(Link::awaits) || self.machine.as_ref().is_some_and(|m| m.awaits_answer()))
    }

    /// Whether something has gone out within the last second: more will, and who sends it need not call the service thread.
    pub fn is_busy(&self, now: Time) -> bool {
        self.over.is_none() && self.links.iter().any(|l| l.is_busy(now))
    }

    /// Does what the machine asks for, and sends what it has to say.
    pub fn run(&mut self, devices: &[Device], now: Time) {
        loop {
            while let Some(event) = self.machine.as_mut().and_then(|m| m.poll_event()) {
                self.on_event(devices, event, now);
            }
            if !self.say_next() {
                break;
            }
            self.flush();
        }
        while let Some(event) = self.machine.as_mut().and_then(|m| m.poll_event()) {
            self.on_event(devices, event, now);
        }
        self.announce_new(now);
        while self.say_next() {}
        self.flush();
    }

    /// Hands the machine's next message to its link; false if there is none.
    fn say_next(&mut self) -> bool {
        let Some((link, frame)) = self.machine.as_mut().and_then(|m| m.poll_transmit()) else { return false };
        if let Some(l) = self.links.get_mut(link) {
            l.say(frame);
        }
        true
    }

    fn on_event(&mut self, devices: &[Device], event: Event, now: Time) {
        match event {
            Event::RaiseToRts { link } => {
                let l = &mut self.links[link];
                if l.raise(&devices[l.device]).is_err() {
                    match &mut self.machine {
                        Some(m) if self.is_ready => m.handle_link_down(link),
                        _ => self.over = Some(now),
                    }
                }
            }
            Event::Ready => self.confirmed(0),
            Event::LinkReady { link } => self.confirmed(link),
            Event::ConfirmFailed => self.over = Some(now),
            Event::SecondLinkDue if self.ours => {
                self.tried.clear();
                self.call_for(Second::Offer);
            }
            // Where the kernel is the peer there is one link.
            Event::SecondLinkDue => self.with_machine(machine::Group::forgo_link),
            Event::LinkOffered(offer) if self.ours => self.call_for(Second::Answer(Box::new(offer))),
            Event::LinkOffered(_) => self.with_machine(machine::Group::reject_link),
            Event::LinkAccepted { link, answer } => self.second_accepted(devices, link, &answer),
            Event::LinkGone { link } => self.drop_second(devices, link),
            Event::LinkDown { link, to } => {
                log::warn!(target: "smcr::link", link, to, "a link is down, its connections go on over the other");
                self.put_down(devices, link);
            }
            Event::RkeysDeleted { link, keys } => {
                self.withdrawn.extend(keys.iter().map(|key| (link, *key)));
            }
            Event::FlowDone { .. } => self.announce_next(now),
            Event::Terminated { by_peer, reason } => {
                log::info!(target: "smcr::link", by_peer, reason = reason.0, "link group over");
                if !by_peer {
                    self.await_farewell();
                }
                self.over.get_or_insert(now);
            }
        }
    }

    /// A link was confirmed. A client's is ready when its answer has arrived: where RoCE passes one way only the server
    /// hears nothing, and declines. So it does where the card has not taken the answer, and the link is given up (`Link::flush`).
    fn confirmed(&mut self, link: usize) {
        if self.role == Role::Server {
            self.ready(link);
        } else {
            self.links[link].confirm_by_last();
        }
    }

    pub(super) fn with_machine(&mut self, f: impl FnOnce(&mut machine::Group)) {
        if let Some(m) = &mut self.machine {
            f(m);
        }
    }

    pub(super) fn call_for(&mut self, what: Second) {
        self.second = Some(what);
        lock::call_service();
    }

    /// Asks for a sign of life by a link; the queue pair fails if there is nobody to take it. Once, however many connections
    /// have a reason to ask.
    pub fn probe(&mut self, link: usize) {
        let process = self.ours;
        if let Some((family, l)) = self.in_use(link)
            && l.note_probe(process)
        {
            l.test(family, [0; 16]);
        }
    }

    /// Asks a peer by a link for an answer behind what it has to send. Its number; None: one is on its way already.
    pub fn ask(&mut self, link: usize) -> Option<u128> {
        let (family, l) = self.in_use(link)?;
        let number = l.questions.next(lock::now())?;
        l.test(family, number.to_be_bytes());
        Some(number)
    }

    /// A link that carries messages, and how they are written.
    fn in_use(&mut self, link: usize) -> Option<(Family, &mut Link)> {
        let (_, family) = self.peer.filter(|_| self.is_ready && self.over.is_none())?;
        Some((family, self.links.get_mut(link).filter(|l| !l.is_down)?))
    }

    /// Sends LLC messages that waited for a slot.
    pub fn flush(&mut self) {
        self.links.iter_mut().filter(|l| !l.is_down).for_each(Link::flush);
    }

    /// Whether LLC messages or completions are still on their way.
    pub fn is_quiet(&self) -> bool {
        self.links.iter().all(Link::is_quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{rig, state::State};

    #[test]
    fn a_client_whose_answer_the_card_does_not_take_has_no_link() {
        for role in [Role::Client, Role::Server] {
            let mut all = State::EMPTY;
            let place = rig::group(&mut all, role, 1);
            let group = all.groups[place].as_mut().unwrap();
            (group.is_ready, group.links[0].is_ready) = (false, false);
            group.links[0].say(Default::default());
            group.flush();
            group.confirmed(0);
            assert_eq!(group.is_ready, role == Role::Server);
            assert_eq!(group.timeout(), Some(Time::ZERO), "the link is given up");
        }
    }
}
