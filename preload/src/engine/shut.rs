//! shutdown(2) of our own end: what is done before the kernel's, and what is known of one that came before the connection had memory.
//!
//! The peer tells an end from a death by the mark in the memory ([`super::end`]), so that is there before the kernel shows the end. Called
//! by the hook of shutdown, and by whoever brings memory to a connection.

use super::{close, end, kernel, rouse};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::sys::{fd, tcp_state};
use crate::transport::region::fin;
use std::sync::atomic::{Ordering::*, fence};

/// Before the kernel's shutdown(2): marks, and moves sending to TCP no more.
pub fn before_shutdown(s: &Sock, sock: i32, how: i32) {
    if how != libc::SHUT_RD {
        close::give_back(s, sock);
    }
    let [receives, sends] = [flag::SHUT_RD, flag::SHUT_WR].map(|end| ends(how) & end != 0);
    // What comes behind both, the kernel answers with a reset as behind close.
    if (receives && (sends || s.has(flag::SHUT_WR)) || sends && s.has(flag::SHUT_RD))
        && let Some(back) = s.rx.dir().filter(|_| !s.is_linked())
    {
        close::take_proof(s, sock, back);
        if let Some(dir) = s.tx.dir() {
            dir.fin.fetch_or(fin::BOTH, Release); // pairs with the Acquire in `behind::is_half`
        }
    }
    if sends {
        s.set(flag::SHUT_WR);
        end_sending(s);
    }
    if receives {
        s.set(flag::SHUT_RD);
    }
}

/// What is left of a connection for calls that ask for both ends of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The kernel knows.
    Kernel,
    /// Nothing: TCP would have been reset by the peer's death, where the kernel's socket has an end alone.
    Nothing,
    /// Our own end: the kernel's socket was reset for a doorbell alone.
    Own,
}

/// What is left of it; asks the kernel for an end that is not known yet.
pub fn left(s: &Sock, sock: i32) -> Left {
    let Some(dir) = s.rx.dir().filter(|_| s.region_of_peers().is_some() && s.tx.switches.load(Relaxed) > 0) else { return Left::Kernel };
    if kernel::shows_its_end(s) {
        kernel::look_at_kernel_for_sender(s, sock);
    }
    match () {
        () if end::is_dead(s, sock) => Left::Nothing,
        () if end::is_reset_for_bell(s, dir) && !s.has(flag::SHUT_WR) => Left::Own,
        () => Left::Kernel,
    }
}

/// Marks the end of what is sent, behind what a sender in another thread is putting into the ring, perhaps from a slow file. One that comes
/// later, or waits for room, finds the flag.
fn end_sending(s: &Sock) {
    let marker = Marker::new();
    let held = s.tx.lock.take_within(&marker, 2000);
    if let Some(dir) = s.tx.dir() {
        dir.fin.fetch_or(fin::WRITE, Release);
    }
    drop(held);
    if !s.is_linked() {
        rouse::all(); // also who waits for room in poll or a set, and finds that there is
    }
}

/// As [`before_shutdown`], of a connection without memory, which may get some while this goes on. Not of one that is under way, which a
/// shutdown takes back: it may be connected anew.
pub fn before_memory(s: &Sock, sock: i32, how: i32) {
    if ends(how) == 0 || s.region().is_some() || !tcp_state::of(sock).is_ok_and(tcp_state::is_connected) {
        return;
    }
    s.set(ends(how));
    fence(SeqCst); // pairs with the one in `show`: the caller finds the memory, or who brings it finds the flags
}

/// The flags of what is shut down; none where the kernel refuses.
pub fn ends(how: i32) -> u32 {
    match how {
        libc::SHUT_RD => flag::SHUT_RD,
        libc::SHUT_WR => flag::SHUT_WR,
        libc::SHUT_RDWR => flag::SHUT_RD | flag::SHUT_WR,
        _ => 0,
    }
}

/// Before the connection gets memory: what no hook has seen, by a program that had it before, or by a system call of the program's own.
pub fn learn(s: &Sock, sock: i32) {
    let Ok(state) = tcp_state::of(sock) else { return };
    if tcp_state::has_ended(state) {
        s.set(flag::SHUT_WR);
    }
    let shows_end = || fd::poll_now(sock, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
    // The peer has not ended before, nor meanwhile.
    if tcp_state::is_peer_open(state) && shows_end() && tcp_state::has_open_peer(sock) {
        s.set(flag::SHUT_RD);
    }
}

/// The connection has memory from here on: marks an end of sending that came before.
pub fn show(s: &Sock) {
    fence(SeqCst); // pairs with the one in `before_memory`
    if let Some(dir) = s.tx.dir().filter(|_| s.has(flag::SHUT_WR)) {
        let both = if s.has(flag::SHUT_RD) { fin::BOTH } else { 0 };
        dir.fin.fetch_or(fin::WRITE | both, Release); // as in `before_shutdown`
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::region::{Dir, RegionHeader};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn an_end_before_there_is_memory_is_marked_there() {
        // SAFETY: all zero is a fresh record, and so are a region and its direction.
        let (s, r, dir): (Sock, RegionHeader, Dir) = unsafe { std::mem::zeroed() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        before_memory(&s, listener.as_raw_fd(), libc::SHUT_RDWR);
        assert!(!s.has(flag::SHUT_RD | flag::SHUT_WR), "there is no connection");
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        before_memory(&s, there.as_raw_fd(), libc::SHUT_RD);
        s.tx.dir.store(std::ptr::from_ref(&dir).cast_mut(), Relaxed);
        show(&s);
        assert_eq!(dir.fin.load(Relaxed), 0, "it sends on");
        before_memory(&s, there.as_raw_fd(), libc::SHUT_RDWR);
        show(&s);
        assert_eq!(dir.fin.load(Relaxed), fin::WRITE | fin::BOTH);
        s.clear(flag::SHUT_WR);
        s.region.store(std::ptr::from_ref(&r).cast_mut(), Relaxed);
        before_memory(&s, there.as_raw_fd(), libc::SHUT_WR);
        assert!(!s.has(flag::SHUT_WR), "`before_shutdown` does that");
    }

    #[test]
    fn an_end_that_no_hook_has_seen_is_learned() {
        let all = flag::SHUT_RD | flag::SHUT_WR;
        for (own, peer, told) in [
            (None, None, 0),
            (Some(Shutdown::Read), None, flag::SHUT_RD),
            (Some(Shutdown::Write), None, flag::SHUT_WR),
            (Some(Shutdown::Both), None, all),
            (None, Some(Shutdown::Write), 0),
        ] {
            // SAFETY: all zero is a fresh record.
            let s: Sock = unsafe { std::mem::zeroed() };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let here = listener.accept().unwrap().0;
            for (end, how) in [(&there, peer), (&here, own)] {
                how.into_iter().for_each(|how| end.shutdown(how).unwrap());
            }
            if peer.is_some() {
                let p = libc::pollfd { fd: here.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
                assert_eq!(fd::poll(&mut [p], 5000), Ok(1));
            }
            learn(&s, here.as_raw_fd());
            assert_eq!(s.flags.load(Relaxed) & all, told, "{own:?} {peer:?}");
        }
    }
}
