//! Bytes of the ring that TCP still has to carry, after the peer asked for them (`switch::give_back`).
//!
//! What the peer's end of the ring has frozen is sent again through TCP, ahead of everything else, as
//! fast as the kernel takes it. Nobody waits for that with a lock: what does not fit stays in the ring,
//! and every call on the connection, and every wait of ours for it, pays on. The peer has left the
//! ring, so nothing changes there.

use super::patience::Patience;
use super::{bulk, end, resets, signals, take_up};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::log;
use crate::sys::{fd, net};
use crate::transport::changes;
use std::sync::atomic::Ordering::*;

/// How long a shutdown or close waits for a peer that does not read.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Notes that `annex` bytes of the annex, and then the ring from `from` on, are to be sent again. The sending lock is held,
/// the direction is on TCP, and no other sender has been there since.
pub fn owe(s: &Sock, annex: u32, from: u64) {
    s.annex_from.store(0, Relaxed);
    s.annex_to.store(annex, Relaxed);
    s.owed.store(from, Relaxed);
    s.set(flag::OWES);
}

/// Whether the kernel's stream is behind.
#[inline]
pub fn owes(s: &Sock) -> bool {
    s.has(flag::OWES)
}

/// How much the kernel's stream is behind.
pub fn left(s: &Sock) -> u64 {
    if !owes(s) {
        return 0;
    }
    let annex = s.annex_to.load(Relaxed).saturating_sub(s.annex_from.load(Relaxed));
    u64::from(annex) + s.tx.cursor.load(Relaxed).saturating_sub(s.owed.load(Relaxed))
}

/// Sends what the kernel takes now; true if nothing is owed any more.
pub fn pay(s: &Sock, sock: i32) -> bool {
    if !owes(s) {
        return true;
    }
    let marker = Marker::new();
    let Some(_held) = s.tx.lock.try_take(&marker) else { return false };
    pay_locked(s, sock)
}

/// As [`pay`], with the sending lock held.
pub fn pay_locked(s: &Sock, sock: i32) -> bool {
    // A handler that left it would have what has gone sent again.
    !owes(s) || signals::quietly(|| pay_now(s, sock))
}

fn pay_now(s: &Sock, sock: i32) -> bool {
    if !take_up::pay(s, sock) {
        return false;
    }
    let Some(ring) = bulk::tx_ring(s, s.tx.size.load(Relaxed) as usize) else { return false };
    let (mut pos, to) = (s.owed.load(Relaxed), s.tx.cursor.load(Relaxed));
    // Over a link there may be an urgent byte among them, which goes alone: the kernel takes the last of what it takes for it.
    let urgent = s.tx.dir().map_or(0, |dir| dir.urgent.load(Relaxed)).checked_sub(1);
    while pos < to {
        let (end, flags) = match urgent {
            Some(at) if at == pos => (pos + 1, libc::MSG_OOB),
            Some(at) if pos < at => (at.min(to), 0),
            _ => (to, 0),
        };
        let (p, n) = ring.piece(pos, (end - pos) as usize);
        // SAFETY: a piece of the ring, valid for reads.
        let piece = unsafe { std::slice::from_raw_parts(p, n) };
        match send_flagged(s, sock, piece, flags) {
            Some(0) => return false,
            Some(n) => pos += n as u64,
            None => break,
        }
        s.owed.store(pos, Relaxed);
    }
    s.clear(flag::OWES);
    changes::note(s); // epoll sets need not listen for room any more
    true
}

/// Sends of some bytes what the kernel takes now: how many. None: the connection is dead.
pub fn send_now(s: &Sock, sock: i32, bytes: &[u8]) -> Option<usize> {
    send_flagged(s, sock, bytes, 0)
}

fn send_flagged(s: &Sock, sock: i32, bytes: &[u8], flags: i32) -> Option<usize> {
    match net::send_slice(sock, bytes, libc::MSG_DONTWAIT | flags) {
        Ok(n) => {
            s.tx.kernel.fetch_add(n as u64, Relaxed);
            s.tx.tcp.fetch_add(n as u64, Relaxed);
            Some(n)
        }
        Err(e) if e.0 == libc::EAGAIN || e.0 == libc::EINTR => Some(0),
        Err(e) => {
            end::took(s, e);
            None
        }
    }
}

/// Before the last byte of this direction: waits, bounded and without a lock, until all is paid. A peer
/// that does not take it is reset, since an orderly end would hide that bytes are missing.
pub fn settle(s: &Sock, sock: i32) {
    if pay(s, sock) {
        return;
    }
    let patience = Patience::with_others(s, PATIENCE_NS, 0);
    while !pay(s, sock) {
        if patience.is_over() {
            patience.was_in_vain();
            log::warn!(target: "smcr::switch", fd = sock, "the peer does not read what it asked for; resetting");
            return resets::reset(s, sock);
        }
        let _ = fd::poll(&mut [libc::pollfd { fd: sock, events: libc::POLLOUT, revents: 0 }], 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::proc;
    use crate::transport::region::RING_MAX;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn another_user_who_does_not_read_what_he_has_asked_for_is_not_waited_for_again() {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        let mut ring = vec![0u8; RING_MAX];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        net::set_opt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &4096).unwrap();
        let mut own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        net::set_opt(own.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &4096).unwrap();
        own.set_nonblocking(true).unwrap();
        let mut full = 0;
        while full < 5 {
            full = if own.write(&[0; 65536]).is_ok() { 0 } else { full + 1 };
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        s.peer_uid.store(proc::euid() + 1, Relaxed);
        s.peer_pid.store(1, Relaxed);
        s.tx.size.store(RING_MAX as u32, Relaxed);
        s.tx.ring.store(ring.as_mut_ptr(), Relaxed);
        s.tx.cursor.store(RING_MAX as u64, Relaxed);
        assert_eq!(left(&s), 0);
        owe(&s, 7, 96);
        assert_eq!(left(&s), RING_MAX as u64 - 96 + 7);
        owe(&s, 0, 0);
        settle(&s, own.as_raw_fd());
        assert!(end::was_ours(&s), "it was reset");
        assert!(Patience::with_others(&s, 60_000_000_000, 0).is_over());
    }
}
