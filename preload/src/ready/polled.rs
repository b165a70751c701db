//! What a poll asks of the kernel's socket of a member in memory, and what the answer means.
//!
//! Called by `poll` around its sleep.

use crate::engine::bell::Kind;
use crate::engine::{debt, kernel};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use libc::pollfd;
use std::sync::atomic::Ordering::*;

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
        if p.events & (libc::POLLIN | libc::POLLRDNORM) != 0 {
            events |= libc::POLLIN;
        }
    }
    if !s.tx_in_memory() {
        events |= p.events & (libc::POLLOUT | libc::POLLWRNORM);
    }
    events
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
