//! What a poll asks of the kernel's socket of a member in memory, and what the answer means.
//!
//! Called by `poll` around its sleep.

use crate::engine::bell::Kind;
use crate::engine::{debt, follow, kernel};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::transport::waiters::Waiter;
use libc::pollfd;
use std::sync::atomic::Ordering::*;

/// A small part of what a peer waits that wants something.
const AGAIN_NS: u64 = 50_000_000;

/// What the kernel is asked of a socket in memory: doorbells and the end; of a direction on TCP, what
/// the program asked.
pub fn events(s: &Sock, p: &pollfd) -> i16 {
    wanted(s, p) | if debt::owes(s) { libc::POLLOUT } else { 0 }
}

fn wanted(s: &Sock, p: &pollfd) -> i16 {
    if !s.rx_in_memory() {
        let out = if s.tx_in_memory() { libc::POLLOUT | libc::POLLWRNORM } else { 0 };
        return p.events & !out;
    }
    let mut events = p.events & libc::POLLPRI;
    // The end was found already: its events would come for ever.
    if s.rx.end.load(Relaxed) == 0 {
        // Also unasked: of a killed peer the kernel may show a FIN alone where TCP would have shown a reset, which poll always tells. Our own
        // SHUT_RD shows the same without an end.
        if !s.has(flag::SHUT_RD) {
            events |= libc::POLLRDHUP;
        }
        if asks_for_input(p) || hears_bytes(s) {
            events |= libc::POLLIN;
        }
    }
    if !s.tx_in_memory() {
        events |= p.events & (libc::POLLOUT | libc::POLLWRNORM);
    }
    events
}

fn asks_for_input(p: &pollfd) -> bool {
    p.events & (libc::POLLIN | libc::POLLRDNORM) != 0
}

/// Whether a peer that wants something of us calls by a byte, which the kernel shows to who asks for input alone. Behind unread payload it
/// shows those for that as well, all the time ([`looks_again`]).
fn hears_bytes(s: &Sock) -> bool {
    is_called_by_bytes(s) && !s.has(flag::SHUT_RD) && s.rx.dir().is_some_and(|dir| !follow::pending(s, dir))
}

fn is_called_by_bytes(s: &Sock) -> bool {
    !s.is_linked() && Waiter::of_word(s.rx.waiter.load(Relaxed)).is_none()
}

/// For an entry that was prepared for a sleep: the ns after which to look again whether the peer wants something, where nothing would tell.
pub fn looks_again(s: &Sock, p: &pollfd) -> Option<u64> {
    let is_deaf = s.rx_in_memory() && !asks_for_input(p) && is_called_by_bytes(s) && !hears_bytes(s);
    is_deaf.then_some(AGAIN_NS)
}

pub fn happened(s: &Sock, sock: i32) {
    debt::pay(s, sock);
    if let Some(dir) = s.rx.dir() {
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.try_take(&marker)
            && s.rx_in_memory()
        {
            kernel::was_called(s, dir, sock, Kind::Thread);
            kernel::look_for_end(s, sock, dir);
        }
    }
}
