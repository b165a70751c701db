//! How long a call waits for the other end where the kernel's would not wait: not again for a while, where that was in vain.
//!
//! A close waits for a proof that is on its way, or for room for what was asked back; a send that may not wait does so for a request that
//! was announced. Who holds the other end may let each of these calls wait. So it is remembered who has done that: another user, who can
//! make as many processes as he likes; the host at the other end of a link; of our own user, who could trace us as well, the process, and
//! only where no byte depends on the wait. Of all the time a hundredth is spent so at most for each, and for all of them together no more
//! than [`SEATS`] times that. Called by [`super::close`], [`super::debt`], [`super::called`], [`super::offer`] and `rendezvous::handover`.

use crate::family::sock::Sock;
use crate::sys::rests::Rests;
use crate::sys::{clock, proc};
use crate::transport::peers;
use std::sync::atomic::Ordering::*;

/// Who was waited for in vain for a time is not waited for for so many times that.
const REST: u64 = 100;
const SEATS: usize = 32;
/// So many times the patience may a thread be absent beside it.
const GRACE: u64 = 4;

static RESTS: Rests<SEATS> = Rests::none();

/// Between two looks of a thread that looks each millisecond: it did not run.
const ABSENT_NS: u64 = 20_000_000;

/// A wait for the other end of a connection.
pub struct Patience {
    who: u64,
    since: u64,
    until: u64,
    looked: u64,
    /// How much more of this thread's own absence is not counted, in ns.
    grace: u64,
}

impl Patience {
    /// From now on, for `ns`, or not at all where it rests.
    #[cold]
    pub fn with(s: &Sock, ns: u64) -> Patience {
        Patience::begin(who(s), ns, 0)
    }

    /// The same, or for `least` where another user's rests; for one of our own always `ns`: bytes depend on it.
    #[cold]
    pub fn with_others(s: &Sock, ns: u64, least: u64) -> Patience {
        match is_own_user(s) && !is_far(s) {
            true => Patience::begin(NOBODY, ns, ns),
            false => Patience::begin(who(s), ns, least),
        }
    }

    fn begin(who: u64, ns: u64, least: u64) -> Patience {
        let since = clock::now_ns();
        // Where there is no place for more who were waited for in vain, nobody is.
        let ns = if RESTS.has(who, since) || RESTS.is_full(since) { least } else { ns };
        Patience { who, since, until: since + ns, looked: since, grace: GRACE * ns }
    }

    /// When it ends, in ns.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        clock::now_ns() >= self.until
    }

    /// The same, for who asks each millisecond or so: time between two calls in which this thread did not run does not count, up to
    /// [`GRACE`] times the patience. Who took the processors away, as the host of a virtual machine does, took them from the peer as well.
    pub fn is_over_since_last(&mut self) -> bool {
        self.look(clock::now_ns())
    }

    fn look(&mut self, now: u64) -> bool {
        let gap = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        if gap > ABSENT_NS {
            let absent = gap.min(self.grace);
            self.grace -= absent;
            self.since += absent;
            self.until += absent;
        }
        now >= self.until
    }

    /// Nothing came of it.
    #[cold]
    pub fn was_in_vain(&self) {
        if self.who == NOBODY {
            return;
        }
        let now = clock::now_ns();
        RESTS.begin(self.who, now, now + REST * now.saturating_sub(self.since));
    }
}

/// Nobody is remembered.
const NOBODY: u64 = 0;

/// Whether the other end is another host's.
fn is_far(s: &Sock) -> bool {
    s.is_linked() || s.peer_pid.load(Relaxed) == 0
}

/// Whether who holds the other end is of our own user.
pub fn is_own_user(s: &Sock) -> bool {
    peers::is_own(s.peer_uid.load(Relaxed), proc::euid())
}

/// Whom the wait is for.
fn who(s: &Sock) -> u64 {
    const USER: u64 = 1 << 32;
    const PROCESS: u64 = 2 << 32;
    const HOST: u64 = 1 << 63;
    if is_far(s) {
        let [a, b] = [0, 1].map(|i| s.remote[i].load(Relaxed));
        return HOST | (a ^ b.rotate_left(31));
    }
    match is_own_user(s) {
        true => PROCESS | u64::from(s.peer_pid.load(Relaxed)),
        false => USER | u64::from(s.peer_uid.load(Relaxed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_run_has_not_waited() {
        const MS: u64 = 1_000_000;
        let mut p = Patience { who: NOBODY, since: 0, until: 200 * MS, looked: 0, grace: 800 * MS };
        assert!(!p.look(15 * MS), "a look");
        assert!(!p.look(315 * MS), "absent for 300 ms of which none counts");
        assert_eq!((p.since, p.until), (300 * MS, 500 * MS));
        assert!(!p.look(900 * MS), "absent for 585 ms, of which 500 do not count");
        assert!(p.look(1_000 * MS), "there is no more to allow");
        assert_eq!((p.until, p.grace), (1_000 * MS, 0));
    }

    #[test]
    fn a_user_is_one_and_a_process_of_our_own_is_one() {
        // SAFETY: all zero is a fresh record.
        let [a, b]: [Sock; 2] = unsafe { std::mem::zeroed() };
        for (s, pid) in [(&a, 5), (&b, 6)] {
            s.peer_pid.store(pid, Relaxed);
            s.peer_uid.store(proc::euid(), Relaxed);
        }
        assert_ne!(who(&a), who(&b));
        for s in [&a, &b] {
            s.peer_uid.store(proc::euid() + 1, Relaxed);
        }
        assert_eq!(who(&a), who(&b));
        let first = Patience::with_others(&a, 3_000_000, 0);
        while !first.is_over() {}
        first.was_in_vain();
        const LONG: u64 = 60_000_000_000;
        assert!(Patience::with_others(&b, LONG, 0).is_over() && Patience::with(&b, LONG).is_over());
        assert!(!Patience::with_others(&b, LONG, LONG / 2).is_over());
        for s in [&a, &b] {
            s.peer_uid.store(proc::euid(), Relaxed);
        }
        Patience::with_others(&a, 0, 0).was_in_vain();
        assert!(!Patience::with(&a, LONG).is_over(), "bytes depend on it");
        let first = Patience::with(&a, 3_000_000);
        while !first.is_over() {}
        first.was_in_vain();
        assert!(Patience::with(&a, LONG).is_over() && !Patience::with(&b, LONG).is_over());
        assert!(!Patience::with_others(&a, LONG, 0).is_over());
    }
}
