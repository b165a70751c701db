//! SMC-R between hosts: from a TCP connection whose handshake showed the option to a link, or back.
//!
//! [`first_use`] is called when a marked connection is used: it puts the connection into memory
//! (`engine::linked`) and hands the CLC handshake to the [`service`] thread, which runs it
//! ([`shake`]) while the program goes on, and the [`way_back`] to TCP. The thread exists from the first such handshake on; it also
//! serves LLC and completions while nobody else looks. `docs/decisions/09-rdma.md` says why.

pub mod backlog;
mod blocked;
pub mod declined;
mod desk;
mod farewell;
mod gate;
mod heir;
mod relatives;
mod service;
mod shake;
mod stream;
mod way_back;

use super::learn_names;
use super::mark::{self, Shown};
use crate::engine::linked::{self, Rings};
use crate::engine::{disconnected, shadow};
use crate::family::sock::{Sock, flag, role};
use crate::link::{cover, lock};
use crate::sys::few::{self, Brief};
use crate::sys::{fd, net};
use crate::verbs::{fit, load, port};
use crate::{config, control, log};
use shake::Shake;
use smcr_proto::handshake::Peer;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::id::RmbeSize;
use std::sync::atomic::Ordering::*;

pub use farewell::{at_exit, leave_to_relatives};
pub use gate::{after_fork, before_fork};
pub use service::{descriptors, inherit, moved, owns, watch_listener};

/// Whether RDMA can be used at all: asked before anything is marked. A listener is marked once, and for good: its device may have an address
/// a moment later, and it costs a handshake only where a client shows the option too.
pub fn is_usable(connects: bool) -> bool {
    (if connects { fit::is_fit() } else { port::any() }) && load::functions().is_some()
}

/// A marked connection is about to be used, or was just established.
#[cold]
pub fn first_use(s: &'static Sock, sock: i32) {
    if !s.has(flag::UNASKED) {
        return;
    }
    match mark::ask(s, sock) {
        Shown::NotYet => {}
        Shown::Unmarked | Shown::Nobody => s.clear(flag::UNASKED),
        Shown::Peer(peer) => {
            let _entered = gate::enter();
            gate::alone(|| once(s, || begin(s, sock, peer, PATIENCE)));
        }
    }
}

/// Only one thread begins (`gate::alone`). Others that are about to use the connection see that nobody has looked yet until it has.
fn once(s: &Sock, begin: impl FnOnce()) {
    if s.has(flag::UNASKED) {
        begin();
        s.clear(flag::UNASKED);
    }
}

/// [`first_use`] for a connection that nobody has used since it was accepted, if this process alone has it: where several have it,
/// the one that uses it begins. False: to be asked again.
fn begin_unused(s: &'static Sock, sock: i32) -> bool {
    let Some(_entered) = gate::try_enter() else { return false };
    if s.holders.load(Relaxed) == 1
        && let Shown::Peer(peer) = mark::ask(s, sock)
    {
        return gate::alone_now(|| once(s, || begin(s, sock, peer, PATIENCE_OF_SERVICE)));
    }
    true
}

/// Another program is about to get a connection that nobody has used, or the kernel is to tell this one of its bytes: it is declined here, for
/// neither the other one nor who has it as well could do so later, when the other may have used it. TCP from now on.
pub fn give_away(s: &'static Sock, sock: i32, why: Reason) {
    if s.has(flag::UNASKED)
        && let Shown::Peer(peer) = mark::ask(s, sock)
    {
        gate::alone(|| once(s, || decline(s, sock, peer, why, PATIENCE)));
    }
}

/// The last descriptor of a connection is about to be closed, and nobody has used it: its end must be TCP's. A greeting that lies unread would make a
/// reset of it; a kernel's client is still in its connect(), which fails if it is not answered.
pub fn close_unused(s: &'static Sock, sock: i32) {
    let is_client = s.role.load(Relaxed) == role::CLIENT;
    match mark::ask(s, sock) {
        Shown::Peer(Peer::Ours { .. }) if is_client => stream::drop_greeting(sock),
        Shown::Peer(peer @ Peer::Smc) if !is_client => gate::alone(|| once(s, || decline(s, sock, peer, Reason::NotWorthIt, PATIENCE_OF_SERVICE))),
        _ => {}
    }
}

/// A marked connection was accepted. Its first use makes the link; if that does not come soon, the service
/// thread does, for a kernel's client waits for the handshake, and not for long.
pub fn accepted(s: &'static Sock, sock: i32) {
    if let Shown::Peer(_) = mark::ask(s, sock) {
        s.cookie.store(net::cookie(sock).unwrap_or(0), Relaxed);
        service::begin_later(s, sock);
    } else {
        s.clear(flag::UNASKED);
    }
}

/// How long exec waits for a handshake, and how long for one that has got nowhere yet: longer than a peer may take for one message.
const PATIENCE_MS: u32 = 1000;
const PATIENCE_BARE_MS: u32 = 7000;

/// How long a peer may take where a handshake is declined in place: a kernel waits 10 s, a libsmcr 6 s for a message. The service thread has others
/// to look after, and the peer has begun long ago when it comes.
const PATIENCE: Time = Time::from_secs(10);
const PATIENCE_OF_SERVICE: Time = Time::from_secs(1);

/// What was shown is a commitment: CLC follows, if only to say no.
fn begin(s: &'static Sock, sock: i32, peer: Peer, patience: Time) {
    let refusal = may_link(s, sock).err();
    let size = ring_size(&peer);
    let cookie = net::cookie(sock).unwrap_or(0);
    s.cookie.store(cookie, Relaxed);
    // The handshake has a descriptor of its own: the program may close its one meanwhile.
    let own = own_descriptor(sock).filter(|own| {
        service::ensure() || {
            fd::close(*own);
            false
        }
    });
    let Some(own) = own else { return do_without(s, sock, peer, patience) };
    let rings = lock::with(|all| {
        let slot = all.reserve(s, size.bytes()).ok()?;
        slot.cookie = cookie;
        let ring = (slot.tx.0.start, slot.tx.1);
        Some((slot.id(), Rings { index: slot.index, header: slot.header, ring, receive: size.bytes() }))
    });
    let Some((id, rings)) = rings.flatten() else {
        fd::close(own);
        return do_without(s, sock, peer, patience);
    };
    if !linked::begin(s, sock, &rings) {
        // Bytes have gone, in a call of the kernel that nothing here has seen: the handshake's would be among them.
        lock::with(|all| all.release(rings.index));
        fd::close(own);
        s.note(Reason::CountMismatch);
        let _ = net::disconnect(sock);
        return;
    }
    let refusal = refusal.map(|why| match why {
        Reason::MaxMemory => (why, Diagnosis::MEMORY),
        _ => (why, Diagnosis::NO_SMCR_DEVICE),
    });
    service::submit(Shake::new(s, own, id, size, peer, refusal));
}

/// Descriptors that are left where the first link is made: what it takes (the thread, a device), and one for the program.
const FOR_FIRST: usize = 8;

/// One of our own for the TCP connection. None: there is none, or it would be the program's last.
fn own_descriptor(sock: i32) -> Option<i32> {
    let own = Brief::open(|| fd::dup_from(sock, 3)).ok()?;
    let left = if cover::channel().is_some() { 1 } else { FOR_FIRST };
    few::are_left(own.fd(), left).then(|| fd::park(own.keep()))
}

/// Bytes of a ring, which is registered and pinned as a whole.
const RING: usize = 64 << 10;

/// The rings of a connection. Between two libsmcr a sender keeps what the peer has not read, for the way back, where
/// Linux has another buffer before the ring: twice as much keeps as much on its way.
fn ring_size(peer: &Peer) -> RmbeSize {
    let most = crate::transport::region::RING_MAX as u32;
    let twice = if matches!(peer, Peer::Ours { .. }) { 2 } else { 1 };
    RmbeSize::at_least((config::ring_size().unwrap_or(RING) as u32 * twice).min(most))
}

fn may_link(s: &Sock, sock: i32) -> Result<(), Reason> {
    learn_names(s, sock).ok_or(Reason::NoResources)?;
    if s.has(flag::PINNED) {
        return Err(Reason::from_code(s.reason.load(Relaxed)).unwrap_or(Reason::TcpSpecial));
    }
    // A ring holds less than a large low-water mark asks for.
    let low = net::get_opt::<i32>(sock, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
    if net::is_filtered(sock) || low > shadow::MOST_LOW_WATER as i32 {
        return Err(Reason::TcpSpecial);
    }
    control::decide_link(s)
}

/// There is no thread, no descriptor or no memory for a handshake: it is declined here and now.
fn do_without(s: &'static Sock, sock: i32, peer: Peer, patience: Time) {
    log::warn!(target: "smcr::link", fd = sock, "no thread, descriptor or memory for a handshake");
    decline(s, sock, peer, Reason::NoResources, patience);
}

fn decline(s: &'static Sock, sock: i32, peer: Peer, why: Reason, patience: Time) {
    s.note(why);
    if !Shake::refuse(s, sock, peer, why, patience) {
        let _ = net::disconnect(sock);
    }
}

/// Whether the connection can go back to TCP: the peer is libsmcr. A handshake on its way is waited for.
pub fn may_return(s: &Sock) -> bool {
    if !gate::wait(PATIENCE_MS, || linked::is_pending(s)) && !gate::wait(PATIENCE_BARE_MS, || linked::is_bare(s)) {
        log::warn!(target: "smcr::link", "a handshake does not end");
    }
    s.can_return() || !s.is_linked()
}

/// The connection leaves this process, or the program that has the library. From a kernel there is no way back:
/// before exec it is reset; a descriptor that is passed stays this process's to use.
pub fn hand_over(s: &'static Sock, sock: i32, why: Reason) -> bool {
    s.note(why);
    if why == Reason::Exec {
        log::warn!(target: "smcr::link", fd = sock, "exec resets a connection over RDMA");
        s.set(flag::LINGER0);
        linked::before_close(s, sock);
        // The next program gets an error. Behind a shutdown, which the link would make of its own end, it would read an end.
        if let Some(index) = s.link.load(Relaxed).checked_sub(1) {
            lock::with(|all| all.slot(index).filter(|slot| slot.is_of(s)).map(|slot| slot.tcp_told = true));
        }
        let _ = net::disconnect(sock);
    }
    false
}

/// The program is about to disconnect it: the peer sees a reset. Who talks by its TCP connection, which may be another one in a moment, hears its end, and
/// lets it go.
#[cold]
pub fn before_disconnect(s: &'static Sock, sock: i32) {
    if disconnected::is_talking(s) {
        let _ = net::shutdown(sock, libc::SHUT_RDWR);
        if !gate::wait(PATIENCE_BARE_MS, || disconnected::is_talking(s)) {
            log::warn!(target: "smcr::link", fd = sock, "a handshake, or a way back, does not end");
        }
    }
    disconnected::before_reset(s);
}

/// A forked child has no link of its own and no service thread.
pub fn forget_in_child() {
    lock::forget_in_child();
    backlog::forget_in_child();
    gate::forget_in_child();
    service::forget_in_child();
    fit::forget_in_child();
}
