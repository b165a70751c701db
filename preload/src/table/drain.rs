//! Requests of the control page to move connections to TCP (`smcrctl drain`).
//!
//! Called by whichever thread meets the request first, before it sleeps or polls.

use super::returning;
use crate::family::process;
use crate::family::sock::Sock;
use crate::rendezvous;
use crate::sys::{clock, net};
use smcr_proto::control::Target;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Moves the connections that are meant.
pub fn drain(target: Target) {
    let (pid, start) = (process::pid(), process::start_time());
    let mut any = false;
    returning::each(
        |s| !is_drained(s),
        |fd, s| {
            let (local, peer) = ports(s, fd);
            if target.concerns(pid, start, local, peer) {
                any |= rendezvous::ask_alone(s, fd, Reason::Drained);
            }
        },
    );
    if any {
        returning::await_all(is_drained, clock::now_ns() + rendezvous::PATIENCE_MS * 1_000_000, None);
    }
}

fn is_drained(s: &Sock) -> bool {
    s.reason.load(Relaxed) == Reason::Drained.code()
}

/// Local and peer's port; the kernel is asked if the connection was too young to be looked at.
fn ports(s: &Sock, fd: i32) -> (u16, u16) {
    if s.names[0].load(Acquire) != 0 {
        return (s.names[1].load(Relaxed), s.names[2].load(Relaxed));
    }
    let port = |addr: crate::sys::Res<net::Addr>| addr.map_or(0, |a| a.port);
    (port(net::local_addr(fd)), port(net::peer_addr(fd)))
}
