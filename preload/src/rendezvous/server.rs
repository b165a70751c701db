//! The accepting side: announces, takes offers, waits for the proof in the stream. Needs no netlink
//! (hazard 10; [`owner`]).

use super::{
    PATIENCE, SHARED_OPS, begin_waiting, give_way, is_allowed, is_due, is_local, is_overdue, later, learn_names, listener, note_remote, owner,
    stays_filtered, waited, worth,
};
use crate::engine::{begin, follow, offer, shadow, shut};
use crate::family::sock::{Sock, flag, step};
use crate::family::{self, holders, index_of, process};
use crate::fault::{self, Step as Fault};
use crate::sys::postponed::Work;
use crate::sys::{Errno, fd, net, proc};
use crate::transport::peers::{self, Peer};
use crate::transport::region::{self, setup};
use crate::transport::wide;
use crate::{control, engine::bell, family::sock::role, log};
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use smcr_proto::register::announcement;
use smcr_proto::rendezvous::{Answer, Message, Offer, agree};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Announced sockets by cookie (open addressing); private to the process.
const EXPECTED: usize = 8192;
const PROBES: usize = 32;

struct Slot {
    cookie: AtomicU64,
    sock: AtomicU32,
}

static TABLE: [Slot; EXPECTED] = [const { Slot { cookie: AtomicU64::new(0), sock: AtomicU32::new(0) } }; EXPECTED];

/// Cookies that were in it lately: offers for them may be on their way.
static GONE: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static GOING: AtomicUsize = AtomicUsize::new(0);

/// Shows the peer that the library is here, if the peer can be on this host.
pub fn announce(s: &'static Sock, sock: i32) {
    let Some((_, remote)) = learn_names(s, sock) else { return later(s, u32::MAX) };
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
    if stays_filtered(s, sock) {
        return;
    }
    let Ok(before) = net::rate(sock) else {
        s.note(Reason::NoResources);
        return later(s, u32::MAX);
    };
    if before != u64::MAX {
        s.note(Reason::Pacing);
        return later(s, u32::MAX);
    }
    let (Ok(cookie), Ok(name)) = (net::cookie(sock), listener::name()) else {
        s.note(Reason::NoResources);
        return later(s, s.ops.load(Relaxed).saturating_mul(2));
    };
    s.cookie.store(cookie, Relaxed);
    s.rate_before.store(before, Relaxed);
    if !remember(cookie, s) {
        return later(s, s.ops.load(Relaxed).saturating_mul(2));
    }
    s.step.store(step::ANNOUNCED, Release);
    s.tries.store(1, Relaxed);
    let rate = announcement(name);
    if net::set_rate(sock, rate).is_err() {
        forget(s);
        s.step.store(step::FAILED, Relaxed);
        return later(s, u32::MAX);
    }
    s.note(Reason::PeerPlain);
    process::count(Counter::Announces, 1);
    listener::expect();
    begin_waiting(s);
    later(s, 0);
    log::debug!(target: "smcr::rendezvous", fd = sock, "announced");
}

/// Announced: offers come through the listener.
pub fn listen(s: &'static Sock) {
    listener::look();
    if s.step.load(Relaxed) == step::NONCE {
        give_way(s);
    }
    let n = s.ops.load(Relaxed);
    if s.step.load(Relaxed) == step::ANNOUNCED && is_overdue(s) {
        later(s, n.saturating_add(n.min(PATIENCE))); // a client waits for its answer as long
    }
}

/// A peer offers memory for a connection.
pub fn take_offer(peer: &Peer, o: Offer, region_fd: i32) {
    let answer = |version, reason| {
        let _ = peer.send(&Message::Answer(Answer { version, id: o.id, reason }), None);
        if reason == Reason::None {
            process::count(Counter::OffersTaken, 1);
        } else {
            process::count(Counter::OffersRefused, 1);
            log::info!(target: "smcr::rendezvous", reason = reason.label(), "offer refused");
        }
    };
    let Some(version) = agree(o.versions) else {
        fd::close(region_fd);
        return answer(0, Reason::Version);
    };
    let Some(s) = find(o.cookie) else {
        fd::close(region_fd);
        // Closed since, or taken back for a program that has it too: asked again, its socket says which. Else somebody shows a name that
        // is not his.
        let was_here = GONE.iter().any(|cookie| o.cookie != 0 && cookie.load(Relaxed) == o.cookie);
        return answer(0, if was_here { Reason::SharedByFork } else { Reason::PeerSilent });
    };
    // Another thread may close the socket now, and its record become another socket's: it waits, or stops this (`end`).
    if s.step.compare_exchange(step::ANNOUNCED, step::TAKING, AcqRel, Relaxed).is_err() {
        fd::close(region_fd);
        // One that a child has taken over by exec is asked again: it announces itself there.
        let is_left = s.heir.load(Relaxed) != 0;
        return answer(0, if is_left { Reason::SharedByFork } else { Reason::PeerPinned });
    }
    let accepted = accept(s, peer, &o, region_fd);
    let _ = s.step.compare_exchange(step::TAKING, step::ANNOUNCED, AcqRel, Relaxed);
    match accepted {
        Ok(()) => answer(version, Reason::None),
        Err(reason) => answer(0, reason),
    }
}

/// An announcement is taken back: the connection begins anew with those who hold it still.
pub fn pause(s: &Sock, sock: i32) {
    if s.step.compare_exchange(step::ANNOUNCED, step::TAKING, AcqRel, Acquire).is_ok() {
        withdraw(s, sock, Reason::SharedByFork, step::IDLE);
    }
}

/// The record ends: no offer is taken for it any more. One that is just being taken is waited for; where that takes long (it may look for
/// whose socket the other end is) nothing comes of it.
pub fn end(s: &Sock) {
    const YIELDS: u32 = 64;
    const TRIES: u32 = 264;
    /// What is left then has no question to anybody in it: its thread has no processor.
    const MOST: u32 = TRIES + 2000;
    for n in 0..MOST {
        let ends = |now| now == step::ANNOUNCED || now == step::TAKING && n >= TRIES;
        match s.step.fetch_update(AcqRel, Acquire, |now| ends(now).then_some(step::FAILED)) {
            Ok(_) => break,
            Err(step::TAKING | step::ATTACHING) if n < YIELDS => proc::yield_now(),
            Err(step::TAKING | step::ATTACHING) => drop(fd::poll(&mut [], 1)),
            Err(_) => break, // a relative may have taken an announcement of ours back
        }
    }
    forget(s);
}

/// What came of an offer is noted in the step; nothing, where it stays as it is.
fn accept(s: &'static Sock, peer: &Peer, o: &Offer, region_fd: i32) -> Result<(), Reason> {
    let sock = s.fd.load(Relaxed);
    if s.has(flag::PINNED) || s.cookie.load(Relaxed) != o.cookie || net::cookie(sock) != Ok(o.cookie) {
        fd::close(region_fd);
        return Err(Reason::PeerPinned);
    }
    if holders::is_shared(s) || super::is_stdio(s) {
        // Memory that only this process maps: not while a forked child has the connection too.
        fd::close(region_fd);
        withdraw(s, sock, Reason::SharedByFork, step::IDLE);
        return Err(Reason::SharedByFork);
    }
    let Some(slot) = peers::slot_of(peer) else {
        fd::close(region_fd);
        return Err(Reason::NoResources);
    };
    if let Err(reason) = may_share(s, peer.who().1) {
        fd::close(region_fd);
        withdraw(s, sock, reason, step::FAILED);
        return Err(Reason::PeerPinned); // what we have against it is not the peer's to know
    }
    if !owner::is_of(peer, sock) {
        // Not its connection, as far as anybody can tell: another one may have it, and comes yet.
        fd::close(region_fd);
        s.note(Reason::UidMismatch);
        return Err(Reason::UidMismatch);
    }
    let nonce = proc::random::<16>().map_err(|_| Reason::NoResources);
    let p = match region::adopt(region_fd) {
        Ok(p) => p,
        Err(Errno(libc::ENOBUFS)) => {
            withdraw(s, sock, Reason::MaxMemory, step::FAILED);
            return Err(Reason::MaxMemory);
        }
        Err(_) => return Err(Reason::NoResources),
    };
    let nonce = match nonce {
        Ok(n) if peer.hold() => n,
        _ => {
            region::drop_mapping(p);
            return Err(Reason::NoResources);
        }
    };
    // Closed meanwhile, the record may be another connection's.
    if s.step.compare_exchange(step::TAKING, step::ATTACHING, AcqRel, Relaxed).is_err() {
        region::drop_mapping(p);
        peer.release();
        return Err(Reason::PeerPinned);
    }
    // SAFETY: a live mapping; all fields are atomics.
    let r = unsafe { &*p };
    forget(s);
    for (i, part) in nonce.chunks_exact(8).enumerate() {
        let v = u64::from_le_bytes(part.try_into().unwrap_or([0; 8]));
        s.nonce[i].store(v, Relaxed);
        r.nonce[i].store(v, Relaxed);
    }
    let (pid, uid) = peer.who();
    s.peer_pid.store(pid, Relaxed);
    s.peer_uid.store(uid, Relaxed);
    s.peer.store(slot, Relaxed);
    shut::learn(s, sock);
    if !attach(s, p, role::SERVER) {
        region::drop_mapping(p);
        s.peer.store(0, Relaxed);
        peer.release();
        withdraw(s, sock, Reason::SharedByFork, step::IDLE);
        return Err(Reason::SharedByFork);
    }
    s.rate_nonce.store(o.rate, Relaxed);
    s.set_state(State::Negotiating);
    begin_waiting(s);
    begin::count_sends(s);
    shadow::learn(s, sock); // first: a careful read keeps the program's limits itself, also those that its listener had
    offer::become_careful(s);
    fault::pass(Fault::Careful);
    s.step.store(step::NONCE, Release);
    later(s, 0);
    if net::set_rate(sock, o.rate).is_err() {
        offer::abandon(s, Reason::ProofFailed);
        return Err(Reason::ProofFailed);
    }
    offer::offer_reading(s, sock);
    fault::pass(Fault::NonceOnSocket);
    r.server.store(setup::NONCE, Release);
    log::debug!(target: "smcr::rendezvous", fd = sock, pid, "offer taken");
    Ok(())
}

/// Settings may have changed since the announcement, and who asks is known only now.
fn may_share(s: &Sock, uid: u32) -> Result<(), Reason> {
    control::decide(s)?;
    control::decide_peer(uid)
}

/// Takes an announcement back: the connection may begin anew (`next` idle), or stays on TCP (failed).
pub fn withdraw(s: &Sock, sock: i32, why: Reason, next: u32) {
    forget(s);
    give_rate_back(s, sock);
    s.note(why);
    later(s, if next == step::IDLE { s.ops.load(Relaxed).saturating_add(SHARED_OPS) } else { u32::MAX });
    s.step.store(next, Release);
}

/// The register that announced it is what it was, unless the program has set it since.
pub fn give_rate_back(s: &Sock, sock: i32) {
    let rate = s.rate_before.load(Relaxed);
    if rate != 0 {
        let _ = net::set_rate(sock, rate);
    }
}

/// Threads that bring memory to a connection now.
static ATTACHING: AtomicU32 = AtomicU32::new(0);

/// Between counting for a fork and the fork: those that have found a connection unshared bring it its memory first. At most so long.
pub fn await_attached(ms: u32) {
    for _ in 0..ms {
        if ATTACHING.load(SeqCst) == 0 {
            return;
        }
        let _ = fd::poll(&mut [], 1);
    }
}

/// Connects a record with a mapped region. False: a fork has come between, and the child has the record without the mapping: it gets no memory.
pub fn attach(s: &Sock, p: *mut region::RegionHeader, role: u32) -> bool {
    let _work = Work::begin(); // no handler jumps out of it
    // SeqCst, as the counts of a fork: it waits for this, or is found here.
    ATTACHING.fetch_add(1, SeqCst);
    let is_alone = s.holders.load(SeqCst) <= 1;
    if is_alone {
        connect(s, p, role);
    }
    ATTACHING.fetch_sub(1, SeqCst);
    is_alone
}

fn connect(s: &Sock, p: *mut region::RegionHeader, role: u32) {
    // SAFETY: a live mapping; all fields are atomics.
    let r = unsafe { &*p };
    let (tx, rx) = if role == role::CLIENT { (0, 1) } else { (1, 0) };
    wide::unmap(index_of(s));
    for (half, n) in [(&s.tx, tx), (&s.rx, rx)] {
        half.wide.store(0, Relaxed);
        let size = region::size_of_ring(r.dirs[n].size.load(Relaxed)).unwrap_or(region::RING_MIN);
        half.ring.store(region::ring_of(p, n, size), Relaxed);
        half.size.store(if n == tx { size as u32 } else { 0 }, Relaxed);
        half.deep.store(0, Relaxed);
        half.dir.store(std::ptr::from_ref(&r.dirs[n]).cast_mut(), Release);
    }
    s.tx_ring.store(s.tx.size.load(Relaxed), Relaxed);
    s.rx_ring.store(r.dirs[rx].size.load(Relaxed), Relaxed);
    s.tx.gate.store(bell::CLOSED, Relaxed);
    s.region.store(p, Release);
    bell::arm(s, &r.dirs[rx]);
    shadow::show_linger(s); // where it was learned before
    shut::show(s);
}

/// The nonce is on the socket: the connecting side's proof comes through the stream.
pub fn await_proof(s: &'static Sock, sock: i32) {
    offer::offer_reading(s, sock);
    if is_due(s, 50)
        && let Some(dir) = s.rx.dir()
        && dir.switch.load(Acquire) != 0
    {
        // A side that only sends must take the proof all the same.
        follow::progress(s, sock);
    }
    if let Some(dir) = s.rx.dir().filter(|_| s.step.load(Relaxed) == step::NONCE) {
        begin::take_alone(s, sock, dir, waited(s));
        give_way(s);
    }
    let Some(r) = s.region().filter(|_| s.step.load(Relaxed) == step::NONCE) else { return };
    if is_overdue(s) {
        let _ = r.server.compare_exchange(setup::NONCE, setup::REFUSED, AcqRel, Relaxed);
    }
    // Acquire: pairs with the release by which a relative that gives it away has refused the proof (`proof::refuse`), and noted why.
    if r.server.load(Acquire) == setup::REFUSED {
        // The connecting side has not begun, and after this exchange it can't; or it has given up itself.
        let noted = Reason::from_code(s.reason.load(Relaxed)).filter(|r| *r != Reason::PeerPlain); // as `announce` has it
        give_rate_back(s, sock);
        offer::abandon(s, noted.unwrap_or(Reason::PeerSilent));
        later(s, u32::MAX);
    }
}

fn remember(cookie: u64, s: &'static Sock) -> bool {
    for i in 0..PROBES {
        let slot = &TABLE[(cookie as usize).wrapping_add(i) % EXPECTED];
        if slot.cookie.compare_exchange(0, cookie, AcqRel, Relaxed).is_ok() {
            slot.sock.store(family::index_of(s), Release);
            return true;
        }
    }
    false
}

fn find(cookie: u64) -> Option<&'static Sock> {
    let base = family::base()?;
    slots(cookie).next().map(|slot| family::sock(base, slot.sock.load(Acquire)))
}

fn slots(cookie: u64) -> impl Iterator<Item = &'static Slot> {
    (0..PROBES)
        .map(move |i| &TABLE[(cookie as usize).wrapping_add(i) % EXPECTED])
        .filter(move |slot| cookie != 0 && slot.cookie.load(Acquire) == cookie)
}

/// Takes a socket out of the table.
pub fn forget(s: &Sock) {
    let cookie = s.cookie.load(Relaxed);
    for slot in slots(cookie) {
        GONE[GOING.fetch_add(1, Relaxed) % GONE.len()].store(cookie, Relaxed); // first: it is here or there
        slot.cookie.store(0, Release);
    }
}

/// A forked child has announced nothing, and none of its parent's other threads.
pub fn forget_in_child() {
    ATTACHING.store(0, Relaxed);
    for slot in &TABLE {
        if slot.cookie.load(Relaxed) != 0 {
            slot.cookie.store(0, Relaxed);
        }
    }
}
