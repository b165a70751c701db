//! How a connection ends: close, shutdown, death of either side, and a peer that breaks the rules.
//!
//! TCP's own rule (hazard 9): what was sent is delivered, then EOF; ECONNRESET exactly if the dead
//! side left inbound bytes unread. The kernel's FIN or RST tells that the other side ended; what it
//! left unread we know from its cursor. A mark in the ring header, set before the kernel is told,
//! tells an orderly end from death.

use super::{bell, rx::Step, switch};
use crate::family::lock::Marker;
use crate::family::process::count;
use crate::family::sock::{Sock, flag, medium};
use crate::log;
use crate::sys::{Errno, Res, net, proc};
use crate::transport::region::{self, Dir, fin};
use crate::transport::peers;
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Value of `rx.end`: the kernel's stream is at its end.
pub const EOF: u32 = 1;

/// Value of `rx.end` for an error of the kernel's socket.
pub fn error(e: Errno) -> u32 {
    e.0 as u32 + 1
}

/// Notes what the kernel's socket said. A FIN may be followed by an RST.
pub fn found(s: &Sock, what: u32) {
    let old = s.rx.end.load(Relaxed);
    if old == 0 || (old == EOF && what != EOF) {
        s.rx.end.store(what, Relaxed);
    }
}

/// What a reader gets when the ring is drained and the end was found.
pub fn outcome(s: &Sock, dir: &Dir) -> Step {
    let end = s.rx.end.load(Relaxed);
    let marks = dir.fin.load(Relaxed);
    if end > EOF {
        let e = Errno(end as i32 - 1);
        // A dead peer's kernel resets when a doorbell was unread; TCP would only do so for payload.
        let only_bell = e.0 == libc::ECONNRESET && marks & (fin::RESET | fin::LINGER0) == 0 && left_nothing(s);
        if !only_bell {
            s.rx.end.store(EOF, Relaxed); // the error is reported once
            return Step::Failed(e);
        }
        return Step::End;
    }
    if marks & fin::RESET != 0 || (marks == 0 && end == EOF && !left_nothing(s)) {
        // Closed or died with our bytes unread.
        if s.flags.fetch_or(flag::ERROR_PENDING, AcqRel) & flag::ERROR_PENDING == 0 {
            return Step::Failed(Errno(libc::ECONNRESET));
        }
    }
    Step::End
}

/// Whether the peer had read all that we put into its ring.
fn left_nothing(s: &Sock) -> bool {
    s.tx.dir().is_none_or(|d| d.tail.load(Acquire) == s.tx.cursor.load(Relaxed))
}

/// Before the kernel's shutdown(2): marks, and moves sending to TCP no more.
pub fn before_shutdown(s: &Sock, how: i32) {
    if (how == libc::SHUT_WR || how == libc::SHUT_RDWR)
        && let Some(dir) = s.tx.dir()
    {
        dir.fin.fetch_or(fin::WRITE, Release);
    }
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        s.set(flag::SHUT_WR);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        s.set(flag::SHUT_RD);
    }
}

/// Before the kernel's close(2) of the last descriptor: leaves the kernel's socket such that the
/// peer sees what TCP would show, and marks it. The region stays mapped until `unmap`.
pub fn before_close(s: &Sock, sock: i32) {
    let (Some(dir), Some(back)) = (s.tx.dir(), s.rx.dir()) else { return };
    let mut marks = fin::WRITE | fin::CLOSED;
    // Doorbells on their way to this very descriptor must not meet its next owner.
    s.tx.gate.fetch_or(bell::CLOSED, AcqRel);
    for _ in 0..1 << 16 {
        if s.tx.gate.load(Acquire) & !bell::CLOSED == 0 {
            break;
        }
        std::hint::spin_loop();
    }
    let in_memory = s.rx_in_memory();
    if in_memory {
        let unread = back.head.load(Acquire) != s.rx.cursor.load(Relaxed);
        if unread && !s.has(flag::SHUT_RD) {
            marks |= fin::RESET;
        }
        // Set before the doorbells go: a last one may come after them, and then the reset that the
        // kernel makes of it is known not to be one.
        dir.fin.fetch_or(marks, Release);
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.try_take(&marker) {
            bell::drain(s, back, sock);
        }
        if marks & fin::RESET != 0 {
            reset_on_close(sock);
        }
    } else {
        dir.fin.fetch_or(marks, Release);
    }
}

fn reset_on_close(sock: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = net::set_opt(sock, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// After the last close in this process: gives region and peer back. False: somebody still uses
/// them; the last user comes here again.
pub fn unmap(s: &Sock, last_in_family: bool) -> bool {
    let (m1, m2) = (Marker::new(), Marker::new());
    let Some(_tx) = s.tx.lock.try_take(&m1) else { return false };
    let Some(_rx) = s.rx.lock.try_take(&m2) else { return false };
    if s.users.load(Acquire) != 0 {
        return false;
    }
    let region = s.region.load(Acquire);
    if last_in_family {
        s.tx_medium.store(medium::TCP, Release);
        s.rx_medium.store(medium::TCP, Release);
        s.tx.dir.store(std::ptr::null_mut(), Release);
        s.rx.dir.store(std::ptr::null_mut(), Release);
        s.region.store(std::ptr::null_mut(), Release);
    }
    if !region.is_null() {
        region::drop_mapping(region);
    }
    if let Some(p) = peers::get(s.peer.load(Relaxed)) {
        p.release();
    }
    if last_in_family {
        s.peer.store(0, Relaxed);
    }
    true
}

/// The peer broke the rules of the shared memory: its connection is reset, nothing else.
#[cold]
pub fn hostile(s: &Sock, sock: i32) {
    count(Counter::HostileResets, 1);
    s.note(Reason::PeerHostile);
    log::warn!(target: "smcr::peer", fd = sock, pid = s.peer_pid.load(Relaxed), "peer broke the rules; resetting");
    found(s, error(Errno(libc::ECONNRESET)));
    s.set(flag::PINNED | flag::SHUT_WR);
    s.set_state(State::Pinned);
    reset_on_close(sock);
    let _ = net::shutdown(sock, libc::SHUT_RDWR);
}

/// Bytes that FIONREAD shall report.
pub fn unread(s: &Sock, sock: i32) -> Res {
    let kernel = crate::sys::fd::unread(sock)?;
    let Some(dir) = s.rx.dir() else { return Ok(kernel) };
    let ring = || {
        let n = dir.head.load(Acquire).wrapping_sub(s.rx.cursor.load(Relaxed));
        (n as usize).min(region::RING_MAX)
    };
    if s.rx_in_memory() {
        let switched = dir.switch.load(Acquire) != s.rx.switches.load(Relaxed);
        let bells = dir.bells.load(Acquire).wrapping_sub(s.bells_rx.load(Relaxed)) as usize;
        return Ok(ring() + if switched { kernel.saturating_sub(bells) } else { 0 });
    }
    match dir.switch.load(Acquire) != s.rx.switches.load(Relaxed) {
        true => {
            let payload = switch::payload_left(s, dir).unwrap_or(0) as usize;
            Ok(payload.min(kernel) + if switch::proof_is_due(s) { 0 } else { ring() })
        }
        false => Ok(kernel),
    }
}

/// Raises SIGPIPE for a send on a finished direction unless the program asked for none.
pub fn pipe_signal(flags: i32) {
    if flags & libc::MSG_NOSIGNAL == 0 {
        proc::raise(libc::SIGPIPE);
    }
}
