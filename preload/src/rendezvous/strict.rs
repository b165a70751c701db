//! `strict`: where a connection that should have left TCP does not, it ends instead.
//!
//! "Should have" means that it was worth it, that settings allow it, that both ends are on this host
//! and that the peer has announced the library; what then fails is a reason of `Reason::is_failure`. Not where the peer has ended
//! meanwhile, which ends what it was asked for as well: its last bytes are on their way through TCP.
//! The connection is aborted as connect(2) to AF_UNSPEC does it: the next call on it fails with
//! ECONNRESET, waiters wake up, the peer sees a reset, and no hook has to look at anything.

use crate::family::sock::{Sock, flag, step};
use crate::log;
use crate::sys::{net, tcp_state};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// After a step of the rendezvous: ends the connection if it was given up for such a reason.
pub fn check(s: &'static Sock, sock: i32) {
    let reason = Reason::from_code(s.reason.load(Relaxed)).unwrap_or(Reason::None);
    if !reason.is_failure() || !is_given_up(s, reason) || !tcp_state::has_open_peer(sock) {
        return;
    }
    log::complain(format_args!("strict: a connection (descriptor {sock}) would stay on TCP: {} ({}); it is reset", reason.text(), reason.code()));
    s.set(flag::PINNED);
    s.step.store(step::FAILED, Relaxed);
    let _ = net::disconnect(sock);
}

/// Whether no further attempt is to come; memory that is used up now is enough.
fn is_given_up(s: &Sock, reason: Reason) -> bool {
    if s.tx_in_memory() || s.rx_in_memory() || s.has(flag::ENDED) {
        return false;
    }
    match s.step.load(Relaxed) {
        step::IDLE => reason == Reason::MaxMemory || s.next_ops.load(Relaxed) == u32::MAX,
        // Pinned: refused already, or the program has chosen.
        step::FAILED => !s.has(flag::PINNED),
        _ => s.has(flag::PINNED),
    }
}
