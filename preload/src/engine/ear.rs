//! The ears of a waiter: what peers of other users wake it by, beside its own eventfd (`transport::wakes`).
//!
//! A thread listens while it sleeps to those of the connections it waits for (`wait`, `ready::poll`); an epoll set has the ears of
//! its waiter among what the kernel reports, under data words that name the peer.

use crate::family::sock::Sock;
use crate::sys::fd;
use crate::transport::peers;
use crate::transport::waiters::Waiter;
use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLRDHUP, epoll_event};
use std::sync::atomic::Ordering::*;

/// Data words of ears; the last 16 bits are the peer's slot + 1.
const WORD: u64 = 0x7f53_4d43_4541_0000;
const SLOT: u64 = 0xffff;

/// The ear for a connection's peer; -1: the eventfd serves.
pub fn of(s: &Sock, w: Waiter) -> i32 {
    if s.is_linked() { -1 } else { peers::get(s.peer.load(Relaxed)).map_or(-1, |p| p.ear(w)) }
}

/// Takes what it has heard.
pub fn hear(s: &Sock, w: Waiter) {
    if let Some(p) = peers::get(s.peer.load(Relaxed)) {
        p.hear(w);
    }
}

/// Puts ears of an epoll set's waiter into the kernel's set that are not there; `known` is what [`Waiter::ears`] was
/// the last time.
#[inline]
pub fn join(epfd: i32, w: Waiter, known: &mut u32) {
    let now = w.ears();
    if now != *known {
        *known = now;
        join_all(epfd, w);
    }
}

#[cold]
fn join_all(epfd: i32, w: Waiter) {
    for (slot, ear) in peers::ears_of(w) {
        let e = epoll_event { events: (EPOLLIN | EPOLLRDHUP | EPOLLET) as u32, u64: WORD | u64::from(slot) };
        match fd::epoll_ctl(epfd, EPOLL_CTL_ADD, ear.fd(), Some(e)) {
            Err(e) if e.0 != libc::EEXIST => {
                // Nobody would hear it: the doorbell byte is left.
                peers::get(slot).into_iter().for_each(|p| p.close_ear(w));
            }
            _ => {}
        }
    }
}

/// Whether the kernel's event is an ear's: then it was heard.
#[inline]
pub fn is_heard(data: u64, w: Option<Waiter>) -> bool {
    if data & !SLOT != WORD {
        return false;
    }
    if let (Some(p), Some(w)) = (peers::get((data & SLOT) as u32), w) {
        p.hear(w);
    }
    true
}
