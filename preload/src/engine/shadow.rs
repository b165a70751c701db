//! The kernel socket's options while a connection is accelerated, and the program's values beside.
//!
//! A doorbell byte must not be held back by Nagle or TCP_CORK nor hidden by SO_RCVLOWAT (hazard 7), so
//! the kernel has NODELAY on, CORK off and RCVLOWAT 1 while the program reads and sets its own values
//! here. They go back to the kernel when a direction returns to TCP, Nagle's last of all: it waits for acknowledgements, which go
//! with the peer's own payload over TCP, and not through memory. Behind a doorbell, or while only one direction is on TCP, it would
//! hold every small message back for as long as an acknowledgement may be delayed. Where receiving alone was in memory for a while,
//! Nagle and CORK stay off until sending has been there as well: the same bytes, in smaller packets.

use super::offer;
use super::timer::AT_ONCE;
use crate::family::sock::{Sock, flag};
use crate::sys::{fd, net};
use crate::transport::region::{self, fin};
use libc::{IPPROTO_TCP, SOL_SOCKET, TCP_CORK, TCP_NODELAY};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Most that SO_RCVLOWAT may ask of a ring, which always has room for as much.
pub const MOST_LOW_WATER: u32 = region::RING_MIN as u32;

/// Reads the program's options from the kernel, once, before the first switch.
pub fn learn(s: &Sock, sock: i32) {
    if s.has(flag::SHADOWED) {
        return;
    }
    let int = |level, name| net::get_opt::<i32>(sock, level, name).unwrap_or(0);
    s.put(flag::NODELAY, int(IPPROTO_TCP, TCP_NODELAY) != 0);
    s.put(flag::CORK, int(IPPROTO_TCP, TCP_CORK) != 0);
    s.low_water.store(int(SOL_SOCKET, libc::SO_RCVLOWAT).max(1) as u32, Relaxed);
    learn_timeout(&s.recv_timeout, sock, libc::SO_RCVTIMEO);
    learn_timeout(&s.send_timeout, sock, libc::SO_SNDTIMEO);
    let linger = net::get_opt::<libc::linger>(sock, SOL_SOCKET, libc::SO_LINGER);
    s.put(flag::LINGER0, linger.is_ok_and(|l| l.l_onoff != 0 && l.l_linger == 0));
    learn_nonblock(s, sock);
    learn_inq(s, sock);
    learn_stamps(s, sock);
    s.set(flag::SHADOWED);
    show_linger(s);
}

/// The peer has to know of SO_LINGER zero before it is of use: an exit leaves no time to say it.
pub fn show_linger(s: &Sock) {
    if let Some(dir) = s.tx.dir().filter(|_| s.has(flag::LINGER0)) {
        dir.fin.fetch_or(fin::LINGER0, AcqRel);
    }
}

/// What the kernel makes of a mark while its own has to be 1. It looks for readers when it is 1 again.
pub fn limited_low_water(sock: i32, v: i32) -> i32 {
    let _ = net::set_opt(sock, SOL_SOCKET, libc::SO_RCVLOWAT, &v);
    let limited = net::get_opt::<i32>(sock, SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(v);
    let _ = net::set_opt(sock, SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
    limited
}

/// Reads SO_RCVLOWAT from the kernel, which limits what the program asks for.
pub fn learn_low_water(s: &Sock, sock: i32) {
    if let Ok(v) = net::get_opt::<i32>(sock, SOL_SOCKET, libc::SO_RCVLOWAT) {
        s.low_water.store(v.max(1) as u32, Relaxed);
    }
}

/// Reads TCP_INQ from the kernel, which keeps it.
pub fn learn_inq(s: &Sock, sock: i32) {
    s.put(flag::INQ, net::get_opt::<i32>(sock, IPPROTO_TCP, net::TCP_INQ).is_ok_and(|v| v != 0));
}

/// Reads SO_TIMESTAMP and SO_TIMESTAMPNS from the kernel, which keeps them.
pub fn learn_stamps(s: &Sock, sock: i32) {
    let is_on = |name| net::get_opt::<i32>(sock, SOL_SOCKET, name).is_ok_and(|v| v != 0);
    s.put(flag::STAMPED, is_on(libc::SO_TIMESTAMP) || is_on(libc::SO_TIMESTAMPNS));
}

/// Reads O_NONBLOCK from the kernel.
pub fn learn_nonblock(s: &Sock, sock: i32) {
    if let Ok(f) = fd::status_flags(sock) {
        s.put(flag::NONBLOCK, f & libc::O_NONBLOCK != 0);
    }
}

/// Before a call that found nothing sleeps: whether O_NONBLOCK was set where no hook of this family sees it, by another program that
/// has the same description.
pub fn is_nonblocking_by_others(s: &Sock, sock: i32) -> bool {
    let may_be = s.has(flag::FORKED | flag::PINNED) || s.is_aside() || s.legacy.load(Relaxed) != 0;
    if may_be {
        learn_nonblock(s, sock);
    }
    may_be && s.has(flag::NONBLOCK)
}

/// Other programs had it for a while, on TCP: what they have set holds. Of an option that the kernel's socket has another value of
/// for our own sake, nobody can tell.
pub fn learn_again(s: &Sock, sock: i32) {
    let is_nagle_ours = s.tx.nagle.load(Relaxed) != 0 && !s.has(flag::NODELAY);
    let low = s.low_water.load(Relaxed);
    s.clear(flag::SHADOWED);
    learn(s, sock);
    if is_nagle_ours {
        s.clear(flag::NODELAY);
    }
    if s.low_water.load(Relaxed) == 1 {
        s.low_water.store(low, Relaxed);
    }
    if let Some(dir) = s.tx.dir().filter(|_| !s.has(flag::LINGER0)) {
        dir.fin.fetch_and(!fin::LINGER0, AcqRel);
    }
}

/// What an accepted socket has from its listener and the kernel does not show, or shows too late.
pub fn inherit(s: &Sock, listener: &Sock) {
    s.buffer_limit.store(listener.buffer_limit.load(Relaxed), Relaxed);
    for (to, from) in [(&s.recv_timeout, &listener.recv_timeout), (&s.send_timeout, &listener.send_timeout)] {
        if from.load(Relaxed) == AT_ONCE {
            to.store(AT_ONCE, Relaxed);
        }
    }
}

/// Reads SO_RCVTIMEO or SO_SNDTIMEO from the kernel, which says of a time before now what it says of none.
fn learn_timeout(at: &AtomicU64, sock: i32, name: i32) {
    let ns = timeout(sock, name);
    if ns != 0 || at.load(Relaxed) != AT_ONCE {
        at.store(ns, Relaxed);
    }
}

/// A timeout option in ns.
pub fn timeout(sock: i32, name: i32) -> u64 {
    net::get_opt::<libc::timeval>(sock, SOL_SOCKET, name)
        .map_or(0, |t| (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_usec as u64 * 1000))
}

/// Sets the kernel's socket for doorbells.
pub fn accelerate(s: &Sock, sock: i32) {
    learn(s, sock);
    if s.low_water.load(Relaxed) != 1 {
        let _ = net::set_opt(sock, SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
    }
    if s.has(flag::CORK) {
        let _ = net::set_opt(sock, IPPROTO_TCP, TCP_CORK, &0i32);
    }
    // Set after uncorking and even if it is set: it flushes what is held back.
    let _ = net::set_opt(sock, IPPROTO_TCP, TCP_NODELAY, &1i32);
}

/// Sending is on TCP for good: the program's CORK and NODELAY hold.
pub fn restore_sending(s: &Sock, sock: i32) {
    if !s.has(flag::SHADOWED) {
        return;
    }
    restore_nagle(s, sock);
    restore_cork(s, sock);
}

/// Sending is on TCP again: the program's CORK holds, its NODELAY from [`sent`] on.
pub fn leave_memory(s: &Sock, sock: i32) {
    if !s.has(flag::SHADOWED) {
        return;
    }
    s.tx.nagle.store(u32::from(!s.has(flag::NODELAY)), Relaxed);
    restore_cork(s, sock);
}

/// The program has sent through TCP, and no switch to memory can have begun since.
#[inline]
pub fn sent(s: &Sock, sock: i32) {
    if s.tx.nagle.load(Relaxed) != 0 && !s.rx_in_memory() {
        restore_nagle(s, sock);
    }
}

#[cold]
fn restore_nagle(s: &Sock, sock: i32) {
    s.tx.nagle.store(0, Relaxed);
    let _ = net::set_opt(sock, IPPROTO_TCP, TCP_NODELAY, &i32::from(s.has(flag::NODELAY)));
}

fn restore_cork(s: &Sock, sock: i32) {
    if s.has(flag::CORK) {
        let _ = net::set_opt(sock, IPPROTO_TCP, TCP_CORK, &1i32);
    }
}

/// Receiving is in memory: our own looks at the kernel's socket must not move SO_PEEK_OFF.
pub fn take_peek_offset(s: &Sock, sock: i32) {
    if let Ok(off) = net::get_opt::<i32>(sock, SOL_SOCKET, libc::SO_PEEK_OFF)
        && off >= 0
    {
        s.peek_off.store(off as u32 + 1, Relaxed);
        s.set(flag::PEEK_OFF);
        let _ = net::set_opt(sock, SOL_SOCKET, libc::SO_PEEK_OFF, &-1i32);
    }
}

/// Receiving is on TCP again: the program's RCVLOWAT and SO_PEEK_OFF hold.
pub fn restore_receiving(s: &Sock, sock: i32) {
    s.clear(flag::PEEK_OFF);
    match s.peek_off.swap(0, Relaxed) {
        0 => {}
        n => drop(net::set_opt(sock, SOL_SOCKET, libc::SO_PEEK_OFF, &(n as i32 - 1))),
    }
    let low = s.low_water.load(Relaxed);
    // Below a mark the doorbell of the next switch would not be seen.
    if low != 1 && offer::withdraw_offer(s) {
        let _ = net::set_opt(sock, SOL_SOCKET, libc::SO_RCVLOWAT, &(low as i32));
    }
}
