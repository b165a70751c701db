//! The way back when a descriptor leaves: exec, posix_spawn, a passed descriptor, drain.
//!
//! What we have not sent we move ourselves; what we have not read only the peer can send again, so
//! this waits for it, at most [`PATIENCE_MS`], and says so when it did not come.

use crate::engine::{bell, rx, switch};
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::Sock;
use crate::log;
use crate::sys::{clock, fd};
use crate::transport::region::ctl;
use smcr_proto::page::Counter;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// How long the peer may take to send again what we have not read.
pub const PATIENCE_MS: u64 = 2000;

/// Moves both directions to TCP and keeps them there; true when it is done.
pub fn hand_over(s: &'static Sock, sock: i32, why: Reason) -> bool {
    let Some(dir) = s.rx.dir() else {
        switch::pin(s, sock, why);
        return true;
    };
    if !s.rx_in_memory() && !s.tx_in_memory() {
        switch::pin(s, sock, why);
        return true;
    }
    process::count(Counter::Handovers, 1);
    {
        let marker = Marker::new();
        let Ok(_held) = s.rx.lock.take(&marker) else { return false };
        if s.rx_in_memory() {
            // Frozen: from here on nobody of this family takes from the ring.
            dir.frozen.store(s.rx.cursor.load(Relaxed), Relaxed);
            dir.ctl.fetch_or(ctl::RETURN | ctl::PINNED, AcqRel);
        }
    }
    // While doorbells may still be sent.
    bell::call_peer(s, sock);
    switch::pin(s, sock, why);
    let end = clock::now_ns() + PATIENCE_MS * 1_000_000;
    while s.rx_in_memory() {
        rx::progress(s, sock);
        if !s.rx_in_memory() {
            break;
        }
        if s.rx.end.load(Relaxed) != 0 || clock::now_ns() > end {
            process::count(Counter::HandoverTimeouts, 1);
            log::warn!(target: "smcr::switch", fd = sock, pid = s.peer_pid.load(Relaxed),
                "the peer did not return its direction in time");
            return false;
        }
        bell::call_peer(s, sock);
        let mut p = [libc::pollfd { fd: sock, events: libc::POLLRDHUP, revents: 0 }];
        let _ = fd::poll(&mut p, 1);
    }
    true
}
