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
    nonblock: bool,
}

impl FromFile {
    /// `count` bytes of `file`.
    pub fn new(file: i32, offset: Option<i64>, count: usize) -> FromFile {
        FromFile { file, offset, left: count, ended: false, nonblock: false }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// `count` bytes of a pipe.
    pub fn pipe(file: i32, count: usize, nonblock: bool) -> FromFile {
        FromFile { file, offset: None, left: count, ended: false, nonblock }
    }
}

impl Source for FromFile {
    fn left(&self) -> usize {
        if self.ended { 0 } else { self.left }
    }

    fn fill(&mut self, ring: &Ring, pos: u64, n: usize) -> Res {
        let mut done = 0;
        while done < n {
            let (p, len) = ring.piece(pos + done as u64, n - done);
            if self.nonblock && fd::poll_now(self.file, libc::POLLIN) == 0 {
                if done == 0 {
                    return Err(Errno(libc::EAGAIN));
                }
                self.ended = true;
                return Ok(done);
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
