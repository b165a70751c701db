//! sendfile and splice into the ring: the file is read straight into ring memory, or by way of [`scratch`] where that would crawl.

use super::bulk;
use super::pace::{Kind, Speed};
use super::scratch;
use super::tx::{Source, Step};
use crate::control;
use crate::sys::{Errno, Res, clock, fd};
use crate::transport::ring::Ring;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A file as a source.
pub struct FromFile {
    file: i32,
    /// Position for pread; None reads at the file's own position.
    pub offset: Option<i64>,
    left: usize,
    ended: bool,
    is_pipe: bool,
    /// Reading it alone crawled, the last time that this could be told.
    is_slow: bool,
    has_given: bool,
    /// A pipe had nothing, and nothing was read from it before.
    pub was_empty: bool,
}

impl FromFile {
    /// `count` bytes of `file`.
    pub fn new(file: i32, offset: Option<i64>, count: usize) -> FromFile {
        FromFile { file, offset, left: count, ended: false, is_pipe: false, is_slow: false, has_given: false, was_empty: false }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// `count` bytes of a pipe: what it has. It is never waited for here, where the direction's lock is held.
    pub fn pipe(file: i32, count: usize) -> FromFile {
        FromFile { is_pipe: true, ..FromFile::new(file, None, count) }
    }
}

/// Whether nothing of a file lies behind its own position, or `offset`.
#[cold]
pub fn has_ended(file: i32, offset: Option<i64>) -> bool {
    let own = || fd::lseek(file, 0, libc::SEEK_CUR).ok().map(|at| at as i64);
    let mut byte = 0u8;
    // SAFETY: a byte of our own.
    offset.or_else(own).is_some_and(|at| unsafe { fd::pread(file, &raw mut byte, 1, at) } == Ok(0))
}

/// Whether it is read past the page cache (O_DIRECT), for which most file systems want pages: a place in the ring is none.
#[cold]
pub fn is_direct(file: i32) -> bool {
    fd::status_flags(file).is_ok_and(|flags| flags & libc::O_DIRECT != 0)
}

/// As much as a send queue takes: of a large file no more is read for nobody.
const SWALLOWED: usize = 256 * 1024;

/// Takes up to `n` bytes of a file, or of a pipe that has them, for a peer that is dead: TCP takes what is sent first after that, and
/// nobody gets it.
pub fn swallow(file: i32, offset: Option<&mut i64>, n: usize) -> Res {
    let mut source = FromFile::new(file, offset.as_deref().copied(), n);
    let r = source.swallow();
    if let (Some(to), Some(at)) = (offset, source.offset) {
        *to = at;
    }
    r
}

impl Source for FromFile {
    fn left(&self) -> usize {
        if self.ended { 0 } else { self.left }
    }

    fn nothing(&mut self) -> Option<Step> {
        if !self.is_pipe {
            return has_ended(self.file, self.offset).then_some(Step::Moved(0));
        }
        if fd::unread(self.file) != Ok(0) {
            return None;
        }
        if fd::poll_now(self.file, libc::POLLIN) & libc::POLLHUP != 0 {
            return Some(Step::Moved(0)); // nobody writes any more
        }
        self.was_empty = !self.has_given;
        Some(Step::Failed(Errno(libc::EAGAIN)))
    }

    fn kind(&self) -> Kind {
        match self.is_pipe {
            true => Kind::Pipe,
            false if self.is_slow => Kind::SlowFile,
            false => Kind::File,
        }
    }

    fn fill(&mut self, ring: &Ring, pos: u64, n: usize) -> Res {
        let mut done = 0;
        while done < n {
            let (len, r) = self.put(ring, pos + done as u64, n - done);
            match r {
                Ok(0) => {
                    self.ended = true;
                    return Ok(done);
                }
                Ok(got) => {
                    done += got;
                    self.took(got);
                    // A pipe gives what it has; do not wait for more with bytes in hand.
                    if got < len && self.offset.is_none() {
                        self.ended = true;
                        return Ok(done);
                    }
                }
                Err(e) => return self.stopped(e, done),
            }
        }
        Ok(done)
    }

    fn swallow(&mut self) -> Res {
        let mut some = [0u8; 4096];
        let mut done = 0;
        while self.left > 0 && done < SWALLOWED {
            let len = self.left.min(some.len());
            // SAFETY: a buffer of our own.
            match unsafe { self.read(some.as_mut_ptr(), len) } {
                Ok(0) => break,
                Ok(got) => {
                    done += got;
                    self.took(got);
                }
                Err(e) => return self.stopped(e, done),
            }
        }
        self.ended = true;
        Ok(done)
    }
}

impl FromFile {
    fn took(&mut self, n: usize) {
        self.left -= n;
        self.has_given = true;
        if let Some(off) = &mut self.offset {
            *off += n as i64;
        }
    }

    /// Reading failed where `done` bytes were there before it.
    fn stopped(&mut self, e: Errno, done: usize) -> Res {
        let is_empty = self.is_pipe && e.0 == libc::EAGAIN;
        self.was_empty = is_empty && done == 0 && !self.has_given;
        self.ended = is_empty && !self.was_empty;
        match e {
            _ if done > 0 || self.ended => Ok(done),
            Errno(libc::EISDIR) => Err(Errno(libc::EINVAL)), // as sendfile says it
            e => Err(e),
        }
    }

    /// Puts some of the next `want` bytes of the file at `pos`: how many it asked for, and got.
    fn put(&mut self, ring: &Ring, pos: u64, want: usize) -> (usize, Res) {
        if ring.is_streamed()
            && !self.is_pipe
            && want >= bulk::LARGE
            && let Some(piece) = scratch::borrow()
        {
            return self.put_through(piece, ring, pos, want.min(scratch::SIZE));
        }
        let (p, len) = ring.piece(pos, want);
        // SAFETY: a piece of the ring, valid for writes, not published yet.
        (len, unsafe { self.read(p, len) })
    }

    /// The same by way of `piece`.
    fn put_through(&mut self, mut piece: scratch::Borrowed, ring: &Ring, pos: u64, len: usize) -> (usize, Res) {
        let began = clock::ticks();
        // SAFETY: the piece is as long, and ours.
        let r = unsafe { self.read(piece.bytes(), len) };
        if let Ok(got) = r {
            self.is_slow = bulk::speed_since(began, got) == Speed::Crawl;
            // SAFETY: so many bytes of it were just written; the ring has room for them.
            unsafe { ring.put(pos, piece.bytes(), got) };
        }
        (len, r)
    }

    /// # Safety
    /// `p` must be valid for writes of `len` bytes.
    unsafe fn read(&self, p: *mut u8, len: usize) -> Res {
        // SAFETY: by the contract.
        unsafe {
            match self.offset {
                Some(off) => fd::pread(self.file, p, len, off),
                None if self.is_pipe => read_pipe(self.file, p, len),
                None => fd::read(self.file, p, len),
            }
        }
    }
}

/// The kernel has no such read of pipes.
static IS_OLD: AtomicBool = AtomicBool::new(false);

/// Reads what a pipe has. Nobody waits here, where the direction's lock is held, also if another reader of the pipe comes first.
///
/// # Safety
/// `p` must be valid for writes of `len` bytes.
unsafe fn read_pipe(pipe: i32, p: *mut u8, len: usize) -> Res {
    if !control::is_restricted() && !IS_OLD.load(Relaxed) {
        // SAFETY: by the contract.
        match unsafe { fd::read_now(pipe, p, len) } {
            Err(Errno(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)) => IS_OLD.store(true, Relaxed),
            r => return r,
        }
    }
    // Before Linux 6.4, and where a filter may not know that call, another reader may still come between these two.
    if fd::poll_now(pipe, libc::POLLIN) == 0 {
        return Err(Errno(libc::EAGAIN));
    }
    // SAFETY: by the contract.
    unsafe { fd::read(pipe, p, len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd};

    const RING: usize = 256 << 10;

    fn file(bytes: &[u8]) -> std::fs::File {
        // SAFETY: a name that ends, and a new descriptor, whose owner this is.
        let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"file".as_ptr(), 0)) };
        file.write_all(bytes).expect("written");
        file
    }

    /// What lies in a ring at `pos` after `want` bytes of `file` from `offset` were put there, and how many were.
    fn filled(file: &std::fs::File, streamed: bool, pos: u64, offset: i64, want: usize) -> Vec<u8> {
        let mut memory = vec![0u8; RING];
        // SAFETY: so many bytes, which outlive the ring.
        let ring = unsafe { Ring::new(memory.as_mut_ptr(), RING, 0) }.streamed(streamed);
        let mut source = FromFile::new(file.as_raw_fd(), Some(offset), want);
        let got = source.fill(&ring, pos, want).expect("filled");
        assert_eq!(source.offset, Some(offset + got as i64));
        assert_eq!(source.remaining(), want - got);
        (0..got).map(|i| memory[(pos as usize + i) % RING]).collect()
    }

    #[test]
    fn a_file_is_whole_whichever_way_it_goes() {
        let bytes: Vec<u8> = (0..200_000).map(|i: u32| (i * 7 + i / 251) as u8).collect();
        let file = file(&bytes);
        for streamed in [false, true] {
            for pos in [0, 5, RING as u64 - 1, RING as u64 - 70_000, RING as u64 * 9 - 16_385] {
                for (offset, want) in [(0, 65_536), (1, 65_537), (100, 150_001), (3, 16_384), (7, 10), (190_000, 30_000), (200_000, 20_000)] {
                    let expected = &bytes[offset..(offset + want).min(bytes.len())];
                    assert!(filled(&file, streamed, pos, offset as i64, want) == expected, "{streamed} {pos} {offset} {want}");
                }
            }
        }
    }

    #[test]
    fn it_goes_through_memory_of_our_own_where_the_ring_is_written_past_the_caches() {
        let bytes: Vec<u8> = (0..scratch::SIZE).map(|i| (i % 253) as u8).collect();
        let file = file(&bytes);
        // The thread may change its processor in between, and with it the piece.
        let goes = |streamed| {
            (0..100).any(|_| {
                // SAFETY: the piece is ours, and as long.
                let piece = |p: &mut scratch::Borrowed| unsafe { std::slice::from_raw_parts_mut(p.bytes(), scratch::SIZE) };
                if let Some(mut p) = scratch::borrow() {
                    piece(&mut p).fill(255);
                }
                filled(&file, streamed, 0, 0, scratch::SIZE);
                scratch::borrow().is_some_and(|mut p| *piece(&mut p) == bytes)
            })
        };
        assert!(goes(true));
        assert!(!goes(false));
    }
}
