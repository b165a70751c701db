//! What stands first in the stream: a greeting, the program's bytes where one was expected, or what comes late.

use super::about::names;
use super::{Machine, Shake};
use crate::link::lock::{self, now};
use crate::rendezvous::smc::stream;
use crate::sys::Errno;
use smcr_proto::handshake::HELLO;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::{HEADER_LEN, Header, Kind, MAX_LEN, SMCR};
use smcr_proto::smc::clc::decline::{Decline, LEN_V1, LEN_V2};
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
            _ => {
                // What has come by the link counts: a peer that has said all by it may be gone by now.
                lock::with(|all| all.poll_all());
                self.look_at_link();
                match &mut self.machine {
                    Machine::Client(m) if self.awaits_link => m.handle_eof(),
                    Machine::Server(m) if self.awaits_link => m.handle_eof(),
                    _ => {}
                }
            }
        }
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

    /// Takes a Proposal, if one stands first: its header says how long it is.
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
            Ok(h) if h.kind == Kind::Proposal && usize::from(h.length) <= MAX_LEN => {
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
