//! TCP_DEFER_ACCEPT of a listener that shows the SMC option; [`super::mark`], `table::life` and `table::options` call it.
//!
//! With it the kernel gives a connection to accept() when the client has said something. A client with libsmcr says nothing before it
//! has been greeted, and it is greeted when it has been accepted. So the kernel's listener does not defer while it is
//! marked: accept() has the connection at once, as the kernel's own SMC does where accept() does not wait. The program reads the value that it has set, and a
//! listener that leaves the library defers again.

use crate::family::sock::{Sock, flag, role};
use crate::sys::net;
use libc::{IPPROTO_TCP, TCP_DEFER_ACCEPT};
use std::sync::atomic::Ordering::*;

/// A marked socket listens now, or its program has just set the option: keeps the value, in the kernel's rounding.
pub fn keep(s: &Sock, sock: i32) {
    if !is_marked_listener(s) {
        return;
    }
    let seconds = net::get_opt::<i32>(sock, IPPROTO_TCP, TCP_DEFER_ACCEPT).unwrap_or(0);
    s.owed.store(seconds.max(0) as u64, Relaxed);
    if seconds > 0 {
        let _ = net::set_opt(sock, IPPROTO_TCP, TCP_DEFER_ACCEPT, &0);
    }
}

/// The program's value, in seconds, where the kernel has another.
pub fn value(s: &Sock) -> Option<i32> {
    is_marked_listener(s).then(|| s.owed.load(Relaxed) as i32).filter(|seconds| *seconds > 0)
}

/// The listener was unmarked.
pub fn give_back(s: &Sock, sock: i32) {
    if s.role.load(Relaxed) == role::LISTENER {
        match s.owed.swap(0, Relaxed) as i32 {
            0 => {}
            seconds => drop(net::set_opt(sock, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds)),
        }
    }
}

fn is_marked_listener(s: &Sock) -> bool {
    s.role.load(Relaxed) == role::LISTENER && s.has(flag::MARKED)
}
