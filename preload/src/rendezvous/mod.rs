//! Discovery and proof of a peer on the same host, and the hand-over back.
//!
//! A connection starts on TCP. When it has proved to be worth it ([`after_op`]), the accepting side
//! announces itself on its socket ([`server`]); the connecting side looks there through sock_diag,
//! finds the process by the announced name, offers memory, and lets it prove that it holds the
//! socket ([`client`]). The proof of the connecting side goes through the stream (`engine::switch`).
//! Nothing here waits: each step is taken in some call of the program on this connection.
//!
//! Towards other hosts the TCP handshake itself carries the announcement: [`mark`].

pub mod aside;
pub mod bequest;
mod client;
pub mod deferred;
mod handover;
pub mod legacy;
mod listener;
pub mod mark;
mod owner;
pub mod pending;
mod refusals;
pub mod rest;
mod server;
pub mod smc;
pub mod stepping;
mod strict;
mod way_out;
pub mod worth;

pub use handover::{Back, PATIENCE_MS, ask_alone, ask_once_more, follow_back, go_home, hand_over, read_on, take_up_and_ask};

use crate::engine::{begin, offer, switch};
use crate::family::holders;
use crate::family::sock::{Sock, flag, role, step};
use crate::sys::{clock, net, proc};
use crate::transport::channel::Heard;
use crate::transport::peers::Peer;
use crate::{config, control};
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence};

/// Operations after which an offer, or an announcement that was answered, is given up, if this time has
/// passed as well: many small operations take less than the other side needs to wake up.
const PATIENCE: u32 = 4096;
const PATIENCE_US: u64 = 1_000_000;

/// A connection that a fork has shared: operations and microseconds until the next look whether the
/// other process is gone.
const SHARED_OPS: u32 = 16;
const SHARED_US: u64 = 2000;

/// After every operation that was not in memory both ways.
#[inline]
pub fn after_op(s: &'static Sock, sock: i32) {
    let n = s.ops.load(Relaxed) + 1;
    s.ops.store(n, Relaxed);
    if n >= s.next_ops.load(Relaxed) || is_heavy(s) {
        work(s, sock);
    }
}

/// Bytes make a connection worth it too.
#[inline]
fn is_heavy(s: &Sock) -> bool {
    s.carried() >= s.next_bytes.load(Relaxed) && s.step.load(Relaxed) == step::IDLE
}

#[cold]
fn work(s: &'static Sock, sock: i32) {
    let Some(_stepping) = stepping::begin(s, &sock) else { return };
    fence(SeqCst); // as in `step_in_wait`
    if !is_there(s, sock) {
        return; // closed behind the call's own look, and number and record may be those of others
    }
    s.next_bytes.store(u64::MAX, Relaxed); // bytes alone bring it here once
    if control::is_restricted() && s.region().is_none() {
        // Each call that we make may end the process.
        s.note(Reason::Seccomp);
        s.next_ops.store(u32::MAX, Relaxed);
    } else if s.has(flag::PINNED) && s.region().is_none() {
        s.next_ops.store(u32::MAX, Relaxed);
    } else if crate::sys::caught(|| one_step(s, sock)).is_none() {
        later(s, u32::MAX);
    }
    if config::strict() {
        strict::check(s, sock);
    }
}

/// A step outside of the connection's own operations; `is_there` says whether the descriptor still is
/// this socket's.
pub fn step_in_wait(s: &'static Sock, sock: i32, is_there: impl Fn() -> bool) {
    let Some(_stepping) = stepping::begin(s, &sock) else { return };
    fence(SeqCst); // pairs with the fence in `table::steps::let_finish`
    if is_there() && !(s.has(flag::PINNED) && s.region().is_none()) {
        let before = s.step.load(Relaxed);
        let _ = crate::sys::caught(|| one_step(s, sock));
        if s.step.load(Relaxed) != before {
            let _ = crate::sys::caught(|| one_step(s, sock));
        }
    }
}

fn one_step(s: &'static Sock, sock: i32) {
    let is_client = s.role.load(Relaxed) == role::CLIENT;
    match s.step.load(Acquire) {
        step::IDLE if !may_begin(s, sock) => {}
        step::IDLE if is_client => client::begin(s, sock),
        step::IDLE => server::announce(s, sock),
        step::ANNOUNCED => server::listen(s),
        step::TAKING | step::ATTACHING => {}
        step::OFFERED => client::await_nonce(s, sock),
        step::NONCE if is_client => client::verify(s, sock),
        step::NONCE => server::await_proof(s, sock),
        step::PROVED => proved(s, sock),
        _ => later(s, u32::MAX),
    }
}

/// It is the end that connects, from here on.
pub fn connects(s: &Sock) {
    s.role.store(role::CLIENT, Relaxed);
    worth::begin_counting(s);
    if !s.has(flag::PINNED) {
        s.note(Reason::NotWorthIt);
    }
}

fn may_begin(s: &Sock, sock: i32) -> bool {
    if !s.is_connection() {
        if s.role.load(Relaxed) == 0 {
            match net::peer_addr(sock) {
                // A connect() that was cancelled, or left by a handler's jump, goes on in the kernel.
                Ok(_) => connects(s),
                Err(_) => worth::begin_counting(s),
            }
        }
        return false;
    }
    if s.has(flag::PINNED) {
        later(s, u32::MAX);
        return false;
    }
    if !config::enabled() {
        s.note(Reason::Disabled);
        return false;
    }
    if is_stdio(s) {
        s.note(Reason::Stdio);
        later(s, s.ops.load(Relaxed).saturating_add(SHARED_OPS));
        return false;
    }
    if legacy::is_passed_on(s) {
        s.note(Reason::Passed);
        later(s, u32::MAX);
        return false;
    }
    if s.is_aside() || s.holders.load(Relaxed) > 1 || s.legacy.load(Relaxed) != 0 || s.heir.load(Relaxed) != 0 {
        if !aside::is_back(s, sock)
            || !is_due(s, SHARED_US)
            || {
                legacy::strike_out(s, sock);
                holders::is_shared(s)
            }
            || !legacy::is_sole(s, sock)
            || !legacy::come_back(s, sock)
        {
            if s.next_ops.load(Relaxed) != u32::MAX {
                s.note(legacy::reason(s));
                later(s, s.ops.load(Relaxed).saturating_add(SHARED_OPS));
            }
            return false;
        }
        s.next_tick.store(0, Relaxed);
    }
    if crate::family::process::memory() + crate::transport::region::LEN as u64 > config::max_memory() {
        s.note(Reason::MaxMemory);
        later(s, s.ops.load(Relaxed).saturating_mul(2));
        return false;
    }
    true
}

/// Whether settings let this connection begin; if not, it stays on TCP, whatever they say later. Its
/// names must be known.
fn is_allowed(s: &Sock) -> bool {
    match control::decide(s) {
        Ok(()) => true,
        Err(why) => {
            s.note(why);
            later(s, u32::MAX);
            false
        }
    }
}

/// A filter that the program has set for what comes, or that an accepted socket has from its listener, would be passed by: it
/// stays on TCP. One that is set later takes it back there (`table::options`).
fn stays_filtered(s: &Sock, sock: i32) -> bool {
    let is_filtered = net::is_filtered(sock);
    if is_filtered {
        s.note(Reason::TcpSpecial);
        later(s, u32::MAX);
    }
    is_filtered
}

/// Both ends are proved: get both directions into memory, as far as this side decides.
fn proved(s: &'static Sock, sock: i32) {
    if !aside::is_back(s, sock) {
        return;
    }
    if s.rate_nonce.swap(0, Relaxed) != 0 && s.role.load(Relaxed) == role::SERVER {
        server::give_rate_back(s, sock);
    }
    offer::offer_reading(s, sock);
    if !s.tx_in_memory() && !begin::awaits_payload(s) {
        switch::try_to_memory(s, sock);
    }
}

/// Not before this many operations.
fn later(s: &Sock, ops: u32) {
    s.next_ops.store(ops, Relaxed);
}

/// From now on the other side has [`PATIENCE`].
fn begin_waiting(s: &Sock) {
    s.deadline.store(u64::from(s.ops.load(Relaxed)) + u64::from(PATIENCE), Relaxed);
    s.since.store(clock::ticks(), Relaxed);
    pending::enter(s);
}

/// Operations since then.
fn waited(s: &Sock) -> u64 {
    (u64::from(s.ops.load(Relaxed)) + u64::from(PATIENCE)).saturating_sub(s.deadline.load(Relaxed))
}

/// It is the other end's turn, which may be on this very processor: a stream would send megabytes through TCP before that is given up.
fn give_way(s: &Sock) {
    const TIMES: u64 = 16;
    if waited(s) < TIMES {
        proc::yield_now();
    }
}

fn is_overdue(s: &Sock) -> bool {
    waited(s) > u64::from(PATIENCE) && clock::ticks().wrapping_sub(s.since.load(Relaxed)) > clock::ticks_of_us(PATIENCE_US)
}

/// Not before `us` microseconds; true if that time has come.
fn is_due(s: &Sock, us: u64) -> bool {
    let now = clock::ticks();
    if now < s.next_tick.load(Relaxed) {
        return false;
    }
    s.next_tick.store(now + clock::ticks_of_us(us), Relaxed);
    true
}

/// Before a fork, behind its counts ([`server::await_attached`]).
pub fn await_attached(ms: u32) {
    server::await_attached(ms);
}

/// This process holds it no more, and others do: what it has announced leads nowhere.
pub fn pause(s: &Sock, sock: i32) {
    server::pause(s, sock);
}

/// The record ends: nothing of it may stay in the tables here.
pub fn forget(s: &'static Sock) {
    server::end(s);
}

static STDIO: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Whether stdio or a child may use it behind the hooks, for it is stdin, stdout or stderr here.
fn is_stdio(s: &Sock) -> bool {
    let p = STDIO.load(Acquire);
    // SAFETY: `start` alone stores, and stores functions of this type.
    !p.is_null() && unsafe { std::mem::transmute::<*mut (), fn(&Sock) -> bool>(p) }(s)
}

static THERE: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Whether the socket has this number still.
fn is_there(s: &Sock, sock: i32) -> bool {
    let p = THERE.load(Acquire);
    // SAFETY: as above.
    p.is_null() || unsafe { std::mem::transmute::<*mut (), fn(&Sock, i32) -> bool>(p) }(s, sock)
}

/// Sets what the layers call back: lower ones here, this one the socket table (`is_stdio`, `is_there`). Called by the
/// constructor.
pub fn start(is_stdio: fn(&Sock) -> bool, is_there: fn(&Sock, i32) -> bool) {
    STDIO.store(is_stdio as *mut (), Release); // pairs with the Acquire above
    THERE.store(is_there as *mut (), Release); // the same
    crate::transport::channel::set_sink(heard);
    mark::set_provider(smc::is_usable);
}

/// A connection that is announced stays on TCP; of others there is nothing to be taken back.
pub fn stop_announcing(s: &Sock, sock: i32, why: Reason) {
    if s.step.load(Relaxed) == step::ANNOUNCED && s.role.load(Relaxed) == role::SERVER {
        server::withdraw(s, sock, why, step::FAILED);
    }
}

/// Whether other processes know this one by its user.
pub fn is_known() -> bool {
    listener::is_open() || crate::transport::kin::is_there()
}

/// This process can be no other user than these now; true if nobody reaches it any more by what it has announced.
pub fn part(users: [u32; 3]) -> bool {
    listener::part(users)
}

/// Names our descriptors here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    listener::descriptors(add);
    smc::descriptors(add);
}

/// Whether `fd` is one of our descriptors here.
pub fn owns(fd: i32) -> bool {
    listener::owns(fd) || smc::owns(fd)
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    listener::moved(old, new) || smc::moved(old, new)
}

/// A forked child has neither listener nor links.
pub fn forget_in_child() {
    listener::forget_in_child();
    smc::forget_in_child();
}

/// A message that was met while somebody looked for eventfds.
fn heard(peer: &Peer, heard: Heard) {
    match heard {
        Heard::Offer(o, fd) => server::take_offer(peer, o, fd),
        Heard::Answer(a) => client::answered(peer, a),
        Heard::Bell | Heard::Gone | Heard::Nothing => {}
    }
}

/// Names and addresses for smcrctl and for the question whether the peer is on this host.
fn learn_names(s: &Sock, sock: i32) -> Option<(net::Addr, net::Addr)> {
    let (local, remote) = (net::local_addr(sock).ok()?, net::peer_addr(sock).ok()?);
    let put = |to: &[std::sync::atomic::AtomicU64; 2], ip: [u8; 16]| {
        for (w, part) in to.iter().zip(ip.chunks_exact(8)) {
            w.store(u64::from_ne_bytes(part.try_into().unwrap_or([0; 8])), Relaxed);
        }
    };
    let (l, r) = (local.folded(), remote.folded());
    put(&s.local, l.ip);
    put(&s.remote, r.ip);
    s.names[1].store(l.port, Relaxed);
    s.names[2].store(r.port, Relaxed);
    s.names[0].store(l.family, Release);
    s.fd.store(sock, Relaxed);
    s.process.store(crate::family::process::index(), Relaxed);
    Some((local, remote))
}

/// Hash of an address that was found to be remote, and the tick at which it was asked for.
static LAST_REMOTE: AtomicU32 = AtomicU32::new(0);
static REMOTE_AT: AtomicU64 = AtomicU64::new(0);
/// So long it is taken for that: an address may come to this host (keepalived).
const REMOTE_US: u64 = 1_000_000;

/// The peer is on another host, which takes the place of what is no hindrance any more. What a handshake or a link has shown says more; the
/// service thread may note that just now.
fn note_remote(s: &Sock) {
    const PAST: [Reason; 6] = [Reason::None, Reason::NotWorthIt, Reason::Disabled, Reason::Stdio, Reason::SharedByFork, Reason::MaxMemory];
    let _ = s.reason.fetch_update(Relaxed, Relaxed, |r| PAST.iter().any(|past| past.code() == r).then_some(Reason::PeerRemote.code()));
}

/// Whether the peer's address is one of this host's (in this network namespace), as far as can be told now.
fn is_local(remote: &net::Addr) -> bool {
    if remote.is_loopback() {
        return true;
    }
    // The last remote address is remembered for a while, so that a server with many connections from one host
    // asks once.
    let hash = remote.ip.iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    let now = clock::ticks();
    if LAST_REMOTE.load(Relaxed) == hash && now.wrapping_sub(REMOTE_AT.load(Relaxed)) < clock::ticks_of_us(REMOTE_US) {
        return false;
    }
    match net::is_own_address(remote) {
        Ok(false) => {
            REMOTE_AT.store(now, Relaxed);
            LAST_REMOTE.store(hash, Relaxed);
            false
        }
        Ok(true) => true,
        Err(_) => false, // no descriptor: this connection is not looked at again, and others are
    }
}
