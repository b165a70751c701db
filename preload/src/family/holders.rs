//! Which processes of the family hold a socket: after a fork its record belongs to several.
//!
//! `Sock::holders` counts them, `Sock::held_by` has a bit for each process record, so that a process
//! that ended without a close, or went into another program, does not keep the connection shared for
//! ever. Used by `table::life` around exec and close, and by the rendezvous before it begins. A program that
//! such a process became has a page of its own: `rendezvous::legacy`.

use super::process;
use super::sock::Sock;
use std::sync::atomic::Ordering::*;

const WORDS: usize = super::PROC_CAP / 64;

/// Which other processes of the family live, as far as that was asked: once of each, however many sockets are gone through.
#[derive(Default)]
pub struct Census {
    asked: [u64; WORDS],
    living: [u64; WORDS],
}

impl Census {
    /// Whether other processes hold the socket as well; those that are gone are struck out first.
    pub fn is_shared(&mut self, s: &Sock) -> bool {
        s.holders.load(Relaxed) > 1 && {
            self.find_living(s);
            s.holders.load(Relaxed) > 1
        }
    }

    /// Asks about who holds it until one is found that lives. A child that is just being forked counts, and has no bit yet.
    fn find_living(&mut self, s: &Sock) {
        let Some(base) = super::base() else { return };
        let me = process::index();
        for (n, word) in s.held_by.iter().enumerate() {
            let mut others = word.load(Relaxed);
            if me as usize / 64 == n {
                others &= !(1 << (me % 64));
            }
            if others & self.living[n] != 0 {
                return;
            }
            others &= !self.asked[n];
            while others != 0 {
                let bit = others & others.wrapping_neg();
                others &= !bit;
                self.asked[n] |= bit;
                if !process::reap_if_gone(base, n * 64 + bit.trailing_zeros() as usize) {
                    self.living[n] |= bit;
                    return;
                }
            }
        }
    }
}

/// This process holds it no more; true if it was the last one. Those that are gone have not closed it themselves.
pub fn leave(s: &Sock) -> bool {
    is_shared(s);
    s.let_go_in(process::index());
    s.holders.fetch_sub(1, AcqRel) <= 1
}

/// Another process holds it, too: how many did before. None: those that did have just closed it, and the record is nobody's, or the next one's to
/// take.
pub fn one_more(s: &Sock) -> Option<u32> {
    // SeqCst, as in `server::attach`: who brings memory to it finds it shared, or is waited for.
    s.holders.fetch_update(SeqCst, SeqCst, |n| (n > 0).then_some(n + 1)).ok()
}

/// This process, which had left, holds it again, if others do.
pub fn rejoin(s: &Sock) -> bool {
    let is_held = one_more(s).is_some();
    if is_held {
        s.held_in(process::index());
    }
    is_held
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
#[inline]
pub fn is_shared(s: &Sock) -> bool {
    s.holders.load(Relaxed) > 1 && Census::default().is_shared(s)
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
        self.held_by.get(process as usize / 64).is_some_and(|w| w.load(Relaxed) & bit != 0 && w.fetch_and(!bit, AcqRel) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{open, process, take_sock};
    use std::process::{Command, Stdio};

    /// A fork has found it held, and counts when it is free: it would be given back a second time, by the child, and two connections would have it.
    #[test]
    fn a_record_that_was_just_given_up_is_held_by_nobody_more() {
        let s = take_sock().unwrap();
        s.reset();
        assert_eq!((one_more(s), s.holders.load(Relaxed)), (Some(1), 2));
        s.holders.store(0, Relaxed);
        assert!(!rejoin(s) && one_more(s).is_none());
        assert_eq!(s.holders.load(Relaxed), 0);
        crate::family::give_back(s);
    }

    #[test]
    fn each_process_is_asked_about_once_and_the_gone_ones_hold_nothing() {
        let base = open().unwrap();
        let mut lives = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        // Beside those of the tests that run meanwhile.
        let places = [super::super::PROC_CAP as u32 - 3, super::super::PROC_CAP as u32 - 2];
        for (place, child) in places.iter().zip([&lives, &gone]) {
            process::record(base, *place as usize).pid.store(child.id(), Relaxed);
        }
        let [first, second] = [(); 2].map(|()| {
            let s = take_sock().unwrap();
            s.reset();
            s.holders.store(3, Relaxed);
            places.iter().for_each(|p| s.held_in(*p));
            s
        });
        let mut census = Census::default();
        assert!(census.is_shared(first));
        let asked = census.asked;
        assert!(census.is_shared(second) && census.asked == asked);

        drop(lives.stdin.take());
        lives.wait().unwrap();
        assert!(census.is_shared(first), "who was there when it began is not asked about again");
        assert!(!is_shared(first) && first.holders.load(Relaxed) == 1);
        assert!(!is_shared(second) && !second.is_held_in(places[0]));
        [first, second].into_iter().for_each(crate::family::give_back);
    }
}
