//! How long a link may wait for completions, before it counts as dead.
//!
//! Part of [`super::one::Link`]. Towards a kernel its Test Link decides and ours, but where TCP has ended below a connection the peer may
//! be dying: the link is *doubted*, and who does not complete within [`PATIENCE`] is dead. That ends with the first sign of life
//! (a completion, or anything that arrives) that comes as long after the last such end: what comes sooner may be of the peer's last moment.

use super::awake::STEP;
use smcr_proto::smc::Time;

/// How long a message may be on its way before the link counts as dead; the second once a TCP connection
/// below has ended, or the peer has spoken there: a process that ends takes its links along, a kernel does not. (The card's
/// own retries may have no end.)
const PATIENCE: Time = Time::from_secs(5);
const PATIENCE_PROBED: Time = Time::from_secs(2);
/// The same towards a kernel, from where there is no way back to TCP: as long as Linux waits for a free slot
/// (SMC_WR_TX_WAIT_FREE_SLOT_TIME). While there are slots its Test Link decides, and ours.
const PATIENCE_KERNEL: Time = Time::from_secs(10);

/// What a link waits for.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Messages posted and not completed.
    outstanding: u32,
    /// When one was completed last, or the first of them was posted.
    progress: Time,
    /// By when a sign of life is to come, which was asked for because of what TCP has shown.
    probed: Option<Time>,
    /// When that was asked for last, while it tells something of the peer.
    doubted: Option<Time>,
    /// The link is given up, whatever is on its way.
    is_over: bool,
}

impl Patience {
    /// Nothing is on its way.
    pub const NEW: Patience = Patience { outstanding: 0, progress: Time::ZERO, probed: None, doubted: None, is_over: false };

    /// Messages on their way.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// One was posted. Some: nobody waited for another one; somebody has to look by then.
    pub fn posted(&mut self, now: impl FnOnce() -> Time) -> Option<Time> {
        self.outstanding += 1;
        if self.outstanding > 1 {
            return None;
        }
        self.progress = now();
        Some(self.progress + STEP)
    }

    /// One was completed.
    pub fn completed(&mut self, now: Time) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.progress = now;
        self.probed = None;
        self.lives(now);
    }

    /// The peer has shown that it lives.
    pub fn lives(&mut self, now: Time) {
        self.doubted = self.doubted.filter(|at| now < *at + PATIENCE);
    }

    /// A sign of life is asked for: who does not answer is dead sooner, if it is a process. False: it is on its way already.
    pub fn probe(&mut self, process: bool, now: Time) -> bool {
        self.doubted = Some(now);
        self.probed.replace(now + if process { PATIENCE_PROBED } else { PATIENCE }).is_none()
    }

    /// It is over.
    pub fn give_up(&mut self) {
        self.is_over = true;
    }

    /// When what is on its way has been so for too long; `process`: the peer is libsmcr, `full`: so much is that nothing more can go.
    pub fn ends_at(&self, process: bool, full: bool) -> Option<Time> {
        if self.is_over {
            return Some(Time::ZERO); // long ago
        }
        let patience = match process || self.doubted.is_some() {
            true => Some(PATIENCE),
            false => full.then_some(PATIENCE_KERNEL),
        };
        let at = patience.map(|p| self.progress + p).into_iter().chain(self.probed).min();
        at.filter(|_| self.outstanding > 0)
    }

    /// Whether a message was posted or completed within the last [`STEP`].
    pub fn is_busy(&self, now: Time) -> bool {
        now < self.progress + STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Time = Time::from_secs(100);

    /// Towards a kernel, where there are slots.
    fn kernel(p: &Patience) -> Option<Time> {
        p.ends_at(false, false)
    }

    #[test]
    fn a_kernel_has_time_while_there_are_slots() {
        let mut p = Patience::NEW;
        assert_eq!(p.ends_at(true, true), None, "nothing is on its way");
        assert_eq!(p.posted(|| AT), Some(AT + STEP));
        assert_eq!(p.posted(|| AT + STEP), None, "the first is waited for");
        assert_eq!((kernel(&p), p.ends_at(false, true)), (None, Some(AT + PATIENCE_KERNEL)));
        assert_eq!(p.ends_at(true, false), Some(AT + PATIENCE));
    }

    #[test]
    fn a_doubt_ends_with_a_sign_of_life_that_is_not_of_the_last_moment() {
        for arrives in [false, true] {
            let mut p = Patience::NEW;
            assert!(p.probe(false, AT) && !p.probe(false, AT), "asked once");
            p.posted(|| AT);
            let soon = AT + Time::from_secs(1);
            p.completed(soon);
            p.lives(soon);
            p.posted(|| soon);
            assert_eq!(kernel(&p), Some(soon + PATIENCE), "that may have been its last");
            let late = AT + PATIENCE;
            if arrives {
                p.lives(late);
            } else {
                p.posted(|| late);
                p.completed(late);
            }
            assert_eq!(kernel(&p), None, "it has gone on");
            // 5 s without a completion are nothing to a kernel from now on.
            p.posted(|| late + PATIENCE);
            assert_eq!(kernel(&p), None);
        }
    }

    #[test]
    fn who_gives_up_waits_for_nothing() {
        let mut p = Patience::NEW;
        p.give_up();
        assert_eq!(kernel(&p), Some(Time::ZERO));
        p.posted(|| AT);
        p.completed(AT);
        assert_eq!(p.ends_at(true, false), Some(Time::ZERO));
    }

    #[test]
    fn each_end_of_tcp_begins_it_anew() {
        let mut p = Patience::NEW;
        p.probe(false, AT);
        p.posted(|| AT);
        p.completed(AT);
        let again = AT + Time::from_secs(4);
        assert!(p.probe(false, again));
        p.posted(|| again);
        p.lives(AT + PATIENCE);
        assert_eq!(kernel(&p), Some(again + PATIENCE));
        p.lives(again + PATIENCE);
        assert_eq!(kernel(&p), Some(again + PATIENCE), "the answer that was asked for has not come");
        p.completed(again + PATIENCE);
        assert_eq!(kernel(&p), None);
    }
}
