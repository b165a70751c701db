//! Which logs of posts (`transport::posts`) an epoll set reads: those of the peers of its members that are posted, and how far.
//!
//! Part of [`super::members`], under the set's lock; read by `ready::posted`.

use crate::transport::peers;
use crate::transport::posts;

/// Peers whose posts one set reads. Each is looked at in each pass, which costs as much as a hot member.
const MOST: usize = 16;

/// One of them.
#[derive(Clone, Copy)]
pub struct Log {
    /// The peer's slot + 1, held while there are members; 0: free.
    peer: u32,
    members: u32,
    /// How much of it was read.
    at: u64,
}

/// All of them; all zero is none.
pub struct Logs {
    logs: [Log; MOST],
    /// None is in use from this one on.
    used: usize,
    /// What the tokens of this set begin with; 0: not drawn yet.
    pub salt: u32,
}

impl Logs {
    pub const fn none() -> Logs {
        Logs { logs: [Log { peer: 0, members: 0, at: 0 }; MOST], used: 0, salt: 0 }
    }

    /// One more member is posted by this peer: the number of its log, which is read from here on. None: there are too many, or the peer is gone.
    pub fn join(&mut self, peer: u32) -> Option<usize> {
        if let Some(i) = self.logs[..self.used].iter().position(|l| l.peer == peer) {
            self.logs[i].members += 1;
            return Some(i);
        }
        let i = self.logs.iter().position(|l| l.peer == 0)?;
        let p = peers::get(peer).filter(|p| p.hold())?;
        let Some(at) = posts::count(p) else {
            p.release();
            return None;
        };
        self.logs[i] = Log { peer, members: 1, at };
        self.used = self.used.max(i + 1);
        Some(i)
    }

    /// A member is not posted any more.
    pub fn leave(&mut self, i: usize) {
        let log = &mut self.logs[i];
        log.members -= 1;
        if log.members == 0 {
            let peer = std::mem::take(&mut log.peer);
            self.used = self.logs.iter().rposition(|l| l.peer != 0).map_or(0, |i| i + 1);
            peers::get(peer).inspect(|p| p.release());
        }
    }

    /// No member is posted any more.
    pub fn clear(&mut self) {
        for log in std::mem::replace(self, Logs::none()).logs {
            peers::get(log.peer).inspect(|p| p.release());
        }
    }

    /// Numbers of logs in use lie below this.
    #[inline]
    pub fn used(&self) -> usize {
        self.used
    }

    /// How many a log holds by now; as many were read, unless there are new ones.
    #[inline]
    pub fn count(&self, i: usize) -> Option<u64> {
        let log = &self.logs[i];
        peers::get(log.peer).and_then(posts::count).filter(|n| *n != log.at)
    }

    /// The next of so many, and goes on behind it; behind all of them where it is lost. None: that was all.
    pub fn next(&mut self, i: usize, count: u64) -> Option<posts::Entry> {
        let log = &mut self.logs[i];
        if log.at == count {
            return None;
        }
        let entry = peers::get(log.peer).map_or(posts::Entry::Lost, |p| posts::read(p, log.at, count));
        log.at = if entry == posts::Entry::Lost { count } else { log.at + 1 };
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd;
    use crate::transport::waiters;
    use posts::Entry;

    /// A process that reads its own log.
    fn peer() -> u32 {
        waiters::take().expect("the page").release();
        let who = libc::ucred { pid: 1, uid: 0, gid: 0 };
        let slot = peers::add(-1, 0, who, 0).expect("a place");
        let page = waiters::page_fd().and_then(fd::another).expect("its page");
        peers::get(slot).expect("the peer").take_page(page);
        slot
    }

    #[test]
    fn a_peer_is_held_and_its_log_is_read_while_members_are_posted() {
        let slot = peer();
        let p = peers::get(slot).expect("the peer");
        let mut logs = Logs::none();
        assert!(posts::append(1) && p.is_idle());
        assert_eq!((logs.join(slot), logs.join(slot), logs.used()), (Some(0), Some(0), 1));
        assert!(!p.is_idle());
        assert_eq!(logs.count(0), None, "what was there before is not read");
        assert!(posts::append(2) && posts::append(3));
        let count = logs.count(0).expect("two more");
        assert!(posts::append(4), "it comes the next time");
        let mut next = || logs.next(0, count);
        assert_eq!([next(), next(), next()], [Some(Entry::Token(2)), Some(Entry::Token(3)), None]);
        logs.leave(0);
        assert!(!p.is_idle() && logs.used() == 1);
        logs.leave(0);
        assert!(p.is_idle() && logs.used() == 0);
        assert_eq!((logs.join(slot), logs.count(0)), (Some(0), None), "it begins anew where the log is by then");
        logs.clear();
        assert!(p.is_idle() && logs.used() == 0);
        p.lost();
        assert_eq!(logs.join(slot), None, "it is gone");
    }
}
