//! Which processes of the family hold a socket: after a fork its record belongs to several.
//!
//! `Sock::holders` counts them, `Sock::held_by` has a bit for each process record, so that a process
//! that ended without a close, or went into another program, does not keep the connection shared for
//! ever. Used by `table::life` around exec and close, and by the rendezvous before it begins. A program that
//! such a process became has a page of its own: `rendezvous::legacy`.

use super::process;
use super::sock::Sock;
use std::sync::atomic::Ordering::*;

/// This process holds it no more; true if it was the last one. Those that are gone have not closed it themselves.
pub fn leave(s: &Sock) -> bool {
    if s.holders.load(Relaxed) > 1
        && let Some(base) = super::base()
        && (0..super::PROC_CAP).any(|p| p as u32 != process::index() && s.is_held_in(p as u32) && process::is_gone(base, p))
    {
        process::reap_dead(base);
    }
    s.let_go_in(process::index());
    s.holders.fetch_sub(1, AcqRel) <= 1
}

/// This process, which had left, holds it again.
pub fn rejoin(s: &Sock) {
    s.holders.fetch_add(1, AcqRel);
    s.held_in(process::index());
}

/// The number of another process that holds it than this one; the same where there is none.
pub fn another(s: &Sock, than: u32) -> u32 {
    (0..super::PROC_CAP as u32).find(|p| *p != than && s.is_held_in(*p)).unwrap_or(than)
}

/// Whether others hold it than this process, which may have closed it.
pub fn has_others(s: &Sock) -> bool {
    // A child that is just being forked counts, and has no bit yet.
    s.holders.load(Relaxed) > u32::from(s.is_held_in(process::index()))
}

/// Whether other processes hold it as well; those that are gone are struck out first.
pub fn is_shared(s: &Sock) -> bool {
    if s.holders.load(Relaxed) > 1
        && let Some(base) = super::base()
    {
        process::reap_dead(base);
    }
    s.holders.load(Relaxed) > 1
}

impl Sock {
    /// Notes that the process with this record holds it.
    pub fn held_in(&self, process: u32) {
        if let Some(w) = self.held_by.get(process as usize / 64) {
            w.fetch_or(1 << (process % 64), AcqRel);
        }
    }

    /// Whether the process with this record holds it.
    pub fn is_held_in(&self, process: u32) -> bool {
        self.held_by.get(process as usize / 64).is_some_and(|w| w.load(Relaxed) & 1 << (process % 64) != 0)
    }

    /// Notes that the process with this record holds it no more; false if that was not noted.
    pub fn let_go_in(&self, process: u32) -> bool {
        let bit = 1 << (process % 64);
        self.held_by.get(process as usize / 64).is_some_and(|w| {
            w.load(Relaxed) & bit != 0 && w.fetch_and(!bit, AcqRel) & bit != 0
        })
    }
}
