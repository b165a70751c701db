//! A handshake for which there is no descriptor, no memory or no thread: the thread that uses the connection says no by itself, and waits
//! until the peer has heard it. Nothing is in memory yet, so nothing has to come back from there. Called by [`super::super::begin`].

use super::{Shake, until};
use crate::family::sock::Sock;
use crate::link::lock::now;
use crate::rendezvous::smc::blocked::Blocked;
use crate::sys::fd;
use smcr_proto::handshake::Peer;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::id::RmbeSize;
use std::sync::atomic::Ordering::*;

impl Shake {
    /// Says no, to a peer that may take so long. True: what comes next in the stream is the program's, either way.
    pub fn refuse(s: &'static Sock, sock: i32, peer: Peer, why: Reason, patience: Time) -> bool {
        let refusal = Some((why, Diagnosis::MEMORY));
        let mut shake = Shake::bare(s, sock, None, RmbeSize::at_least(0), peer, refusal);
        let (mut blocked, end) = (Blocked::default(), now() + patience);
        while !shake.step(&mut blocked) {
            if now() >= end {
                return false;
            }
            let wants = shake.wants();
            let at = wants.at.map_or(end, |at| at.min(end));
            let _ = fd::poll(&mut [libc::pollfd { fd: sock, events: wants.events, revents: 0 }], until(at));
        }
        s.tx.kernel.store(shake.sent, Relaxed);
        s.rx.kernel.store(shake.received, Relaxed);
        true
    }
}
