//! The CLC handshake: how two ends that agreed on SMC in the TCP handshake come to an SMC-R
//! connection, or back to plain TCP.
//!
//! [`client::Client`] and [`server::Server`] take the bytes of the TCP stream, the decisions of
//! their driver and the time, and give messages to send, questions to decide and in the end one
//! [`Outcome`]. Neither blocks: any number of handshakes run beside each other. The rules are those
//! of RFC 7609 section 3 and of Linux `net/smc/af_smc.c`.
//!
//! The order of calls is the same for both: after each `handle_*` or command, `poll_event` until
//! `None`, then `poll_transmit` until `None`, then look at `outcome` and `poll_timeout`.

pub mod client;
pub mod server;
mod wire;

use super::Time;
use super::clc::accept::{AcceptConfirm, Endpoint};
use super::clc::proposal::{Limits, Release};
use super::diagnosis::Diagnosis;
use super::error::WireError;
use super::id::{Eid, Mtu};
use super::llc::Family;
use crate::reason::Reason;

/// How long a server waits for a Proposal, and for the rest of what has begun (Linux: CLC_WAIT_TIME).
pub const MESSAGE_TIMEOUT: Time = Time::from_secs(6);
/// How long it waits for a Confirm to begin. A Linux client takes Accepts one after the other, and 5 s for each first contact that comes to
/// nothing; once it has sent Confirm for a link that is there it looks at TCP no more, and a reset leaves it waiting for ever.
pub const CONFIRM_TIMEOUT: Time = Time::from_secs(60);
/// How long a client waits for Accept. A Linux server makes its first contacts one after the other,
/// 5 s each where RoCE does not get through; its own clients give up after 6 s.
pub const ACCEPT_TIMEOUT: Time = Time::from_secs(30);
/// How long a server whose link did not come up looks for a Decline before it sends its own. A Linux
/// client that has seen the link come up waits for Add Link, and looks for a Decline 2 to 3 s
/// after that; its own Decline comes after 5 s.
pub const DECLINE_TIMEOUT_SERVER: Time = Time::from_millis(300);
/// The same for a client, after the 4 s that the link had. A Linux server sends its Decline 5 s after
/// Confirm: 2 s for the link, 1 s for a Decline, 2 s for a Delete Link that nobody takes. A Decline
/// that crosses it would be read as the program's bytes.
pub const DECLINE_TIMEOUT_CLIENT: Time = Time::from_secs(8);

/// Which end of a connection, and of a link group: the client called connect().
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

/// What both ends have agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// This end's role.
    pub role: Role,
    /// Version and what it brings.
    pub version: Agreed,
    /// The link group is new: its link has to be confirmed.
    pub first_contact: bool,
    /// What this end sent.
    pub local: Endpoint,
    /// The peer's end, with GID, MAC and peer ID from where Linux takes them.
    pub peer: Endpoint,
    /// The path MTU: the smaller of both ends'.
    pub mtu: Mtu,
}

/// The version that was agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agreed {
    /// SMC-Rv1.
    V1,
    /// SMC-Rv2.
    V2 {
        /// The common EID.
        eid: Eid,
        /// First contact: release and limits; else those of the link group go on.
        release: Option<Release>,
        /// First contact: the peer says that no gateway lies between the ends.
        direct: bool,
    },
}

impl Agreed {
    /// The family of LLC messages that goes with it.
    pub const fn family(&self) -> Family {
        match self {
            Agreed::V1 => Family::V1,
            Agreed::V2 { .. } => Family::V2,
        }
    }

    /// The limits of release 2.1, if it was agreed on now.
    pub const fn limits(&self) -> Option<Limits> {
        match self {
            Agreed::V2 { release: Some(Release::V21(limits)), .. } => Some(*limits),
            _ => None,
        }
    }
}

/// How a handshake ends.
// One per handshake; there is no allocator to box it with.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The connection is SMC-R; the TCP connection carries no more bytes.
    Smc(Params),
    /// Both ends go on with TCP.
    Fallback(Fallback),
    /// The connection cannot be used at all: the ends may disagree about what the stream carries.
    Fail(Failure),
}

/// Why both ends are on TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The code that was sent or received.
    pub code: Diagnosis,
    /// The peer sent the Decline.
    pub by_peer: bool,
    /// The link group that this connection was to join has to end.
    pub end_group: bool,
}

impl Fallback {
    /// The reason to show: "the peer declined" if it did, else the number of the code, if it has
    /// one of its own.
    pub const fn reason(&self) -> Option<Reason> {
        if self.by_peer { Diagnosis::PEER_DECLINED.reason() } else { self.code.reason() }
    }
}

/// Why a connection has to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Nothing came in time (a client's connect(): ETIMEDOUT).
    Timeout,
    /// What came is not what the protocol says (EPROTO).
    Protocol(WireError),
    /// A message came that is not due now (EPROTO).
    Unexpected,
    /// The TCP connection ended (ECONNRESET).
    Closed,
}

/// What a host says of itself on first contact in version 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Operating system, 0..=15: 2 is Linux.
    pub os: u8,
    /// Its name, padded with spaces.
    pub name: [u8; 32],
}

impl Host {
    /// A Linux host of this name, cut to 32 bytes.
    pub fn linux(name: &str) -> Host {
        let mut padded = [b' '; 32];
        for (place, byte) in padded.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        Host { os: 2, name: padded }
    }
}

/// Builds the parameters; `peer_message` is the Accept or Confirm that the peer sent, `own` what this end has named for a first contact:
/// a feature is agreed on where both ends have.
fn params(role: Role, local: Endpoint, peer: Endpoint, peer_message: &AcceptConfirm, own: Release) -> Params {
    use super::clc::accept::Form;
    let version = match peer_message.form {
        Form::V1 { .. } => Agreed::V1,
        Form::V2 { eid, first_contact } => {
            Agreed::V2 { eid, release: first_contact.map(|f| f.release.with_features_of(own)), direct: first_contact.is_some_and(|f| f.direct) }
        }
    };
    let first_contact = peer_message.first_contact();
    Params { role, version, first_contact, local, peer, mtu: local.mtu.min(peer.mtu) }
}
