//! What is ready now on a socket that has a direction in memory: the level, as poll(2) defines it.

use crate::engine::end::Verdict;
use crate::engine::{behind, debt, end, follow, here, kernel, peek, room, switch, urgent};
use crate::family::sock::{Sock, flag, role};
use crate::sys::{fd as desc, thread};
use crate::transport::region::{ctl, fin};
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

/// Whether poll and select must ask here: the kernel may call the socket readable for bytes that are
/// not the program's.
#[inline]
pub fn is_served(s: &Sock) -> bool {
    s.has(flag::CAREFUL)
}

/// Whether it may be so at any moment, by what another thread of the process does.
#[inline]
pub fn may_be_served(s: &Sock) -> bool {
    !thread::is_only() && s.role.load(Relaxed) != role::LISTENER && !s.has(flag::PINNED)
}

/// Whether the library, not the kernel, knows the readiness.
#[inline]
pub fn is_ours(s: &Sock) -> bool {
    s.rx_in_memory() || s.tx_in_memory() || debt::owes(s) || here::may_be_here(s) || s.error.load(Relaxed) != 0
}

/// Whether it has ended as only the library knows, with both directions on TCP.
#[cold]
pub fn is_dead(s: &Sock, sock: i32) -> bool {
    s.region_of_peers().is_some() && s.tx.switches.load(Relaxed) > 0 && end::is_dead(s, sock)
}

/// IN, and OUT where `out` asks for it, of a socket of which nothing else is to be told: both
/// directions in memory, no switch, no end, nothing asked. None: [`level`] knows.
#[inline]
pub fn usual(s: &Sock, out: bool) -> Option<u32> {
    let (from, to) = (s.rx.dir()?, s.tx.dir()?);
    if !s.rx_in_memory() || !s.tx_in_memory() {
        return None;
    }
    // Each bit of these says that something is unusual; a claim of the peer only leads to `level`.
    let unusual = from.switch.load(Acquire) ^ s.rx.switches.load(Relaxed)
        | s.rx.end.load(Relaxed)
        | from.fin.load(Relaxed) & fin::ENDS
        | to.ctl.load(Relaxed) & (ctl::RETURN | ctl::PINNED)
        | s.low_water.load(Relaxed) >> 1
        | s.flags.load(Relaxed) & (flag::SHUT_RD | flag::SHUT_WR | flag::PINNED | flag::OWES | flag::FROZEN | flag::URGENT);
    if unusual != 0 {
        return None;
    }
    // Acquire pairs with the Release publish in `tx`: who is told reads what was published.
    let readable = from.head.load(Acquire) != s.rx.cursor.load(Relaxed);
    let writable = out && room::has_room(s, to);
    Some(if readable { IN } else { 0 } | if writable { OUT } else { 0 })
}

/// Whether what is unread on both sides of a switch reaches the low-water mark together.
#[cold]
fn reaches(s: &Sock, sock: i32, low: u64) -> bool {
    peek::unread(s, sock).is_ok_and(|n| n as u64 >= low)
}

/// Everything that is ready now. `look`: also ask the kernel's socket for its end now and then (epoll
/// sets hear of it from the kernel's set instead).
pub fn level(s: &Sock, sock: i32, look: bool) -> u32 {
    if follow::is_asked(s) {
        switch::attend(s, sock);
    }
    let paid = debt::pay(s, sock);
    urgent::look(s);
    let (mut rx_memory, mut tx_memory) = (s.rx_in_memory(), s.tx_in_memory());
    let mut bits = 0;
    let mut ended = Verdict::Open;
    let mut switched = false;
    if let Some(dir) = s.rx.dir() {
        switched = follow::is_marked(s, dir);
        if switched && follow::can_follow(s, dir) {
            follow::progress(s, sock);
            rx_memory = s.rx_in_memory();
            switched = follow::is_marked(s, dir);
        }
        if rx_memory {
            let unread = follow::in_ring(s, dir);
            if look && kernel::may_have_ended(s, dir) {
                kernel::look_at_kernel_for_sender(s, sock);
            }
            if tx_memory {
                behind::look(s, sock);
            }
            ended = end::verdict(s, sock, dir);
            let low = u64::from(s.low_water.load(Relaxed).max(1));
            if unread >= low || unread > 0 && (ended != Verdict::Open || switched && reaches(s, sock, low)) {
                bits |= IN;
            }
        }
    }
    let linked = s.is_linked();
    let closed = linked && s.rx.dir().is_some_and(|d| d.fin.load(Relaxed) & fin::CLOSED != 0);
    if tx_memory
        && let Some(dir) = s.tx.dir()
        && (closed || room::has_room(s, dir))
    {
        bits |= OUT;
    }
    // A call that had moved bytes has left it for the next one.
    let error = if s.error.load(Relaxed) != 0 { ERR } else { 0 };
    let mut kernel = 0;
    // What became of an end that its socket has shown, the kernel knows.
    let is_shown = ended == Verdict::Reset || ended == Verdict::Eof && !linked && s.rx.end.load(Relaxed) != 0;
    if !rx_memory || !tx_memory || switched || is_shown || s.has(flag::PINNED) && !linked {
        kernel = desc::poll_now(sock, (IN | OUT | PRI | RDHUP) as i16) as u16 as u32;
    }
    if !rx_memory && !linked && kernel & (RDHUP | HUP) != 0 && !s.has(flag::SHUT_RD) {
        if tx_memory {
            switch::behind_end(s, sock);
            tx_memory = s.tx_in_memory();
        }
        if let Some(dir) = s.rx.dir() {
            if !switched && desc::unread(sock) == Ok(0) {
                end::found(s, end::FIN);
                ended = end::verdict(s, sock, dir);
            } else if end::is_death(s, sock, dir, kernel) {
                // Payload that came before it is read first, but TCP's reset would show already.
                ended = Verdict::Died;
            }
        }
    }
    if !rx_memory {
        let is_payload = || peek::unread(s, sock) != Ok(0) || kernel & (RDHUP | HUP) != 0 || desc::is_at_mark(sock);
        let low = u64::from(s.low_water.load(Relaxed));
        let readable = kernel & IN != 0 && is_payload() || switched && low > 1 && reaches(s, sock, low);
        bits |= kernel & (RDHUP | HUP | ERR) | error | if readable { IN } else { 0 };
    }
    if here::is_here(s) && reaches(s, sock, u64::from(s.low_water.load(Relaxed).max(1))) {
        bits |= IN;
    }
    bits |= kernel & PRI | if urgent::is_unread(s) { PRI } else { 0 };
    if s.has(flag::PINNED) && ended == Verdict::Open {
        bits |= kernel & ERR; // completions in the error queue
    }
    if !tx_memory && paid {
        bits |= kernel & OUT;
    }
    match ended {
        Verdict::Open => {}
        Verdict::Eof => {
            // What our own sending brought about shows in the kernel's socket.
            let own = if s.rx.end.load(Relaxed) == end::RST { 0 } else { kernel & (HUP | ERR) };
            let is_answered = linked && s.has(flag::SWALLOWED);
            bits |= IN | RDHUP | own | if s.has(flag::SHUT_WR) || is_answered { HUP } else { 0 };
        }
        Verdict::Reset => {
            bits |= kernel & (IN | OUT | RDHUP | HUP | ERR) | IN | error;
        }
        Verdict::Died => {
            bits |= IN | OUT | RDHUP | HUP | if end::is_death_told(s) { error } else { ERR };
        }
    }
    if s.has(flag::SHUT_RD) {
        bits |= IN | RDHUP | if s.has(flag::SHUT_WR) { HUP } else { 0 };
    }
    if s.has(flag::SHUT_WR) {
        bits |= OUT;
    }
    bits
}

/// Adds the "norm" bits, which the kernel gives beside IN and OUT to those who ask for them.
#[inline]
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
