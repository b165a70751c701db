//! Resetting a connection that can't go on: a peer that breaks the rules, bytes that are missing. What the program is told of it then is
//! [`super::end`]'s. Called by whoever finds that.

use super::{bell, close, end};
use crate::family::process::count;
use crate::family::sock::{Sock, flag, medium};
use crate::log;
use crate::sys::{Errno, net};
use crate::transport::changes;
use crate::transport::region::fin;
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// The peer broke the rules of the shared memory: its connection is reset, nothing else.
#[cold]
pub fn hostile(s: &Sock, sock: i32) {
    count(Counter::HostileResets, 1);
    s.note(Reason::PeerHostile);
    log::warn!(target: "smcr::peer", fd = sock, pid = s.peer_pid.load(Relaxed), "peer broke the rules; resetting");
    reset(s, sock);
}

/// As [`hostile`], for a call that tells the program.
#[cold]
pub fn broken(s: &Sock, sock: i32) -> Errno {
    hostile(s, sock);
    end::take_death(s);
    Errno(libc::ECONNRESET)
}

/// Resets a connection that can't go on.
#[cold]
pub fn reset(s: &Sock, sock: i32) {
    mark_reset(s);
    s.set(flag::PINNED | flag::SHUT_WR);
    s.clear(flag::OWES);
    s.set_state(State::Pinned);
    // Whoever asks where to send must find an answer: the kernel's socket, which says EPIPE.
    s.tx.gate.fetch_or(bell::CLOSED, AcqRel);
    s.tx_medium.store(medium::TCP, SeqCst);
    changes::note(s);
    close::reset_on_close(sock);
    let _ = net::shutdown(sock, libc::SHUT_RDWR);
}

/// As [`reset`], where bytes are missing that whoever has the socket next would not miss: behind a shutdown it finds what is left in the
/// queue, and then an orderly end. The kernel's own reset empties the queue and leaves an error, also behind a FIN of the peer's.
#[cold]
pub fn reset_at_once(s: &Sock, sock: i32) {
    mark_reset(s); // before the kernel's wakes somebody here, and shows at the peer's
    let _ = net::disconnect(sock);
    reset(s, sock);
}

/// Here, and for the peer: behind a FIN of its own the kernel has no reset but for a close with something unread, and what follows shows an
/// end alone.
fn mark_reset(s: &Sock) {
    end::found(s, end::OURS);
    if let Some(dir) = s.tx.dir().filter(|_| !s.is_linked()) {
        dir.fin.fetch_or(fin::RESET, Release); // pairs with the Acquire in `end::is_reset_for_bell`
    }
}
