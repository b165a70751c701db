//! What a handshake says of this process and its host, and which RoCE port belongs to a connection.

use crate::link::lock;
use crate::sys::{Errno, net};
use crate::verbs::port::{self, Port};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::Host;
use smcr_proto::smc::id::PeerId;

/// What this process says of itself.
pub fn names() -> (PeerId, Host) {
    (own_id(), host())
}

fn own_id() -> PeerId {
    lock::with(|all| all.peer_id().ok()).flatten().unwrap_or_default()
}

fn host() -> Host {
    let mut name = [0u8; 65];
    // SAFETY: the struct is filled by the call; an all-zero one is valid.
    unsafe {
        let mut u: libc::utsname = std::mem::zeroed();
        if libc::uname(&mut u) == 0 {
            for (to, from) in name.iter_mut().zip(u.nodename) {
                *to = from as u8;
            }
        }
    }
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Host::linux(std::str::from_utf8(&name[..end]).unwrap_or("localhost"))
}

/// What a peer is told where no device or link can be had.
pub(super) fn no_device(e: Errno) -> Diagnosis {
    match e.0 {
        libc::EMFILE | libc::ENFILE | libc::ENOMEM => Diagnosis::MEMORY,
        _ => Diagnosis::NO_SMCR_DEVICE,
    }
}

/// The RoCE port for the source address of a connection.
pub(super) fn find_port(sock: i32) -> Option<Port> {
    let local = net::local_addr(sock).ok()?.folded();
    if i32::from(local.family) != libc::AF_INET {
        return None;
    }
    port::find([local.ip[0], local.ip[1], local.ip[2], local.ip[3]])
}
