//! Whether the program is seen to wait for its connection, before a handshake says anything.
//!
//! What comes over a link wakes who waits in a hooked call. A program that waits by inline system calls (the event loops of some Rust programs do)
//! would hear of nothing: from a kernel there is no way back to TCP, and from a libsmcr it takes its time. Such a connection is
//! non-blocking, and no hooked poll, select or epoll set has it: its handshake waits a little for one, and is declined then. A program that
//! reads again and again, for nothing, does not wait at all, and is served by a link.

use super::Shake;
use crate::engine::linked;
use crate::family::sock::{Sock, flag};
use crate::link::lock::now;
use crate::log;
use crate::sys::fd;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::diagnosis::Diagnosis;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// How long a program may take until it waits; after one that has not, others are probably alike.
const PATIENCE: Time = Time::from_millis(300);
const PATIENCE_AGAIN: Time = Time::from_millis(5);
/// From one look to the next.
const LOOK: Time = Time::from_millis(1);
/// Reads from one look to the next of a program that does nothing else.
const READS: u64 = 8;

/// The last connection that was waited for here was declined. Relaxed: a hint.
static IS_BLIND: AtomicBool = AtomicBool::new(false);

/// What was seen of a program so far.
#[derive(Default)]
pub(super) struct Sight {
    until: Option<Time>,
    /// Reads that had found nothing at the last look.
    reads: u64,
    /// When to look again.
    at: Time,
}

impl Sight {
    /// When to look; the beginning, if nobody has.
    pub(super) fn at(&self) -> Time {
        self.at
    }
}

/// How long an accepted connection may wait for its first use, if that is `usual` in other programs.
pub fn patience(usual: Time) -> Time {
    if IS_BLIND.load(Relaxed) { PATIENCE_AGAIN } else { usual }
}

impl Shake {
    /// Whether the handshake may begin now. One whose program was not seen begins with a refusal.
    pub(super) fn is_seen(&mut self) -> bool {
        let Some(s) = self.sock().filter(|_| self.refusal.is_none()) else { return true };
        if !may_be_unseen(s, self.is_ours()) {
            if s.has(flag::SEEN) {
                IS_BLIND.store(false, Relaxed);
            }
            return true;
        }
        let (time, reads) = (now(), linked::vain_reads(s));
        let Some(until) = self.sight.until else {
            self.sight = Sight { until: Some(time + patience(PATIENCE)), reads, at: time + LOOK };
            return false;
        };
        // What lies there makes a waiter read again and again as well.
        if reads.wrapping_sub(self.sight.reads) >= READS && fd::poll_now(self.fd, libc::POLLIN) == 0 {
            return true;
        }
        if until <= time {
            log::info!(target: "smcr::link", fd = self.fd, "declined: the program is not seen to wait");
            IS_BLIND.store(true, Relaxed);
            self.refusal = Some((Reason::UnseenWaiter, Diagnosis::NO_SMCR_DEVICE));
            return true;
        }
        (self.sight.reads, self.sight.at) = (reads, time + LOOK);
        false
    }
}

/// Whether nobody is seen to wait. A set that nobody has waited in yet may be the program's first: a peer that can go back to TCP takes that chance.
fn may_be_unseen(s: &Sock, can_return: bool) -> bool {
    s.has(flag::NONBLOCK) && !s.has(flag::SEEN) && !(can_return && s.has(flag::UNSEEN))
}
