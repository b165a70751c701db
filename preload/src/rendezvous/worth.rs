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
use crate::family::sock::{Sock, flag, medium, role};
use crate::family::{self, LESSONS};
use crate::sys::net::{self, Addr};
use crate::{config, control};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Doublings at most: 512 operations, 2 MiB. What a switch costs is a twentieth of what so many took over TCP.
const MOST: u32 = 5;
/// Operations of one end after the threshold that pay for a switch (a round trip has two), and bytes.
const PAYS_OPS: u64 = 48;
const PAYS_BYTES: u64 = 2 << 20;

/// A record begins to count what it carries, up to what its port has taught, as far as that is known.
pub fn begin_counting(s: &Sock) {
    wait(s, if config::learns() { level(s) } else { 0 });
}

/// Before connect(2) to this address.
pub fn will_connect(s: &Sock, peer: &Addr) {
    let peer = peer.folded();
    let words = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| peer.ip[at + i])));
    note(s, of_client(peer.port, words));
}

/// listen(2) succeeded: what its connections have to carry is known when they come.
pub fn listens(l: &Sock, sock: i32) {
    if !control::is_restricted()
        && let Ok(name) = net::local_addr(sock)
    {
        note(l, of_server(name.port));
    }
}

/// The connection comes from this listener.
pub fn comes_from(s: &Sock, listener: &Sock) {
    note(s, listener.peer_cookie.load(Relaxed));
}

fn note(s: &Sock, lesson: u64) {
    if s.names[0].load(Relaxed) == 0 {
        s.peer_cookie.store(lesson, Relaxed);
    }
}

/// Whether it has carried what connections with its port have to; if not, it is asked again when it has. Its names must
/// be known.
pub fn is_reached(s: &Sock) -> bool {
    let level = if config::learns() { level(s) } else { 0 };
    let (ops, bytes) = thresholds(s, level);
    if level == 0 || s.ops.load(Relaxed) >= ops || s.carried() >= bytes {
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
    if !s.is_connection() || !config::learns() {
        return;
    }
    let in_memory: u64 = s.sizes.as_flattened().iter().map(|n| n.load(Relaxed)).sum();
    let ring = s.tx.cursor.load(Relaxed) + s.rx.cursor.load(Relaxed);
    let ops = u64::from(s.ops.load(Relaxed)) + in_memory;
    let bytes = s.carried() + ring;
    let paid = ops >= u64::from(config::switch_ops()) + PAYS_OPS || bytes >= config::switch_bytes() + PAYS_BYTES;
    // One that waited for a threshold of its port in vain has cost nothing.
    let has_begun = in_memory != 0 || s.tries.load(Relaxed) != 0;
    if !paid && !has_begun || s.has(flag::PINNED) || s.carried.load(Relaxed) == medium::RDMA {
        return;
    }
    let Some((at, tag)) = class(s) else { return };
    let now = level(s);
    let then = lesson(now, paid, has_begun);
    if let Some(base) = family::base().filter(|_| now != then) {
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
    let (Some(base), Some((at, tag))) = (family::base(), class(s)) else { return 0 };
    let kept = family::lessons(base)[at].load(Relaxed);
    if kept >> 8 == tag { (kept & 0xff).min(MOST) } else { 0 }
}

/// The place of the port's lesson, and 24 bits that say whose it is: the server's port; for the connecting side with
/// the server's address.
fn class(s: &Sock) -> Option<(usize, u32)> {
    let mixed = match s.names[0].load(Acquire) {
        // Acquire pairs with the Release in `learn_names`. Before they are known there is no peer whose cookie it could be.
        0 if s.peer_cookie.load(Relaxed) == 0 => return None,
        0 => s.peer_cookie.load(Relaxed),
        _ if s.role.load(Relaxed) == role::CLIENT => of_client(s.names[2].load(Relaxed), s.remote.each_ref().map(load)),
        _ => of_server(s.names[1].load(Relaxed)),
    };
    Some((mixed as usize >> 40 & (LESSONS - 1), (mixed >> 32) as u32 >> 8))
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Relaxed)
}

fn of_client(port: u16, address: [u64; 2]) -> u64 {
    mixed(address.iter().fold(u64::from(port) << 1 | 1, |h, w| (h ^ w).wrapping_mul(MULTIPLIER).rotate_left(29)))
}

fn of_server(port: u16) -> u64 {
    mixed(u64::from(port) << 1)
}

/// Never 0, which says that it is not known.
fn mixed(hash: u64) -> u64 {
    hash.wrapping_mul(MULTIPLIER) | 1
}

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

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

    /// Before the names are known, and afterwards.
    #[test]
    fn both_ends_find_the_lesson_of_their_port() {
        // SAFETY: all zero is a fresh record.
        let [client, listener, server]: [Sock; 3] = unsafe { std::mem::zeroed() };
        let names = |s: &Sock, local: u16, peer: Addr| {
            let ip = u64::from_ne_bytes(std::array::from_fn(|i| peer.folded().ip[i]));
            s.remote[0].store(ip, Relaxed);
            s.names[1].store(local, Relaxed);
            s.names[2].store(peer.port, Relaxed);
            s.names[0].store(libc::AF_INET as u16, Relaxed);
        };
        let at = |ip: [u8; 4], port| {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&ip);
            Addr { family: libc::AF_INET as u16, port, ip: all, scope: 0 }
        };
        assert_eq!(class(&client), None);
        client.role.store(role::CLIENT, Relaxed);
        server.role.store(role::SERVER, Relaxed);
        will_connect(&client, &at([127, 0, 0, 1], 6379).other_form());
        note(&listener, of_server(6379));
        comes_from(&server, &listener);
        let early = [&client, &server].map(class);
        names(&client, 40_000, at([127, 0, 0, 1], 6379));
        names(&server, 6379, at([127, 0, 0, 1], 40_000));
        assert_eq!(early, [&client, &server].map(class));
        assert_ne!(early[0], early[1]);
        will_connect(&client, &at([127, 0, 0, 2], 6379));
        assert_eq!(early[0], class(&client), "names that are known count");
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
