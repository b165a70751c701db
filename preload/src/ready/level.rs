//! What is ready now on a socket that has a direction in memory: the level, as poll(2) defines it.

use crate::engine::{end, rx, switch, wait};
use crate::family::sock::{Sock, flag};
use crate::sys::fd as desc;
use crate::transport::region::fin;
use std::sync::atomic::Ordering::*;

/// Readable.
pub const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// The peer has shut down its sending side.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Both sides are down.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// Error.
pub const ERR: u32 = libc::EPOLLERR as u32;
/// Urgent data.
pub const PRI: u32 = libc::EPOLLPRI as u32;
/// EPOLLRDNORM and EPOLLWRNORM as poll(2) and epoll give them with IN and OUT when asked.
pub const NORMS: (u32, u32) = (0x40, 0x100);

/// Whether the library, not the kernel, knows the readiness.
#[inline]
pub fn is_ours(s: &Sock) -> bool {
    s.rx_in_memory() || s.tx_in_memory()
}

/// Everything that is ready now.
pub fn level(s: &Sock, sock: i32) -> u32 {
    if rx::is_asked(s) {
        switch::attend(s, sock);
    }
    let mut bits = 0;
    let mut kernel = 0;
    let mut rx_memory = s.rx_in_memory();
    if let Some(dir) = s.rx.dir() {
        let switched = dir.switch.load(Acquire) != s.rx.switches.load(Relaxed);
        if switched && switch::can_follow(s, dir) {
            rx::progress(s, sock);
            rx_memory = s.rx_in_memory();
        }
        if rx_memory {
            if dir.head.load(Acquire) != s.rx.cursor.load(Relaxed) {
                bits |= IN;
            }
            if dir.fin.load(Relaxed) & fin::WRITE != 0 || s.rx.end.load(Relaxed) != 0 {
                bits |= IN | RDHUP;
            }
        }
    }
    let tx_memory = s.tx_in_memory();
    if tx_memory && let Some(dir) = s.tx.dir() && wait::has_room(s, dir) {
        bits |= OUT;
    }
    if !rx_memory || !tx_memory {
        kernel = desc::poll_now(sock, (IN | OUT | PRI | RDHUP) as i16) as u16 as u32;
    }
    if !rx_memory {
        let readable = kernel & IN != 0 && end::unread(s, sock) != Ok(0) || kernel & (RDHUP | HUP | ERR) != 0;
        bits |= kernel & (PRI | RDHUP) | if readable { kernel & IN } else { 0 };
    }
    if !tx_memory {
        bits |= kernel & OUT;
    }
    bits |= kernel & (HUP | ERR);
    if s.rx.end.load(Relaxed) > end::EOF {
        bits |= IN | OUT | HUP | ERR | RDHUP;
    }
    if s.has(flag::SHUT_RD) {
        bits |= IN | RDHUP;
    }
    if bits & RDHUP != 0 && s.has(flag::SHUT_WR) {
        bits |= HUP;
    }
    if s.has(flag::SHUT_WR) {
        bits |= OUT;
    }
    bits
}

/// Adds the "norm" bits, which the kernel gives beside IN and OUT to those who ask for them.
pub fn with_norms(bits: u32) -> u32 {
    let mut all = bits;
    if bits & IN != 0 {
        all |= NORMS.0;
    }
    if bits & OUT != 0 {
        all |= NORMS.1;
    }
    all
}
