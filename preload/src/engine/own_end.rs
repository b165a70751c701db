//! The other end of a connection that this process has with itself. What an end asks of its peer on the way back to TCP is done here for
//! that one: the thread that waits may be the only one, and natively no call of such a program waits for another of its own.
//!
//! Called where the peer is waited for ([`super::take_up`], `rendezvous::handover`) and before a fork (`rendezvous::aside`).

use super::{debt, inside, switch};
use crate::family::sock::Sock;
use crate::family::{self, process};
use crate::sys::net;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::*};

/// Does for the other end of `s` what that is asked for.
#[cold]
pub fn answer(s: &Sock) {
    let Some(t) = of(s) else { return };
    let answer = |sock| {
        if is_at(t, sock) {
            switch::attend(t, sock);
            debt::pay(t, sock);
        }
    };
    inside::by_own_number(t, t.fd.load(Relaxed), || are_ends(s, t), answer);
}

/// Whether this process holds the other end of `s` as well, by its record: not a relative alone. It may have closed it where that can't be seen.
pub fn is_here(s: &Sock) -> bool {
    of(s).is_some()
}

fn of(s: &Sock) -> Option<&'static Sock> {
    let pid = s.peer_pid.load(Relaxed);
    if s.is_linked() || s.region().is_none() || pid != process::pid() && process::number_of(pid).is_none() {
        return None;
    }
    let base = family::base()?;
    let is_held = |t: &Sock| t.is_held_in(process::index());
    (0..family::high()).map(|i| family::sock(base, i)).find(|t| are_ends(s, t) && is_held(t))
}

fn are_ends(s: &Sock, t: &Sock) -> bool {
    let port = |s: &Sock, i: usize| s.names[i].load(Relaxed);
    let is_same = |a: &[AtomicU64; 2], b: &[AtomicU64; 2]| a.iter().zip(b).all(|(a, b)| a.load(Relaxed) == b.load(Relaxed));
    port(s, 1) == port(t, 2) && port(s, 2) == port(t, 1) && t.is_connection() && !t.is_linked() && t.region().is_some()
        // Acquire: as in `is_at`.
        && [s, t].iter().all(|s| s.names[0].load(Acquire) != 0)
        && is_same(&s.local, &t.remote)
        && is_same(&s.remote, &t.local)
        && !std::ptr::eq(s, t)
}

/// Whether the kernel has this connection under this number.
pub fn is_at(s: &Sock, fd: i32) -> bool {
    let (Ok(local), Ok(remote)) = (net::local_addr(fd), net::peer_addr(fd)) else { return false };
    // Acquire: pairs with the Release in `rendezvous::learn_names`, which stores the family last.
    let known = s.names[0].load(Acquire) != 0;
    !known || is_name(&local.folded(), &s.local, &s.names[1]) && is_name(&remote.folded(), &s.remote, &s.names[2])
}

fn is_name(name: &net::Addr, ip: &[AtomicU64; 2], port: &AtomicU16) -> bool {
    let ip = ip.iter().map(|part| part.load(Relaxed).to_ne_bytes());
    name.port == port.load(Relaxed) && ip.eq(name.ip.chunks_exact(8).map(|part| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| part[i])))
}
