//! The log of posts, by which a producer tells consumers at other ends which of their connections have something: an epoll set with many members
//! that speak seldom looks at none of them, and needs neither a byte on TCP nor a system call to hear of one.
//!
//! It lies in the page of sleep words (`waiters`): this family's processes write it, and peers can only read it. An entry is a token
//! that the consumer has put into the connection's header, which means something to that consumer alone: the log is everybody's. Each reader
//! has a place of its own, and whoever falls behind by more than the log holds, or meets an entry that is not there, looks at all
//! that it has armed. So nobody waits for anybody, and what a peer writes costs its reader looks in vain and nothing else.
//!
//! Written by `engine::post`, read by `ready::posted`.

use super::peers::Peer;
use super::waiters;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bytes of the log: how many were ever written, on a page of its own, and the last [`ENTRIES`] of them.
pub const LEN: usize = 4096 + ENTRIES * 8;
const ENTRIES: usize = 4096;

/// What a reader finds at a place below the count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    Token(u32),
    /// It is gone, or not there.
    Lost,
}

/// Writes a token, behind a full fence after what it stands for; false: there is no log, so nobody reads it.
pub fn append(token: u32) -> bool {
    let Some(page) = waiters::base() else { return false };
    let log = Log(page.wrapping_add(waiters::POSTS_AT));
    // Behind the fence of the publisher, which the Acquire in `count` pairs with: who reads the count sees what was published before, also where it
    // finds the entry missing.
    let at = log.count().fetch_add(1, Relaxed);
    log.entry(at).store(entry(at, token), Relaxed);
    true
}

/// How many the peer's family has written: where who begins to read begins. None: it has not told where.
pub fn count(peer: &Peer) -> Option<u64> {
    log_of(peer).map(|log| log.count().load(Acquire)) // pairs with the fence before `append`
}

/// What stands at that place of the peer's log, in which there are so many now.
#[inline]
pub fn read(peer: &Peer, at: u64, count: u64) -> Entry {
    log_of(peer).map_or(Entry::Lost, |log| log.read(at, count))
}

/// The place is in the entry: another lap's, or none, is seen to be.
fn entry(at: u64, token: u32) -> u64 {
    (at.wrapping_add(1) << 32) | u64::from(token)
}

#[inline]
fn log_of(peer: &Peer) -> Option<Log> {
    let page = peer.page.load(Acquire);
    (!page.is_null()).then(|| Log(page.wrapping_add(waiters::POSTS_AT)))
}

/// Where one lies.
struct Log(*mut u8);

impl Log {
    fn read(&self, at: u64, count: u64) -> Entry {
        if count.wrapping_sub(at) <= ENTRIES as u64 {
            // Who writes it may be between its two steps, for some ns unless it is taken off its processor there.
            for _ in 0..100 {
                let e = self.entry(at).load(Relaxed);
                if e >> 32 == entry(at, 0) >> 32 {
                    return Entry::Token(e as u32);
                }
                std::hint::spin_loop();
            }
        }
        Entry::Lost
    }

    fn count(&self) -> &'static AtomicU64 {
        self.at(0)
    }

    fn entry(&self, at: u64) -> &'static AtomicU64 {
        self.at(4096 + at as usize % ENTRIES * 8)
    }

    fn at(&self, off: usize) -> &'static AtomicU64 {
        // SAFETY: inside a mapping of `waiters::LEN` bytes at an address of a page; our own is never unmapped, a peer's only with the last reference to it.
        unsafe { &*self.0.add(off).cast::<AtomicU64>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_finds_all_or_knows_that_some_are_gone() {
        let mut memory = vec![0u64; LEN / 8];
        let log = Log(memory.as_mut_ptr().cast());
        let write = |token| {
            let at = log.count().fetch_add(1, Relaxed);
            log.entry(at).store(entry(at, token), Relaxed);
        };
        let read = |at| log.read(at, log.count().load(Relaxed));
        (0..3).for_each(write);
        assert_eq!([0, 1, 2].map(read), [0, 1, 2].map(Entry::Token));
        let last = ENTRIES as u32 + 2;
        (3..=last).for_each(write);
        let end = u64::from(last) + 1;
        assert_eq!(read(2), Entry::Lost); // written over
        assert_eq!((read(3), read(end - 1)), (Entry::Token(3), Entry::Token(last)));
        log.count().fetch_add(1, Relaxed); // by one that has gone since
        assert_eq!(read(end), Entry::Lost);
        write(7);
        assert_eq!(read(end + 1), Entry::Token(7));
        assert_eq!(read(end + 9), Entry::Lost); // a count that has gone back
    }
}
