//! The sockets of a poll for whose data its thread is counted as one that waits (`Sock::readers`).
//!
//! Called by `poll` around its sleep, and by `early` around the kernel's. What a number names may change meanwhile, and whether the socket is served in memory: the
//! thread is counted out of what it was counted in.

use super::level;
use crate::engine::counted;
use crate::family::{self, sock::Sock};
use crate::sys::{Res, scratch};
use crate::table;
use libc::pollfd;

/// How far apart entries of one descriptor are recognised as such; beyond that they only cost doorbells.
const NEAR: usize = 16;
/// So many fit on the stack; more come into a mapping of the thread's.
const SMALL: usize = 64;

/// One of them, or none.
#[derive(Clone, Copy)]
pub struct Reader {
    /// Index of the record + 1; 0: none. With [`DOUBLE`] it is counted by an entry before.
    sock: u32,
    since: u32,
}

const NONE: Reader = Reader { sock: 0, since: 0 };
const DOUBLE: u32 = 1 << 31;

impl Reader {
    /// Whether the thread is counted for this socket.
    pub fn is_of(self, s: &Sock) -> bool {
        self.sock & !DOUBLE == family::index_of(s) + 1
    }
}

/// Runs `f` while the calling thread is counted for those of `fds` that are served in memory, or may be meanwhile; it is told for which.
pub fn counted<T>(fds: &mut [pollfd], f: impl FnOnce(&mut [pollfd], &[Reader]) -> T) -> Res<T> {
    let mut small = [NONE; SMALL];
    if fds.len() <= SMALL {
        let n = fds.len();
        return Ok(count_in_and_out(fds, &mut small[..n], f));
    }
    scratch::with(fds.len(), NONE, |readers| count_in_and_out(fds, readers, f))
}

fn count_in_and_out<T>(fds: &mut [pollfd], readers: &mut [Reader], f: impl FnOnce(&mut [pollfd], &[Reader]) -> T) -> T {
    let frame = 0u8;
    let at = std::ptr::from_ref(&frame) as usize;
    for (i, reader) in readers.iter_mut().enumerate() {
        let Some(s) = table::sock(fds[i].fd).filter(|s| level::is_served(s) || level::may_be_served(s)) else { continue };
        // Two entries of one descriptor, for reading and for writing, are one waiter (netcat).
        let is_double = fds[i.saturating_sub(NEAR)..i].iter().any(|q| q.fd == fds[i].fd);
        *reader = match is_double {
            true => Reader { sock: (family::index_of(s) + 1) | DOUBLE, since: 0 },
            false => Reader { sock: family::index_of(s) + 1, since: counted::enter(&s.readers, &s.generation, at) },
        };
    }
    let result = f(fds, readers);
    for r in readers.iter().filter(|r| r.sock != 0 && r.sock & DOUBLE == 0) {
        if let Some(s) = record(r) {
            counted::leave(&s.readers, &s.generation, at, r.since);
        }
    }
    result
}

fn record(r: &Reader) -> Option<&'static Sock> {
    family::base().map(|base| family::sock(base, r.sock - 1))
}
