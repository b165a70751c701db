//! One CLC handshake: feeds the sans-IO machine of `proto` from the TCP descriptor, and does what it asks
//! for with devices, groups and rings ([`join`], [`back`]); a forked child may go on with it ([`will`]).
//!
//! Runs in the service thread; nothing here waits. Towards libsmcr the server speaks first: a greeting
//! ([`smcr_proto::handshake::HELLO`]) that no client answers unasked. When it ends without a link, what the program has sent
//! meanwhile goes through TCP before the program does so itself.

mod about;
mod back;
mod begin;
mod greet;
mod join;
mod refuse;
mod sight;
mod wants;
mod will;

use self::greet::Late;
use self::sight::Sight;
use crate::family::sock::{Sock, role};
use crate::fault::{self, Step as Fault};
use crate::link::lock::{self, now};
use crate::link::slot::Id;
use crate::log;
use crate::rendezvous::smc::blocked::{self, Address, Blocked};
use crate::rendezvous::smc::stream;
use crate::sys::{Errno, fd, net};
use crate::verbs::port::Port;
use smcr_proto::handshake::Peer;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::Frame;
use smcr_proto::smc::clc::proposal::Proposal;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::{self, Client};
use smcr_proto::smc::handshake::server::{self, Server};
use smcr_proto::smc::handshake::{Failure, Outcome};
use smcr_proto::smc::id::RmbeSize;
use std::sync::atomic::Ordering::*;

pub use about::names;
pub use sight::patience;
pub use wants::{Wants, until};

/// A handshake on its way.
pub struct Shake {
    s: &'static Sock,
    generation: u32,
    /// This end has connected. The record may be another socket's by the time that the handshake begins.
    is_client: bool,
    /// The TCP connection, by a descriptor of our own.
    pub fd: i32,
    /// Where the program's bytes are meanwhile. None: with the program, which waits (`refuse`).
    id: Option<Id>,
    size: RmbeSize,
    peer: Peer,
    refusal: Option<(Reason, Diagnosis)>,
    machine: Machine,
    /// The other end's host.
    host: Option<Address>,
    port: Option<Port>,
    group: Option<usize>,
    /// This handshake has made its group.
    made: bool,
    /// Server: what was proposed, while another handshake makes a group with the same peer.
    proposal: Option<(Proposal, server::Choice)>,
    /// Confirm Link is awaited.
    awaits_link: bool,
    /// A new link came up, or did not.
    tried: Option<bool>,
    /// Bytes to be sent.
    out: Vec<u8>,
    /// Bytes of the handshake in each direction.
    sent: u64,
    received: u64,
    /// On TCP: position up to which the program's bytes have gone.
    drained: Option<u64>,
    /// On TCP: the program sends by itself again, and receives by itself.
    sends: bool,
    receives: bool,
    /// Something happened on the descriptor.
    pub is_signalled: bool,
    /// What may still come, late, before anything else.
    late: Late,
    /// Until when the rest of it is waited for, where a part has come.
    rest_until: Option<Time>,
    /// TCP has ended while the link came up: until when the link may tell whether it is there.
    ended: Option<Time>,
    /// The connection is on its way back to TCP, by somebody else.
    gone: bool,
    /// Before it begins.
    sight: Sight,
}

// One at a time in a list of a few.
#[allow(clippy::large_enum_variant)]
enum Machine {
    /// Nothing begun yet.
    Fresh,
    /// A client that waits for the greeting.
    Greeting(Time),
    Client(Client),
    Server(Server),
    Over,
}

impl Shake {
    /// A handshake for a connection that is in memory already.
    pub fn new(s: &'static Sock, fd: i32, id: Id, size: RmbeSize, peer: Peer, refusal: Option<(Reason, Diagnosis)>) -> Shake {
        let shake = Shake::bare(s, fd, Some(id), size, peer, refusal);
        shake.bequeath();
        shake
    }

    fn bare(s: &'static Sock, fd: i32, id: Option<Id>, size: RmbeSize, peer: Peer, refusal: Option<(Reason, Diagnosis)>) -> Shake {
        Shake {
            s,
            generation: s.generation.load(Relaxed),
            is_client: s.role.load(Relaxed) == role::CLIENT,
            fd,
            id,
            size,
            peer,
            refusal,
            machine: Machine::Fresh,
            host: blocked::host(fd),
            port: None,
            group: None,
            made: false,
            proposal: None,
            awaits_link: false,
            tried: None,
            out: Vec::new(),
            sent: 0,
            received: 0,
            drained: None,
            sends: false,
            receives: false,
            is_signalled: true,
            late: Late::Nothing,
            rest_until: None,
            ended: None,
            gone: false,
            sight: Sight::default(),
        }
    }

    /// Goes on as far as it can; true when it is over, and to be ended ([`Shake::end`]).
    pub fn step(&mut self, blocked: &mut Blocked) -> bool {
        self.revoke();
        self.heed(blocked);
        if matches!(self.machine, Machine::Fresh) {
            if !self.is_seen() {
                return false;
            }
            self.start();
        }
        self.read();
        let now = now();
        match &mut self.machine {
            Machine::Greeting(until) if *until <= now => {
                // Perhaps it comes still: it must not be taken for the program's bytes.
                self.late = Late::Greeting;
                self.fall_back(Reason::PeerSilent);
            }
            Machine::Client(m) if m.poll_timeout().is_some_and(|at| at <= now) => m.handle_timeout(now),
            Machine::Server(m) if m.poll_timeout().is_some_and(|at| at <= now) => m.handle_timeout(now),
            _ => {}
        }
        self.look_at_link();
        self.look_at_proposal();
        self.events();
        self.write();
        let over = self.gone || self.finish();
        self.note(blocked);
        if !over {
            self.bequeath();
        }
        over
    }

    /// Gives up what it holds.
    pub fn end(self) {
        if let Some(id) = self.id {
            lock::with(|all| all.end_handshake(id));
            lock::kick(id.index);
        }
        if !self.gone {
            fd::close(self.fd);
        }
    }

    /// Where a link has just failed to come up no other is tried.
    fn heed(&mut self, blocked: &Blocked) {
        let refused = self.refusal.is_some() || self.group.is_some() || self.tried.is_some();
        if refused || !self.host.is_some_and(|host| blocked.has(host, now())) {
            return;
        }
        match &mut self.machine {
            Machine::Fresh => {}
            // A Linux server makes one first contact after the other.
            Machine::Client(m) => m.decline(Diagnosis::TIMEOUT_CONFIRM_LINK, false),
            // The link that it waited for did not come up.
            Machine::Server(m) if self.proposal.take().is_some() => m.decline(Diagnosis::TIMEOUT_CONFIRM_LINK),
            _ => return,
        }
        self.refusal = Some((Reason::SmcTimeoutConfirmLink, Diagnosis::TIMEOUT_CONFIRM_LINK));
    }

    /// Remembers whether a link came up.
    fn note(&mut self, blocked: &mut Blocked) {
        match (self.host, self.tried.take()) {
            (Some(host), Some(true)) => blocked.forget(host),
            (Some(host), Some(false)) => blocked.note(host, now()),
            _ => {}
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self.peer, Peer::Ours { .. })
    }

    fn is_client(&self) -> bool {
        self.is_client
    }

    /// The program's record, unless it is somebody else's by now.
    fn sock(&self) -> Option<&'static Sock> {
        self.is_still()().then_some(self.s)
    }

    /// Whether it is not, to be asked later.
    fn is_still(&self) -> impl Fn() -> bool + Copy + use<> {
        let (s, generation, link) = (self.s, self.generation, self.id.map_or(0, |id| id.index + 1));
        move || link != 0 && s.generation.load(Relaxed) == generation && s.link.load(Relaxed) == link
    }

    /// Takes what belongs to the handshake from the stream, and nothing else.
    fn read(&mut self) {
        loop {
            if self.awaits_link && self.is_ours() {
                return self.hear_in_between();
            }
            let want = match &self.machine {
                Machine::Client(m) => m.want(),
                Machine::Server(m) => m.want(),
                Machine::Greeting(_) => return self.read_greeting(),
                Machine::Over => return self.read_late(),
                _ => 0,
            };
            if self.is_plain() {
                // A client that was not greeted in time has gone on without us.
                return self.fall_back(Reason::PeerSilent);
            }
            let mut buf = [0u8; 1024];
            let want = want.min(buf.len());
            if want == 0 {
                return;
            }
            let got = stream::receive(self.fd, &mut buf[..want], 0);
            match got {
                Ok(n) if n > 0 => {
                    fault::pass(Fault::ClcTaken);
                    self.received += n as u64;
                    match &mut self.machine {
                        Machine::Client(m) => m.handle_bytes(&buf[..n]),
                        Machine::Server(m) => m.handle_bytes(&buf[..n]),
                        _ => 0,
                    };
                }
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
                _ => return self.hear_end(),
            }
            self.events();
        }
    }

    fn write(&mut self) {
        match &mut self.machine {
            Machine::Client(m) => push(&mut self.out, m.poll_transmit()),
            Machine::Server(m) => push(&mut self.out, m.poll_transmit()),
            _ => {}
        }
        while !self.out.is_empty() {
            fault::pass(Fault::ClcSent);
            match stream::send(self.fd, &self.out) {
                Ok(n) => {
                    self.sent += n as u64;
                    self.out.drain(..n);
                }
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
                Err(_) => self.out.clear(), // the end shows when reading
            }
        }
    }

    fn events(&mut self) {
        loop {
            match &mut self.machine {
                Machine::Client(m) => match m.poll_event() {
                    Some(client::Event::Accepted(accept)) => self.accepted(&accept),
                    Some(client::Event::BringUpLink(params)) => self.bring_up(&params),
                    None => return,
                },
                Machine::Server(m) => match m.poll_event() {
                    Some(server::Event::Proposed(proposal, choice)) => {
                        self.proposal = Some((proposal, choice));
                        self.look_at_proposal();
                    }
                    Some(server::Event::BringUpLink(params)) => self.bring_up(&params),
                    None => return,
                },
                _ => return,
            }
        }
    }

    /// Ends it where the machine has: with a link, on TCP, or not at all. True: over.
    fn finish(&mut self) -> bool {
        let outcome = match &self.machine {
            Machine::Client(m) if self.out.is_empty() => m.outcome(),
            Machine::Server(m) if self.out.is_empty() => m.outcome(),
            _ => None,
        };
        match outcome {
            Some(Outcome::Smc(params)) => {
                self.machine = Machine::Over;
                self.link(&params);
                return true;
            }
            Some(Outcome::Fallback(f)) => {
                let own = self.refusal.map(|r| r.0).filter(|_| !f.by_peer);
                log::info!(target: "smcr::link", code = f.code.0, by_peer = f.by_peer, "SMC-R declined");
                if !f.by_peer && f.code == Diagnosis::TIMEOUT_CONFIRM_LINK && self.drained.is_none() {
                    // The peer's own patience may have ended at the same time.
                    self.late = Late::Decline;
                }
                if std::mem::take(&mut self.awaits_link) && f.code == Diagnosis::TIMEOUT_CONFIRM_LINK {
                    self.tried = Some(false);
                }
                if f.end_group
                    && let Some(place) = self.group
                {
                    lock::with(|all| all.end_group(place));
                }
                if !f.by_peer {
                    self.keep_ring_back();
                } else if let Some(s) = self.sock() {
                    s.peer_diagnosis.store(f.code.0, Relaxed);
                }
                self.fall_back(own.or(f.reason()).unwrap_or(Reason::SmcDeclined));
            }
            // It was greeted, and has said nothing.
            Some(Outcome::Fail(Failure::Timeout)) if self.received == 0 && self.is_ours() && self.drained.is_none() => {
                self.go_on_without();
            }
            // TCP has ended: it shows the program how. A Confirm may have been lost with it.
            Some(Outcome::Fail(Failure::Closed)) => {
                self.keep_ring_back();
                self.fall_back(Reason::PeerSilent);
            }
            Some(Outcome::Fail(why)) => {
                log::warn!(target: "smcr::link", why = ?why, "the SMC handshake broke; the connection is reset");
                self.keep_ring_back();
                self.fall_back(Reason::PeerSilent);
                let _ = net::disconnect(self.fd);
            }
            None => {}
        }
        self.drained.is_some() && self.drain()
    }
}

fn push(out: &mut Vec<u8>, frame: Option<Frame>) {
    if let Some(frame) = frame {
        out.extend_from_slice(&frame);
    }
}
