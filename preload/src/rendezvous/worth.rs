//! How much a connection has to carry over TCP before a switch is tried: what is set, and on ports whose
//! connections end soon afterwards, more.
//!
//! A switch costs as much time as 11 round trips over TCP, or as 1 MB (measured: 200 us), so a connection that ends soon after it
//! was better off without. How long one will live nobody knows, but programs repeat themselves: each end of a connection
//! is a [`lesson`] for the next ones with the same port, kept in the family page, so that a server with a process for each
//! connection learns too. A connection that ended before the switch had paid doubles what the next ones have to carry,
//! up to [`MOST`] times; one that would have paid, switched or not, takes it back to what is set.
//! The price: connections that live long on such a port stay on TCP for so much longer, a few milliseconds.
//!
//! Only the thresholds that the library has by itself are raised; whoever sets others gets them as they are. Called by the steps of
//! the rendezvous and, where records begin and end, by `table::life` and `table::inherit`.

use super::later;
use crate::config;
use crate::family::sock::{Sock, flag, medium, role};
use crate::family::{self, LESSONS};
use std::sync::atomic::Ordering::*;

/// Doublings at most: 512 operations, 2 MiB. What a switch costs is a twentieth of what so many took over TCP.
const MOST: u32 = 5;
/// Operations of one end after the threshold that pay for a switch (a round trip has two), and bytes.
const PAYS_OPS: u64 = 48;
const PAYS_BYTES: u64 = 2 << 20;

/// A record begins to count what it carries.
pub fn begin_counting(s: &Sock) {
    wait(s, 0);
}

/// Whether it has carried what connections with its port have to; if not, it is asked again when it has. Its names must
/// be known.
pub fn is_reached(s: &Sock) -> bool {
    let level = if config::learns() { level(s) } else { 0 };
    let (ops, bytes) = thresholds(s, level);
    if level == 0 || s.ops.load(Relaxed) >= ops || tcp_bytes(s) >= bytes {
        return true;
    }
    wait(s, level);
    false
}

fn wait(s: &Sock, level: u32) {
    let (ops, bytes) = thresholds(s, level);
    later(s, ops);
    s.next_bytes.store(bytes, Relaxed);
}

/// Operations and bytes. The accepting side announces itself first, so that the connecting one finds that when it looks.
fn thresholds(s: &Sock, level: u32) -> (u32, u64) {
    let (ops, bytes) = (config::switch_ops(), config::switch_bytes());
    let ops = if s.role.load(Relaxed) == role::CLIENT { ops + ops / 2 } else { ops };
    (ops << level, bytes << level)
}

/// A connection ends.
pub fn learn(s: &Sock) {
    if !s.is_connection() || !config::learns() || s.names[0].load(Relaxed) == 0 {
        return; // it never came to a look
    }
    if s.has(flag::PINNED) || s.carried.load(Relaxed) == medium::RDMA {
        return;
    }
    let in_memory: u64 = s.sizes.as_flattened().iter().map(|n| n.load(Relaxed)).sum();
    let ring = s.tx.cursor.load(Relaxed) + s.rx.cursor.load(Relaxed);
    let ops = u64::from(s.ops.load(Relaxed)) + in_memory;
    let bytes = tcp_bytes(s) + ring;
    let paid = ops >= u64::from(config::switch_ops()) + PAYS_OPS || bytes >= config::switch_bytes() + PAYS_BYTES;
    // One that waited for a threshold of its port in vain has cost nothing.
    let has_begun = in_memory != 0 || s.tries.load(Relaxed) != 0;
    let now = level(s);
    let then = lesson(now, paid, has_begun);
    if let Some(base) = family::base().filter(|_| now != then) {
        let (at, tag) = class(s);
        family::lessons(base)[at].store(tag << 8 | then, Relaxed);
    }
}

fn lesson(level: u32, paid: bool, has_begun: bool) -> u32 {
    match (paid, has_begun) {
        (true, _) => 0,
        (false, true) => (level + 1).min(MOST),
        (false, false) => level,
    }
}

/// What the page says is a number from relatives: any is possible.
fn level(s: &Sock) -> u32 {
    let Some(base) = family::base() else { return 0 };
    let (at, tag) = class(s);
    let kept = family::lessons(base)[at].load(Relaxed);
    if kept >> 8 == tag { (kept & 0xff).min(MOST) } else { 0 }
}

/// The place of the port's lesson, and 24 bits that say whose it is: the server's port; for the connecting side with
/// the server's address.
fn class(s: &Sock) -> (usize, u32) {
    let is_client = s.role.load(Relaxed) == role::CLIENT;
    let port = s.names[if is_client { 2 } else { 1 }].load(Relaxed);
    let seed = u64::from(port) << 1 | u64::from(is_client);
    let words = s.remote.iter().filter(|_| is_client).map(|w| w.load(Relaxed));
    let hash = words.fold(seed, |h, w| (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed as usize >> 40 & (LESSONS - 1), (mixed >> 32) as u32 >> 8)
}

fn tcp_bytes(s: &Sock) -> u64 {
    s.tx.tcp.load(Relaxed) + s.rx.tcp.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_soon_raise_it_step_by_step() {
        let levels = (0..8).scan(0, |level, _| {
            *level = lesson(*level, false, true);
            Some(*level)
        });
        assert_eq!(levels.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 5, 5, 5]);
    }

    #[test]
    fn one_that_would_have_paid_takes_it_back() {
        assert_eq!([lesson(5, true, true), lesson(3, true, false), lesson(0, true, true)], [0, 0, 0]);
    }

    #[test]
    fn one_that_waited_in_vain_teaches_nothing() {
        assert_eq!([lesson(4, false, false), lesson(0, false, false)], [4, 0]);
    }
}
