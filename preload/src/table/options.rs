//! Socket options, fcntl and ioctl on a tracked socket: the program's view while the kernel's socket
//! is set for doorbells, and the options that keep a connection on TCP.

use super::{life, marks};
use crate::engine::wait::AT_ONCE;
use crate::engine::{bell, debt, end, follow, kernel, linked, offer, peek, proof, shadow, switch, urgent};
use crate::family::sock::{Half, Sock, flag, role};
use crate::rendezvous::deferred;
use crate::sys::{Errno, fd, fd::SIOCATMARK, net, net::TCP_INQ, probe::is_there};
use crate::transport::region::fin;
use libc::{IPPROTO_TCP, SOL_SOCKET, c_int};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

const TCP_ULP: c_int = 31;
const TCP_REPAIR: c_int = 19;
const TCP_MD5SIG: c_int = 14;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;
/// With times of 64 bits: of the same layout here.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
const SO_TIMESTAMPING: [c_int; 2] = [37, 65];
/// SO_TIMESTAMP and SO_TIMESTAMPNS, old and new.
const SO_TIMESTAMPS: [c_int; 4] = [29, 35, 63, 64];

/// What to do with a setsockopt.
pub enum Set {
    /// Ask the kernel, then call [`after_set`].
    Kernel,
    /// Done here.
    Done,
    /// Not for this connection, or not known to this kernel.
    Refused(Errno),
}

/// Before the kernel's setsockopt; `value` is the int of the option where it is one.
pub fn before_set(s: &'static Sock, sock: i32, level: c_int, name: c_int, value: Option<i32>) -> Set {
    // What concerns receiving needs what is unread back in the kernel's queue at once.
    let home = |why| {
        if s.is_linked() && !s.can_return() {
            return Set::Refused(Errno(libc::ENOPROTOOPT)); // a kernel's: what TCP has of this connection is nothing that could be returned to
        }
        if !s.has(flag::PINNED) {
            life::go_home(s, sock, why);
        }
        Set::Kernel
    };
    let pin = |why| {
        if !s.has(flag::PINNED) {
            switch::pin(s, sock, why);
        }
        Set::Kernel
    };
    match (level, name) {
        (IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) => {
            let bit = if name == libc::TCP_NODELAY { flag::NODELAY } else { flag::CORK };
            let Some(v) = value else { return Set::Kernel };
            s.put(bit, v != 0);
            // The kernel's goes on when it is time (`shadow::sent`).
            let is_off = name == libc::TCP_NODELAY && v == 0 && s.tx.nagle.load(Relaxed) != 0;
            if s.tx_in_memory() || is_off { Set::Done } else { Set::Kernel }
        }
        (SOL_SOCKET, libc::SO_RCVLOWAT) => {
            let Some(v) = value else { return Set::Kernel };
            let is_large = !(0..=shadow::MOST_LOW_WATER as i32).contains(&v);
            if is_large && s.region().is_some() && (!s.is_linked() || s.can_return()) {
                let _ = home(Reason::TcpSpecial); // no ring need ever hold as much
            }
            let v = if is_large && s.rx_in_memory() { shadow::limited_low_water(sock, v) } else { v };
            s.low_water.store(if v < 0 { i32::MAX } else { v.max(1) } as u32, Relaxed); // before: no offer is made any more
            if s.rx_in_memory() || !(v == 0 || v == 1 || offer::withdraw_offer(s)) {
                marks::tell(s);
                Set::Done
            } else {
                Set::Kernel
            }
        }
        (IPPROTO_TCP, TCP_ULP) => home(Reason::Ulp),
        (IPPROTO_TCP, TCP_REPAIR | TCP_MD5SIG | TCP_ZEROCOPY_RECEIVE) => home(Reason::TcpSpecial),
        (SOL_SOCKET, libc::SO_PEEK_OFF) => {
            // Less than 0 is none. What a listener has its children have.
            if !s.rx_in_memory()
                && value.is_none_or(|v| v >= 0)
                && let refused @ Set::Refused(_) = home(Reason::PeekOff)
            {
                return refused;
            }
            let Some(v) = value.filter(|_| s.rx_in_memory()) else { return Set::Kernel }; // it may have followed there meanwhile
            // What it has anyway: before Linux 6.9 it has none of TCP's.
            if let Err(e) = net::set_opt(sock, SOL_SOCKET, libc::SO_PEEK_OFF, &-1i32) {
                return Set::Refused(e);
            }
            s.peek_off.store(v.clamp(-1, i32::MAX - 1).wrapping_add(1) as u32, Relaxed);
            s.put(flag::PEEK_OFF, v >= 0);
            Set::Done
        }
        (SOL_SOCKET, libc::SO_OOBINLINE) if s.is_linked() => {
            urgent::set_inline(s, value.unwrap_or(0) != 0);
            Set::Kernel
        }
        // Nothing comes through a listener; what it accepts is looked at when that begins.
        (SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) if s.role.load(Relaxed) != role::LISTENER => home(Reason::TcpSpecial),
        (SOL_SOCKET, net::SO_MAX_PACING_RATE) => {
            // The register that discovery uses is the program's now.
            s.rate_before.store(0, Relaxed);
            if s.region().is_none() { pin(Reason::Pacing) } else { Set::Kernel }
        }
        (SOL_SOCKET, n) if SO_TIMESTAMPING.contains(&n) && value != Some(0) => home(Reason::TcpSpecial),
        // Many programs set it and never look ([`before_control`]). In memory not later than this: what the ring holds has no time then.
        (SOL_SOCKET, n) if SO_TIMESTAMPS.contains(&n) && value != Some(0) && s.region().is_some() && !s.is_linked() => home(Reason::TcpSpecial),
        _ => Set::Kernel,
    }
}

/// Whether a program wants the kernel's TLS above TCP. Libraries try it on every connection that they make, and most kernels have none: then
/// nothing has changed. Where there is one it passes everything through until it is given keys, so the way back can follow.
///
/// # Safety
/// As for setsockopt(2): `len` bytes at `value`, or no memory at all.
pub unsafe fn is_tls(level: c_int, name: c_int, value: *const u8, len: usize) -> bool {
    const TLS: &[u8] = b"tls";
    if (level, name) != (IPPROTO_TCP, TCP_ULP) || len < TLS.len() || !is_there(value, len.min(4)) {
        return false;
    }
    // SAFETY: by the contract, and it is there.
    let said = unsafe { std::slice::from_raw_parts(value, len.min(4)) };
    said.strip_suffix(b"\0").unwrap_or(said) == TLS
}

/// The kernel has it.
pub fn after_tls(s: &'static Sock, sock: i32) {
    if !s.is_linked() && !s.has(flag::PINNED) {
        life::hand_over(s, sock, Reason::Ulp);
    }
}

/// Whether a timeout lies before now: the kernel says so to nobody once it has it.
///
/// # Safety
/// As for [`is_tls`].
pub unsafe fn is_past(level: c_int, name: c_int, value: *const u8, len: usize) -> bool {
    let is_timeout = level == SOL_SOCKET && matches!(name, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW | libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW);
    // SAFETY: by the contract, and it is there.
    is_timeout && len >= size_of::<libc::timeval>() && is_there(value, len) && unsafe { value.cast::<libc::time_t>().read_unaligned() } < 0
}

/// After the kernel took an option. `is_past` as above.
pub fn after_set(s: &Sock, sock: i32, level: c_int, name: c_int, is_past: bool) {
    if (level, name) == (IPPROTO_TCP, TCP_INQ) {
        shadow::learn_inq(s, sock);
    }
    if (level, name) == (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) {
        deferred::keep(s, sock);
    }
    if level != SOL_SOCKET {
        return;
    }
    let timeout = |name| if is_past { AT_ONCE } else { shadow::timeout(sock, name) };
    match name {
        n if SO_TIMESTAMPS.contains(&n) => shadow::learn_stamps(s, sock),
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => s.recv_timeout.store(timeout(libc::SO_RCVTIMEO), Relaxed),
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => s.send_timeout.store(timeout(libc::SO_SNDTIMEO), Relaxed),
        libc::SO_RCVLOWAT if !s.rx_in_memory() => shadow::learn_low_water(s, sock),
        libc::SO_SNDBUF | libc::SO_SNDBUFFORCE => {
            let n = net::get_opt::<i32>(sock, SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
            s.buffer_limit.store(n.max(0) as u32, Relaxed);
            if s.is_linked() {
                linked::kick(s); // the peer may have to hear that less waits for it from now on
            }
        }
        libc::SO_LINGER => {
            let l = net::get_opt::<libc::linger>(sock, SOL_SOCKET, name);
            let zero = l.is_ok_and(|l| l.l_onoff != 0 && l.l_linger == 0);
            s.put(flag::LINGER0, zero);
            if let Some(dir) = s.tx.dir() {
                if zero {
                    dir.fin.fetch_or(fin::LINGER0, AcqRel);
                } else {
                    dir.fin.fetch_and(!fin::LINGER0, AcqRel);
                }
            }
        }
        _ => {}
    }
}

/// Before a message with room for control messages is received: its time is one of them, if the program has asked for it. A kernel's
/// connection has none, as over the kernel's own SMC.
#[inline]
pub fn before_control(s: &'static Sock, sock: i32) {
    if s.has(flag::STAMPED) && !s.has(flag::PINNED) && (!s.is_linked() || s.can_return()) {
        life::go_home(s, sock, Reason::TcpSpecial);
    }
}

/// Before the kernel's getsockopt: one that receives.
pub fn before_get(s: &'static Sock, sock: i32, level: c_int, name: c_int) {
    if (level, name) == (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) && !s.has(flag::PINNED) {
        life::hand_over(s, sock, Reason::TcpSpecial);
    }
}

/// The program's value of an int option that the kernel's socket has changed; None: ask the kernel.
pub fn get(s: &Sock, fd: i32, level: c_int, name: c_int) -> Option<i32> {
    match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) => error(s, fd),
        (IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => deferred::value(s),
        (SOL_SOCKET, libc::SO_PEEK_OFF) if s.rx_in_memory() => Some(s.peek_off.load(Relaxed) as i32 - 1),
        _ if !s.has(flag::SHADOWED) => None,
        (IPPROTO_TCP, libc::TCP_NODELAY) => Some(i32::from(s.has(flag::NODELAY))),
        (IPPROTO_TCP, libc::TCP_CORK) => Some(i32::from(s.has(flag::CORK))),
        (SOL_SOCKET, libc::SO_RCVLOWAT) => Some(s.low_water.load(Relaxed) as i32),
        _ => None,
    }
}

fn error(s: &Sock, fd: i32) -> Option<i32> {
    // Whoever asks for it first hears of the peer's death as from TCP.
    if kernel::shows_its_end(s) {
        kernel::look_at_kernel_for_sender(s, fd);
    }
    match s.error.swap(0, Relaxed) {
        0 if end::death_is_pending(s, fd) && end::take_death(s) => Some(libc::ECONNRESET),
        // The kernel's own for a connection over a link is the same reset.
        0 if s.is_linked() && end::is_death_told(s) => Some(0),
        0 => end::error_of_death(s, fd).map(|e| e.0),
        e => Some(end::took_left(s, e).0),
    }
}

/// Bytes that memory has taken to the peer and has brought, read or not.
pub fn in_memory_so_far(s: &Sock) -> (u64, u64) {
    let unread = s.rx.dir().filter(|_| !s.is_linked()).map_or(0, |dir| follow::in_ring(s, dir));
    (s.tx.cursor.load(Relaxed), s.rx.cursor.load(Relaxed) + unread)
}

/// What getsockopt(TCP_INFO) must add: bytes that went through memory (sent, received), without the doorbells and the proof,
/// which the kernel has counted. Modulo 2^64.
pub fn memory_bytes(s: &Sock) -> (u64, u64) {
    let (sent, received) = in_memory_so_far(s);
    let Some(dir) = s.rx.dir().filter(|_| !s.is_linked()) else { return (sent, received) };
    let rung = u64::from(s.bells_rx.load(Relaxed)) + bell::unread(s, dir).max(0) as u64;
    let began = |half: &Half, is_its: bool| if is_its && half.switches.load(Relaxed) > 0 { proof::PROOF } else { 0 };
    let connects = s.role.load(Relaxed) == role::CLIENT;
    let said = u64::from(s.bells_tx.load(Relaxed)) + began(&s.tx, connects);
    (sent.wrapping_sub(said), received.wrapping_sub(rung + began(&s.rx, !connects)))
}

/// The kernel has taken new status flags.
pub fn status_flags(s: &'static Sock, sock: i32, flags: c_int) {
    nonblocking(s, sock, flags & libc::O_NONBLOCK != 0);
    // What a listener accepts is told of only if it is asked for again.
    if flags & libc::O_ASYNC != 0 && !s.has(flag::PINNED) && s.role.load(Relaxed) != role::LISTENER {
        life::go_home(s, sock, Reason::Async);
    }
}

fn nonblocking(s: &Sock, sock: i32, now: bool) {
    let before = s.has(flag::NONBLOCK);
    s.put(flag::NONBLOCK, now);
    if now && !before && !s.has(flag::SEEN) && s.rx_in_memory() {
        // So far it waited in its reads. From here on it may wait where we do not see it, before it ever reads in vain.
        kernel::arm_unseen(s, sock);
    }
}

/// What a message received in memory says by TCP_INQ, if the program has set it: bytes left to read, and one
/// for the end of the stream, so that the program reads on and finds it (as Linux counts the FIN, but no reset).
pub fn inq(s: &Sock, sock: i32) -> Option<i32> {
    if !s.has(flag::INQ) {
        return None;
    }
    let unread = peek::unread(s, sock).map_or(0, |n| n as i32);
    let ended = s.rx.dir().is_some_and(|dir| match end::verdict(s, sock, dir) {
        end::Verdict::Eof => true,
        end::Verdict::Reset => s.rx.end.load(Relaxed) == end::FIN_RST,
        end::Verdict::Died | end::Verdict::Open => false,
    });
    Some(unread + i32::from(ended))
}

/// ioctl answers that memory changes; None: ask the kernel.
pub fn ioctl(s: &Sock, sock: i32, request: u64) -> Option<Result<i32, crate::sys::Errno>> {
    s.region()?;
    let asks = matches!(request, libc::FIONREAD | SIOCATMARK) && s.rx.dir().is_some_and(|d| follow::is_marked(s, d));
    if asks {
        follow::progress(s, sock);
    }
    match request {
        libc::FIONREAD => Some(peek::unread(s, sock).map(|n| n as i32)),
        SIOCATMARK if s.is_linked() => Some(Ok(i32::from(urgent::is_at_mark(s)))),
        SIOCATMARK if s.rx_in_memory() => Some(Ok(0)), // an urgent byte goes through TCP, behind what the ring holds
        // What is in the ring has arrived, as TCP's acknowledged bytes have.
        libc::TIOCOUTQ if s.tx_in_memory() && (s.is_linked() || !kernel::is_behind_ring(s)) => Some(Ok(0)),
        libc::TIOCOUTQ if debt::owes(s) => Some(fd::unacked(sock).map(|n| (n as u64 + debt::left(s)) as i32)),
        _ => None,
    }
}

/// The kernel has taken an ioctl.
pub fn after_ioctl(s: &'static Sock, sock: i32, request: u64) {
    match request {
        libc::FIONBIO | libc::FIOASYNC => {
            if let Ok(flags) = fd::status_flags(sock) {
                status_flags(s, sock, flags);
            }
        }
        _ => {}
    }
}
