//! sendfile and splice into the ring: the file is read straight into ring memory.

use super::tx::Source;
use crate::sys::{Errno, Res, fd};
use crate::transport::ring::Ring;

/// A file as a source.
pub struct FromFile {
    file: i32,
    /// Position for pread; None reads at the file's own position.
    pub offset: Option<i64>,
    left: usize,
    ended: bool,
    is_pipe: bool,
    has_given: bool,
    /// A pipe had nothing, and nothing was read from it before.
    pub was_empty: bool,
}

impl FromFile {
    /// `count` bytes of `file`.
    pub fn new(file: i32, offset: Option<i64>, count: usize) -> FromFile {
        FromFile { file, offset, left: count, ended: false, is_pipe: false, has_given: false, was_empty: false }
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

/// Takes `n` bytes of a file, or of a pipe that has them, for a peer that is dead: TCP takes what is sent first after that, and
/// nobody gets it.
pub fn swallow(file: i32, offset: Option<&mut i64>, n: usize) -> Res {
    let mut some = [0u8; 4096];
    let mut at = offset.as_deref().copied();
    let mut done = 0;
    while done < n {
        let len = (n - done).min(some.len());
        // SAFETY: a buffer of our own.
        let got = unsafe {
            match at {
                Some(off) => fd::pread(file, some.as_mut_ptr(), len, off),
                None => fd::read(file, some.as_mut_ptr(), len),
            }
        };
        match got {
            Ok(0) => break,
            Ok(got) => {
                done += got;
                at = at.map(|off| off + got as i64);
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    if let (Some(to), Some(at)) = (offset, at) {
        *to = at;
    }
    Ok(done)
}

impl Source for FromFile {
    fn left(&self) -> usize {
        if self.ended { 0 } else { self.left }
    }

    fn fill(&mut self, ring: &Ring, pos: u64, n: usize) -> Res {
        let mut done = 0;
        while done < n {
            let (p, len) = ring.piece(pos + done as u64, n - done);
            if self.is_pipe && fd::poll_now(self.file, libc::POLLIN) == 0 {
                self.was_empty = done == 0 && !self.has_given;
                self.ended = !self.was_empty;
                return if self.was_empty { Err(Errno(libc::EAGAIN)) } else { Ok(done) };
            }
            // SAFETY: a piece of the ring, valid for writes, not published yet.
            let r = unsafe {
                match self.offset {
                    Some(off) => fd::pread(self.file, p, len, off),
                    None => fd::read(self.file, p, len),
                }
            };
            match r {
                Ok(0) => {
                    self.ended = true;
                    return Ok(done);
                }
                Ok(got) => {
                    done += got;
                    self.left -= got;
                    self.has_given = true;
                    if let Some(off) = &mut self.offset {
                        *off += got as i64;
                    }
                    // A pipe gives what it has; do not wait for more with bytes in hand.
                    if got < len && self.offset.is_none() {
                        self.ended = true;
                        return Ok(done);
                    }
                }
                Err(Errno(libc::EISDIR)) if done == 0 => return Err(Errno(libc::EINVAL)), // as sendfile says it
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
        }
        Ok(done)
    }
}
