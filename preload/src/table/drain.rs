//! Requests of the control page to move connections to TCP (`smcrctl drain`).
//!
//! Called by whichever thread meets the request first, before it sleeps or polls. All connections that
//! are meant are asked first, so that a peer that is stopped costs the patience once and not once for
//! each connection with it.

use super::connections;
use crate::engine::inside;
use crate::family::process;
use crate::family::sock::Sock;
use crate::rendezvous::{self, Back};
use crate::sys::thread::full_fence;
use crate::sys::{clock, fd, net};
use crate::table;
use smcr_proto::control::Target;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Moves the connections that are meant.
pub fn drain(target: Target) {
    let (pid, start) = (process::pid(), process::start_time());
    let mut any = false;
    each(
        |s| !is_drained(s),
        |fd, s| {
            let (local, peer) = ports(s, fd);
            if target.concerns(pid, start, local, peer) {
                any |= rendezvous::ask_back(s, fd, Reason::Drained);
            }
        },
    );
    if !any {
        return;
    }
    let end = clock::now_ns() + rendezvous::PATIENCE_MS * 1_000_000;
    while clock::now_ns() < end {
        let mut waits = false;
        each(is_drained, |fd, s| waits |= rendezvous::follow_back(s, fd) == Back::NotYet);
        if !waits {
            return;
        }
        let _ = fd::poll(&mut [], 1);
    }
    each(is_drained, |fd, s| {
        if rendezvous::follow_back(s, fd) == Back::NotYet {
            rendezvous::read_on(s, fd);
        }
    });
}

/// Does something with each connection that is meant. Another thread may close it meanwhile, and number and record be those of two
/// others at once: what is done to a record would be done with the bytes of a stranger. So the record is visited first, which keeps
/// it, and its socket has a number of ours for as long.
fn each(is_meant: impl Fn(&Sock) -> bool, mut act: impl FnMut(i32, &'static Sock)) {
    for (fd, s) in connections().filter(|(_, s)| is_meant(s)) {
        let Some(visit) = inside::visit(s, &fd) else {
            act(fd, s); // there is no other thread
            continue;
        };
        full_fence(); // either who closes it finds the visit, or we find the number taken away
        let is_there = || table::sock(fd).is_some_and(|now| std::ptr::eq(now, s)) && is_meant(s);
        match fd::another(fd).map(fd::note_own) {
            Ok(own) => {
                if is_there() {
                    act(own, s);
                }
                fd::close(own);
            }
            Err(_) if is_there() => act(fd, s), // no number is left
            Err(_) => {}
        }
        drop(visit);
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
