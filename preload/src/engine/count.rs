//! Our byte counts against the kernel's: whether anybody used the socket behind our back.
//!
//! Compared before a direction switches; liburing, inline system calls and programs that used the
//! socket before the library was loaded show up here as a difference (hazard 16).

use crate::family::half::Half;
use crate::family::sock::{Sock, role};
use crate::sys::{Res, fd, net, tcp_state};
use std::sync::atomic::Ordering::*;

/// struct tcp_info up to tcpi_bytes_received, as 64-bit words.
type InfoHead = [u64; 17];
/// While a long queue drains, acknowledgements come every few microseconds.
const ATTEMPTS: u32 = 8;
const BYTES_ACKED: usize = 15;
const BYTES_RECEIVED: usize = 16;

/// `n` bytes of the kernel's stream were taken: payload, proof or doorbells. The peer is told, for the case that
/// this process dies with nothing else unread (`end::left_nothing`).
pub fn took(s: &Sock, n: u64) {
    let taken = s.rx.kernel.fetch_add(n, Relaxed) + n;
    if let Some(dir) = s.rx.dir() {
        dir.taken.store(taken, Release);
    }
}

/// Whether all that was sent went through the hooks. The caller holds the sending lock and nobody is
/// inside a kernel send.
pub fn sent_matches(s: &Sock, sock: i32) -> Res<bool> {
    // An active opener's SYN counts as acknowledged byte.
    let syn = u64::from(s.role.load(Relaxed) == role::CLIENT);
    let mut info: InfoHead = net::get_opt(sock, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    for _ in 0..ATTEMPTS {
        // Both numbers may move between the calls: they belong together if no acknowledgement came.
        let unacked = fd::unacked(sock)? as u64;
        let again: InfoHead = net::get_opt(sock, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        if info[BYTES_ACKED] == again[BYTES_ACKED] {
            let sent = (again[BYTES_ACKED] + unacked).wrapping_sub(syn);
            return Ok(is_counted(&s.tx, sent));
        }
        info = again;
    }
    Ok(false) // in motion: ask again later
}

/// A receive was left in the middle. What it took and did not count is counted now: it was a doorbell where receiving is
/// in memory, else payload, which is lost as it is inside the kernel. The receiving lock is held.
pub fn make_up(s: &Sock, sock: i32) {
    let Some(dir) = s.rx.dir() else { return };
    let info = || net::get_opt::<InfoHead>(sock, libc::IPPROTO_TCP, libc::TCP_INFO);
    // Nobody takes anything meanwhile, so what comes ends where the queue is full.
    for _ in 0..ATTEMPTS << 12 {
        let (Ok(before), Ok(unread), Ok(after)) = (info(), fd::unread(sock), info()) else { return };
        if before[BYTES_RECEIVED] != after[BYTES_RECEIVED] {
            continue;
        }
        let taken = after[BYTES_RECEIVED].wrapping_sub(unread as u64);
        let missing = taken.wrapping_sub(s.rx.kernel.load(Relaxed));
        if missing == 0 || missing > u64::from(u32::MAX) {
            // All is counted. But for the copy that the peer reads.
            dir.taken.store(s.rx.kernel.load(Relaxed), Release);
            return;
        }
        took(s, missing);
        if s.rx_in_memory() {
            s.bells_rx.fetch_add(missing as u32, Relaxed);
        } else {
            s.rx.tcp.fetch_add(missing, Relaxed);
        }
        return;
    }
}

/// Begins to count in the middle of a connection. Nobody else uses it now. False: it is not established, or
/// too much in motion.
pub fn begin(s: &Sock, sock: i32) -> bool {
    let syn = u64::from(s.role.load(Relaxed) == role::CLIENT);
    let info = || net::get_opt::<InfoHead>(sock, libc::IPPROTO_TCP, libc::TCP_INFO);
    for _ in 0..ATTEMPTS {
        let (Ok(before), Ok(unread), Ok(unacked), Ok(after)) = (info(), fd::unread(sock), fd::unacked(sock), info()) else {
            return false;
        };
        if after[0].to_ne_bytes()[0] != tcp_state::ESTABLISHED {
            return false;
        }
        let [acked, received] = [BYTES_ACKED, BYTES_RECEIVED].map(|i| (before[i] == after[i]).then_some(after[i]));
        if let (Some(acked), Some(received)) = (acked, received) {
            s.tx.kernel.store((acked + unacked as u64).saturating_sub(syn), Relaxed);
            s.rx.kernel.store(received.saturating_sub(unread as u64), Relaxed);
            return true;
        }
    }
    false
}

/// Whether all that was received and taken went through the hooks.
pub fn received_matches(s: &Sock, sock: i32) -> Res<bool> {
    let info: InfoHead = net::get_opt(sock, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let unread = fd::unread(sock)? as u64;
    let again: InfoHead = net::get_opt(sock, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    if info[BYTES_RECEIVED] != again[BYTES_RECEIVED] {
        return Ok(false);
    }
    Ok(is_counted(&s.rx, again[BYTES_RECEIVED].wrapping_sub(unread)))
}

/// Whether the kernel's number is ours. Where a thread has left a kernel call in the middle, it is from here on.
fn is_counted(half: &Half, kernel: u64) -> bool {
    let missing = kernel.wrapping_sub(half.kernel.load(Relaxed));
    let was_left = half.lost.swap(0, Relaxed) != 0; // pairs with the Release in `within`, by the count of those inside
    if was_left && missing != 0 && missing < 1 << 40 {
        half.kernel.store(kernel, Relaxed);
        half.tcp.fetch_add(missing, Relaxed);
        return true;
    }
    missing == 0
}
