//! What stands first in the stream: a greeting, the program's bytes where one was expected, or what comes late.

use super::about::names;
use super::{Machine, Shake};
use crate::link::group::Group;
use crate::link::lock::{self, now};
use crate::link::state::State;
use crate::rendezvous::smc::stream;
use crate::sys::Errno;
use smcr_proto::handshake::HELLO;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::decline::{Decline, LEN_V1, LEN_V2};
use smcr_proto::smc::clc::{HEADER_LEN, Header, Kind, MAX_LEN, SMCR};
use smcr_proto::smc::diagnosis::Diagnosis;

/// What may come late: when its time was over, it was on its way perhaps, or the peer had been stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Late {
    Nothing,
    Greeting,
    Proposal,
    Decline,
}

/// What comes late comes whole; a part of it that stays one for so long is a stranger's, and the program's.
const REST: Time = Time::from_secs(2);

/// How long the card may take to hear that a message has arrived, where TCP has ended: it repeats one after 134 ms.
const LAST: Time = Time::from_secs(1);

impl Shake {
    /// While the link comes up a peer with libsmcr says nothing, unless it has given the link up.
    pub(super) fn hear_in_between(&mut self) {
        let mut first = [0];
        match stream::receive(self.fd, &mut first, libc::MSG_PEEK) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
            Ok(n) if n > 0 => {
                self.awaits_link = false;
                self.come_back();
            }
            _ => self.hear_end(),
        }
    }

    /// TCP has ended.
    pub(super) fn hear_end(&mut self) {
        if self.awaits_link {
            // What has come by the link counts: a peer that has said all by it, a kernel as well, may be gone by now.
            lock::with(|all| all.poll_all());
            self.look_at_link();
            if self.may_be_up() && now() < *self.ended.get_or_insert_with(|| now() + LAST) {
                return;
            }
        }
        match &mut self.machine {
            Machine::Client(m) => m.handle_eof(),
            Machine::Server(m) => m.handle_eof(),
            _ => {}
        }
    }

    /// Client: the link is up at the server, if it has the answer to Confirm Link, of which the card has yet to hear.
    fn may_be_up(&self) -> bool {
        let group = |all: &mut State| all.groups.get(self.group?)?.as_ref().map(Group::is_confirming);
        self.awaits_link && lock::with(group).flatten() == Some(true)
    }

    /// Whether a client with libsmcr has begun with something else than CLC.
    pub(super) fn is_plain(&self) -> bool {
        let fresh = matches!(self.machine, Machine::Server(_)) && self.received == 0;
        if !fresh || !self.is_ours() {
            return false;
        }
        let mut first = SMCR;
        let n = stream::receive(self.fd, &mut first, libc::MSG_PEEK).unwrap_or(0);
        first[..n] != SMCR[..n]
    }

    /// Server, before the greeting: whether the client has waited in vain and is on TCP. It may have ended there, and a greeting that
    /// nobody reads would be answered by a reset, after which its end is none, and what is still on its way is lost.
    pub(super) fn has_gone_on(&self) -> bool {
        let mut first = SMCR;
        match stream::receive(self.fd, &mut first, libc::MSG_PEEK) {
            Ok(n) => n == 0 || first[..n] != SMCR[..n],
            Err(_) => false,
        }
    }

    /// Looks for the greeting without taking anything else.
    pub(super) fn read_greeting(&mut self) {
        match self.take_first(&HELLO, HELLO.len()) {
            First::NotYet | First::Part => {}
            First::Taken => self.propose(),
            // A listener that was marked once and is somebody else's now.
            First::Other => self.fall_back(Reason::SmcPeerNoSmc),
        }
    }

    /// On TCP already: takes what comes late, if it does, before the program reads.
    pub(super) fn read_late(&mut self) {
        let first = match self.late {
            Late::Nothing => return,
            Late::Greeting => match self.take_first(&HELLO, HELLO.len()) {
                First::Taken => {
                    // And then the server may have gone on without this end.
                    self.late = Late::Decline;
                    return self.read_late();
                }
                first => first,
            },
            Late::Proposal => self.take_proposal(),
            // A kernel's is of the version that was proposed.
            Late::Decline => match self.take_first(&decline(LEN_V1), LEN_V1) {
                First::Other => self.take_first(&decline(LEN_V2), LEN_V2),
                first => first,
            },
        };
        let rest = match first {
            First::Part => Some(self.rest_until.unwrap_or(now() + REST)),
            _ => None,
        };
        self.rest_until = rest;
        if !matches!(first, First::NotYet) && rest.is_none_or(|until| until <= now()) {
            (self.late, self.rest_until) = (Late::Nothing, None);
        }
    }

    /// A server that has greeted a client and has heard nothing goes on over TCP. The client, if it was stopped, reads first that
    /// it is declined; what it has proposed meanwhile is not for the program.
    pub(super) fn go_on_without(&mut self) {
        if self.late != Late::Proposal {
            self.late = Late::Proposal;
            let decline = Decline::new(names().0, Diagnosis::TIMEOUT_CONFIRM_LINK);
            return self.out.extend_from_slice(&decline.emit());
        }
        self.fall_back(Reason::PeerSilent);
    }

    /// Takes a Proposal, or a Decline that has crossed ours, if one stands first: its header says how long it is.
    fn take_proposal(&mut self) -> First {
        let mut header = [0; HEADER_LEN];
        let n = match stream::receive(self.fd, &mut header, libc::MSG_PEEK) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return First::NotYet,
            other => other.unwrap_or(0),
        };
        let seen = n.min(SMCR.len());
        if n == 0 || header[..seen] != SMCR[..seen] {
            return First::Other;
        }
        if n < HEADER_LEN {
            return First::Part;
        }
        match Header::parse(&header) {
            Ok(h) if matches!(h.kind, Kind::Proposal | Kind::Decline) && usize::from(h.length) <= MAX_LEN => {
                self.take_first(&header, usize::from(h.length))
            }
            _ => First::Other,
        }
    }

    /// Takes the first `len` bytes of the stream if they begin like this.
    fn take_first(&mut self, begin: &[u8], len: usize) -> First {
        let mut buf = [0u8; MAX_LEN];
        let n = match stream::receive(self.fd, &mut buf[..len], libc::MSG_PEEK) {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return First::NotYet,
            other => other.unwrap_or(0),
        };
        let seen = n.min(begin.len());
        if n == 0 || buf[..seen] != begin[..seen] {
            return First::Other;
        }
        if n < len {
            return First::Part;
        }
        if stream::receive(self.fd, &mut buf[..len], 0) == Ok(len) {
            self.received += len as u64;
        }
        First::Taken
    }
}

/// What stands first in the stream.
enum First {
    NotYet,
    /// What has come begins as that does.
    Part,
    Taken,
    Other,
}

/// How a Decline of this length begins: its header but for the last byte.
const fn decline(len: usize) -> [u8; 7] {
    let [e0, e1, e2, e3] = SMCR;
    [e0, e1, e2, e3, Kind::Decline as u8, 0, len as u8]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::sock::Sock;
    use crate::link::rig;
    use crate::link::slot::Id;
    use crate::sys::fd;
    use smcr_proto::handshake::Peer;
    use smcr_proto::smc::clc::Frame;
    use smcr_proto::smc::clc::proposal::{Limits, OfferV2, Proposal, Release};
    use smcr_proto::smc::handshake::client::Client;
    use smcr_proto::smc::handshake::server::{Offer, Server};
    use smcr_proto::smc::handshake::{CONFIRM_TIMEOUT, Failure, Outcome, Role};
    use smcr_proto::smc::id::{Eid, RmbeSize};
    use smcr_proto::smc::list::List;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering::Relaxed;

    /// A server that has accepted, its client, and that one's Confirm.
    fn accepted(first_contact: bool) -> (Server, Client, Frame) {
        let pass = |frame: Frame, take: &mut dyn FnMut(&[u8]) -> usize| {
            let mut at = 0;
            while at < frame.len() {
                at += take(&frame[at..]);
            }
        };
        let ((id, host), end) = (names(), rig::peer(1));
        let limits = Limits { max_conns: 255, max_links: 1, features: 0 };
        let eids = List::of(&[Eid::new("RIG").unwrap()]);
        let v2 = Some(OfferV2 { gid: end.gid, release: Release::V21(limits), eids });
        let proposal = Proposal { peer_id: end.peer_id, gid: end.gid, mac: end.mac, v1: None, v2 };
        let mut client = Client::new(now(), proposal, host);
        let mut server = Server::new(now(), id, Ok(Offer { v1: None, v2: Some((eids, limits)) }), host);
        pass(client.poll_transmit().unwrap(), &mut |bytes| server.handle_bytes(bytes));
        assert!(server.poll_event().is_some());
        server.accept(now(), rig::peer(2), first_contact, true);
        pass(server.poll_transmit().unwrap(), &mut |bytes| client.handle_bytes(bytes));
        assert!(client.poll_event().is_some());
        client.confirm(end, true);
        let confirm = client.poll_transmit().unwrap();
        (server, client, confirm)
    }

    /// The end of a TCP connection whose other one has gone.
    fn ended() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = listener.accept().unwrap().0;
        drop(theirs);
        let mut p = [libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(fd::poll(&mut p, 10_000), Ok(1));
        ours
    }

    #[test]
    fn declines_that_have_crossed_are_not_for_the_program() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = listener.accept().unwrap().0;
        let mut shake = awaiting(&ours, Machine::Over, None);
        shake.go_on_without();
        theirs.write_all(&Decline::new(names().0, Diagnosis::TIMEOUT_CONFIRM_LINK).emit()).unwrap();
        theirs.write_all(b"payload").unwrap();
        let mut p = [libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(fd::poll(&mut p, 10_000), Ok(1));
        shake.read_late();
        let mut buf = [0u8; 64];
        assert_eq!((&ours).read(&mut buf).map(|n| buf[..n].to_vec()).unwrap(), b"payload");
    }

    /// A handshake that waits for the link of its group.
    fn awaiting(tcp: &TcpStream, machine: Machine, group: Option<usize>) -> Shake {
        let mut shake = Shake::bare(rig::record(), tcp.as_raw_fd(), None, RmbeSize::MIN, Peer::Smc, None);
        (shake.machine, shake.awaits_link, shake.group) = (machine, true, group);
        shake
    }

    fn outcome(shake: &Shake) -> Option<Outcome> {
        match &shake.machine {
            Machine::Client(client) => client.outcome(),
            Machine::Server(server) => server.outcome(),
            _ => panic!("it is over"),
        }
    }

    /// Or it has ended with TCP.
    fn has_connected(shake: &Shake) -> bool {
        match outcome(shake) {
            Some(Outcome::Smc(_)) => true,
            Some(Outcome::Fail(Failure::Closed)) => false,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_kernel_that_has_said_all_by_its_new_link_and_has_ended_tcp_was_connected() {
        for is_ready in [true, false] {
            let tcp = ended();
            let place = lock::with(|all| {
                let place = rig::group(all, Role::Server, 1);
                all.groups[place].as_mut().unwrap().is_ready = is_ready;
                place
            });
            let (mut server, _, confirm) = accepted(true);
            assert_eq!(server.handle_bytes(&confirm[..HEADER_LEN]) + server.handle_bytes(&confirm[HEADER_LEN..]), confirm.len());
            assert!(server.poll_event().is_some());
            let mut shake = awaiting(&tcp, Machine::Server(server), place);
            shake.read();
            assert_eq!(has_connected(&shake), is_ready, "nobody has seen that the link is there");
            lock::with(|all| all.groups[place.unwrap()] = None);
        }
    }

    #[test]
    fn a_client_hears_from_its_card_whether_a_server_that_has_ended_tcp_was_there() {
        for arrives in [true, false] {
            let tcp = ended();
            let place = lock::with(|all| {
                let place = rig::group(all, Role::Client, 1);
                let group = all.groups[place].as_mut().unwrap();
                group.is_ready = false;
                group.links[0].answers();
                place
            });
            let (_, mut client, _) = accepted(true);
            assert!(client.poll_event().is_some());
            let mut shake = awaiting(&tcp, Machine::Client(client), place);
            shake.read();
            assert_eq!((outcome(&shake), shake.wants().events), (None, 0), "the card has not said so yet");
            if arrives {
                lock::with(|all| all.groups[place.unwrap()].as_mut().unwrap().completed(&[], 0, 0));
            } else {
                shake.ended = Some(now());
            }
            shake.read();
            assert_eq!(has_connected(&shake), arrives);
            lock::with(|all| all.groups[place.unwrap()] = None);
        }
    }

    /// A link group of one connection.
    fn connected(role: Role) -> (usize, Id, &'static Sock) {
        lock::with(|all| {
            let place = rig::group(all, role, 1);
            let id = rig::connection(all, place);
            (place, id, rig::slot(all, id).sock().unwrap())
        })
        .unwrap()
    }

    /// All of it is read, its header first.
    fn decline(peer: u32, why: Diagnosis, mut read: impl FnMut(&[u8]) -> usize) {
        let said = Decline::new(rig::peer(peer).peer_id, why).emit();
        assert_eq!(read(&said[..HEADER_LEN]) + read(&said[HEADER_LEN..]), said.len());
    }

    #[test]
    fn a_ring_that_a_client_may_have_confirmed_is_nobody_elses() {
        for is_declined in [false, true] {
            let tcp = ended();
            let (place, id, s) = connected(Role::Server);
            let (mut server, ..) = accepted(false);
            if is_declined {
                decline(1, Diagnosis::MEMORY, |bytes| server.handle_bytes(bytes));
            } else {
                server.handle_timeout(now() + CONFIRM_TIMEOUT);
            }
            let mut shake = Shake::bare(s, tcp.as_raw_fd(), Some(id), RmbeSize::MIN, Peer::Smc, None);
            (shake.machine, shake.group) = (Machine::Server(server), Some(place));
            s.generation.store(1, Relaxed); // the program has closed it meanwhile
            assert!(shake.finish());
            let spoilt = lock::with(|all| all.groups[place].take().unwrap().spoilt);
            assert_eq!(spoilt, Some(u32::from(!is_declined)));
        }
    }

    #[test]
    fn the_code_by_which_the_peer_declines_is_kept() {
        for by_peer in [true, false] {
            let tcp = ended();
            let (place, id, s) = connected(Role::Client);
            let client = if by_peer {
                let (_, mut client, _) = accepted(true);
                decline(2, Diagnosis(0x0303_0042), |bytes| client.handle_bytes(bytes));
                client
            } else {
                let (id, host) = names();
                let mut client = Client::refusing(id, Diagnosis::MEMORY, host);
                assert!(client.poll_transmit().is_some());
                client
            };
            let mut shake = Shake::bare(s, tcp.as_raw_fd(), Some(id), RmbeSize::MIN, Peer::Smc, None);
            shake.machine = Machine::Client(client);
            shake.finish();
            let kept = (s.reason.load(Relaxed), s.peer_diagnosis.load(Relaxed));
            assert_eq!(kept, if by_peer { (Reason::SmcDeclined.code(), 0x0303_0042) } else { (Reason::SmcMemory.code(), 0) });
            lock::with(|all| {
                all.release(id.index);
                all.groups[place] = None;
            });
        }
    }
}
