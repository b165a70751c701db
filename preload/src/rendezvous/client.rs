//! The connecting side: looks at the peer's socket, offers memory, checks the proof.

use super::{
    begin_waiting, give_way, is_allowed, is_due, is_local, is_overdue, later, learn_names, note_remote, refusals, server, stays_filtered, worth,
};
use crate::engine::begin::count_receives;
use crate::engine::{offer, shadow, shut};
use crate::family::sock::{Sock, role, step};
use crate::family::{self, process};
use crate::fault::{self, Step as Fault};
use crate::sys::diag::{self, SocketFacts};
use crate::sys::{Errno, Res, Sysno, clock, fd, net, porter, proc, tcp_state};
use crate::transport::channel::{Read, read};
use crate::transport::peers::{self, Peer};
use crate::transport::region::{self, RegionHeader, setup};
use crate::{config, control, log};
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use smcr_proto::register::{announced, proof_rate};
use smcr_proto::rendezvous::{Answer, Message, Offer, VERSION_HIGH, VERSION_LOW, channel_name};
use std::sync::atomic::Ordering::*;

/// Without an answer of the kernel the look at the peer's socket is given up after so many.
const TRIES: u32 = 9;
/// Where the peer announces nothing, looks follow each other after twice this, and then twice the time again, up to
/// 50 ms, while the connection carries traffic: a look costs some 10 us, and a server may take its
/// connections late.
const FIRST_GAP_US: u64 = 25;
const LAST_GAP_US: u64 = 50_000;
/// After a refusal because of a fork, looks go on as after so many.
const TRIES_WHEN_SHARED: u32 = 7;
/// Where a stream may have begun, so many looks follow each other in this time: 128 KiB have gone since the last one, or the
/// peer has refused and is known to announce itself when it holds the connection alone.
const LOOKS_IN_STREAM: u32 = 500;
const GAP_IN_STREAM_US: u64 = 1000;
const STREAM_KIB: u32 = 128;
/// Operations between two looks at the clock.
const GAP_OPS: u32 = 2;

/// Worth it: does the peer announce the library?
pub fn begin(s: &'static Sock, sock: i32) {
    if !is_time(s) {
        return later(s, s.ops.load(Relaxed).saturating_add(GAP_OPS));
    }
    let Some((local, remote)) = learn_names(s, sock) else {
        // A program may try before it is connected: what it has done so far counts for nothing.
        s.ops.store(0, Relaxed);
        return worth::begin_counting(s);
    };
    if !is_allowed(s) {
        return;
    }
    if !is_local(&remote) {
        note_remote(s);
        return later(s, u32::MAX);
    }
    if !worth::is_reached(s) {
        return;
    }
    if s.tries.load(Relaxed) == 0 && stays_filtered(s, sock) {
        return;
    }
    let tries = s.tries.fetch_add(1, Relaxed) + 1;
    match facts(&local, &remote) {
        Err(_) => {
            s.note(Reason::NoDiag);
            if tries < TRIES { again(s) } else { later(s, u32::MAX) }
        }
        Ok(f) => match announced(f.pacing) {
            None => {
                s.note(if was_refused(s) { Reason::SharedByFork } else { Reason::PeerPlain });
                again(s);
            }
            Some(name) => {
                if let Err(reason) = offer(s, sock, name, &f) {
                    s.note(reason);
                    again(s);
                }
            }
        },
    }
}

/// Looks again after a while that grows with the tries.
fn again(s: &Sock) {
    if s.tries.load(Relaxed) < TRIES {
        proc::yield_now(); // as in `give_way`
    }
    s.next_tick.store(clock::ticks() + clock::ticks_of_us(gap_us(s)), Relaxed);
    s.count_kib();
    later(s, s.ops.load(Relaxed).saturating_add(GAP_OPS));
}

fn gap_us(s: &Sock) -> u64 {
    (FIRST_GAP_US << s.tries.load(Relaxed).min(16)).min(LAST_GAP_US)
}

/// Whether the time of the next look has come.
fn is_time(s: &Sock) -> bool {
    let (now, at) = (clock::ticks(), s.next_tick.load(Relaxed));
    let is_stream = s.tries.load(Relaxed) < LOOKS_IN_STREAM && (was_refused(s) || s.kib_since_look() >= STREAM_KIB);
    let earlier = if is_stream { gap_us(s).saturating_sub(GAP_IN_STREAM_US) } else { 0 };
    now.saturating_add(clock::ticks_of_us(earlier)) >= at
}

/// What the kernel says of the socket at the other end.
pub(super) fn facts(local: &net::Addr, remote: &net::Addr) -> Result<SocketFacts, Errno> {
    process::count(Counter::DiagQueries, 1);
    match diag::lookup(remote, local) {
        // A dual-stack listener's child is an IPv6 socket for an IPv4 client, and the reverse.
        Err(Errno(libc::ENOENT)) => diag::lookup(&remote.other_form(), &local.other_form()),
        r => r,
    }
}

/// Whether an offer was refused because of a fork: memory is kept for the next one.
fn was_refused(s: &Sock) -> bool {
    s.region().is_some()
}

fn offer(s: &'static Sock, sock: i32, name: u64, f: &SocketFacts) -> Result<(), Reason> {
    control::decide_peer(f.uid)?;
    let slot = match peers::find(name) {
        Some(slot) => slot,
        None if refusals::has(name) => return Err(Reason::PeerSilent),
        None => connect(name, f.uid)?,
    };
    let peer = peers::get(slot).ok_or(Reason::NoResources)?;
    if peer.who().1 != f.uid {
        peer.release();
        return Err(Reason::UidMismatch);
    }
    let sent = (|| {
        let random = u64::from_ne_bytes(proc::random::<8>().map_err(|_| Reason::NoResources)?);
        let refused = |e| if e == Errno(libc::ENOBUFS) { Reason::MaxMemory } else { Reason::NoResources };
        let (p, region_fd) = memory(s).map_err(refused)?;
        let rate = proof_rate(random);
        let (pid, uid) = peer.who();
        s.peer_pid.store(pid, Relaxed);
        s.peer_uid.store(uid, Relaxed);
        s.rate_nonce.store(rate, Relaxed);
        s.peer_cookie.store(f.cookie, Relaxed);
        let message = Message::Offer(Offer { versions: (VERSION_LOW, VERSION_HIGH), cookie: f.cookie, id: number_of(s), rate });
        shut::learn(s, sock);
        if !server::attach(s, p, role::CLIENT) {
            if s.region().is_none() {
                region::drop_mapping(p);
            }
            fd::close(region_fd);
            return Err(Reason::SharedByFork);
        }
        let sent = peer.send(&message, Some(region_fd));
        fault::pass(Fault::OfferSent);
        fd::close(region_fd);
        if let Err(e) = sent {
            if e.0 == libc::EPIPE && peer.start_reading() {
                peer.lost(); // stays marked as being read
            }
            s.tx.dir.store(std::ptr::null_mut(), Release);
            s.rx.dir.store(std::ptr::null_mut(), Release);
            return Err(Reason::PeerSilent);
        }
        Ok(())
    })();
    if let Err(reason) = sent {
        peer.release();
        return Err(reason);
    }
    if let Some(before) = peers::get(s.peer.swap(slot, AcqRel)) {
        before.release(); // of an offer that was refused
    }
    s.set_state(State::Negotiating);
    s.note(Reason::PeerSilent);
    begin_waiting(s);
    shadow::learn(s, sock);
    offer::become_careful(s);
    s.step.store(step::OFFERED, Release);
    later(s, 0);
    process::count(Counter::Offers, 1);
    log::debug!(target: "smcr::rendezvous", fd = sock, pid = s.peer_pid.load(Relaxed), "offer sent");
    offer::offer_reading(s, sock);
    give_way(s);
    Ok(())
}

/// Memory for an offer: new, or in the place of what a peer refused before.
fn memory(s: &Sock) -> Res<(*mut RegionHeader, i32)> {
    // An empty one begins anew (`engine::near`): of a larger one, small messages touch no more.
    let size = config::ring_size().unwrap_or(region::RING_MAX);
    match s.region.load(Acquire) {
        p if p.is_null() => region::make(size),
        p => region::renew(p, size).map(|fd| (p, fd)),
    }
}

fn connect(name: u64, uid: u32) -> Result<u32, Reason> {
    if porter::are_all_away() {
        return Err(Reason::NoResources);
    }
    let own_uid = proc::euid();
    if !peers::admits(uid, own_uid) {
        return Err(Reason::NoResources); // before anything is made for it
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let sock = net::socket(libc::AF_UNIX, kind, 0).map_err(|_| Reason::NoResources)?;
    let (raw, len) = net::abstract_name(&channel_name(name)[..15]);
    if let Err(e) = net::with_addr(Sysno::connect, sock, &raw[..len]) {
        fd::close(sock);
        if e.0 != libc::EAGAIN {
            refusals::note(name); // not one whose queue is full, for the moment
        }
        return Err(Reason::PeerSilent);
    }
    let sock = fd::park(sock);
    // The credentials are those of the process that made the listener. Checked before anything is
    // sent: a squatter of another uid gets nothing.
    let who = match net::peer_credentials(sock) {
        Ok(who) if who.uid == uid => who,
        _ => {
            porter::let_go(&[sock]);
            return Err(Reason::UidMismatch);
        }
    };
    peers::add(sock, name, who, own_uid).ok_or_else(|| {
        porter::let_go(&[sock]);
        Reason::NoResources
    })
}

/// Offered: the peer shows in the region that the nonce is on its socket, or refuses.
pub fn await_nonce(s: &'static Sock, sock: i32) {
    let Some(r) = s.region() else { return later(s, u32::MAX) };
    offer::offer_reading(s, sock);
    if r.server.load(Acquire) == setup::NONCE {
        if s.step.compare_exchange(step::OFFERED, step::NONCE, AcqRel, Relaxed).is_ok() {
            verify(s, sock);
        }
        return;
    }
    if is_due(s, 100) {
        hear(s, sock);
    }
    give_way(s);
    if is_overdue(s) {
        refused(s, Reason::PeerSilent);
    }
}

fn hear(s: &'static Sock, sock: i32) {
    let Some(peer) = peers::get(s.peer.load(Relaxed)) else { return };
    if !peer.start_reading() {
        return;
    }
    if read(peer, super::heard) == Read::Gone {
        if !peer.has_spoken() {
            refusals::note(peer.name());
        }
        peer.lost();
        refused(s, if tcp_state::has_open_peer(sock) { Reason::PeerSilent } else { Reason::HalfClosed });
    } else {
        peer.stop_reading();
    }
}

/// Our number for an offer: the record, and which of the connections in it this was.
fn number_of(s: &Sock) -> u32 {
    s.generation.load(Relaxed) << 16 | family::index_of(s)
}

const _: () = assert!(family::SOCK_CAP <= 1 << 16);

/// An answer of this peer to one of our offers; only a refusal says something that the region does not. Relatives have offers in the same
/// records, with memory that lies elsewhere.
pub fn answered(peer: &Peer, a: Answer) {
    let Some(base) = family::base() else { return };
    let s = family::sock(base, a.id & 0xffff);
    let is_asked = || s.is_held_in(process::index()) && number_of(s) == a.id && peers::slot_of(peer) == Some(s.peer.load(Relaxed));
    if a.reason != Reason::None && is_asked() {
        refused(s, a.reason);
    }
}

/// The peer does not take the offer, or does not answer it. Another thread may see just now that it has.
fn refused(s: &'static Sock, why: Reason) {
    if s.step.compare_exchange(step::OFFERED, step::TAKING, AcqRel, Relaxed).is_err() {
        return;
    }
    log::info!(target: "smcr::rendezvous", reason = why.label(), "offer refused by the peer");
    if why == Reason::SharedByFork {
        // The peer announces itself anew when it holds the connection alone.
        s.tries.store(TRIES_WHEN_SHARED, Relaxed);
        again(s);
        offer::postpone(s, why);
    } else {
        give_up(s, why);
    }
}

/// The peer says that the nonce is on its socket: the kernel must say so too.
pub fn verify(s: &'static Sock, sock: i32) {
    let Some(r) = s.region() else { return later(s, u32::MAX) };
    let (Ok(local), Ok(remote)) = (net::local_addr(sock), net::peer_addr(sock)) else { return };
    let found = match facts(&local, &remote) {
        // Nothing to ask by, for the moment: once more, while the peer waits.
        Err(Errno(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN)) if !is_overdue(s) => {
            return later(s, s.ops.load(Relaxed).saturating_add(GAP_OPS));
        }
        found => found,
    };
    let is_it = |f: &SocketFacts| f.cookie == s.peer_cookie.load(Relaxed);
    let holds = found.is_ok_and(|f| is_it(&f) && f.pacing == s.rate_nonce.load(Relaxed) && f.uid == s.peer_uid.load(Relaxed));
    if !holds && found.map_or_else(|e| e.0 == libc::ENOENT, |f| is_it(&f) && f.inode == 0) {
        return give_up(s, Reason::HalfClosed); // the peer has closed it since
    }
    if !holds {
        process::count(Counter::ProofFailures, 1);
        log::warn!(target: "smcr::rendezvous", fd = sock, "the peer's socket does not show the nonce");
        return give_up(s, Reason::ProofFailed);
    }
    fault::pass(Fault::Verified);
    for (to, from) in s.nonce.iter().zip(&r.nonce) {
        to.store(from.load(Relaxed), Relaxed);
    }
    count_receives(s);
    s.tries.store(1, Relaxed); // of looks until now, from here on of switches (`engine::switch`)
    s.step.store(step::PROVED, Release);
    log::debug!(target: "smcr::rendezvous", fd = sock, "peer proved");
    super::proved(s, sock);
}

fn give_up(s: &'static Sock, why: Reason) {
    if let Some(r) = s.region() {
        r.server.store(setup::REFUSED, Release);
    }
    offer::abandon(s, why);
    later(s, u32::MAX);
}
