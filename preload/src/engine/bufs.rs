//! The program's buffers of one call: an iovec array with a position.

/// Buffers of a call, as the program gave them.
#[derive(Clone, Copy)]
pub struct Bufs<'a> {
    iov: &'a [libc::iovec],
    len: usize,
}

impl<'a> Bufs<'a> {
    /// Wraps an iovec array.
    ///
    /// # Safety
    /// Each entry must be valid for the access that the call makes (reads for sending, writes for
    /// receiving), as the program promises the kernel.
    #[inline]
    pub unsafe fn new(iov: &'a [libc::iovec]) -> Bufs<'a> {
        let mut len = 0usize;
        for v in iov {
            len = len.saturating_add(v.iov_len);
        }
        Bufs { iov, len: len.min(isize::MAX as usize) }
    }

    /// Bytes in all.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The buffer, if there is one and no more.
    #[inline]
    pub fn single(&self) -> Option<(*mut u8, usize)> {
        match self.iov {
            [v] => Some((v.iov_base.cast(), v.iov_len)),
            _ => None,
        }
    }

    /// Calls `f` for the pieces of the `n` bytes from `from` on.
    #[inline]
    pub fn pieces(&self, from: usize, n: usize, mut f: impl FnMut(*mut u8, usize)) {
        if self.iov.len() == 1 {
            return f(self.iov[0].iov_base.cast::<u8>().wrapping_add(from), n);
        }
        let (mut skip, mut left) = (from, n);
        for v in self.iov {
            if left == 0 {
                return;
            }
            if skip >= v.iov_len {
                skip -= v.iov_len;
                continue;
            }
            let take = left.min(v.iov_len - skip);
            f(v.iov_base.cast::<u8>().wrapping_add(skip), take);
            skip = 0;
            left -= take;
        }
    }

    /// Runs `f` with an iovec array for the `n` bytes from `from` on, in parts of 16 entries;
    /// stops at the first part that is not moved whole. Returns the bytes moved, or the error of the
    /// first part.
    pub fn with_parts<E>(
        &self,
        from: usize,
        n: usize,
        mut f: impl FnMut(&mut [libc::iovec]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        const PART: usize = 16;
        let mut done = 0;
        while done < n {
            let mut part = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PART];
            let (mut used, mut bytes) = (0, 0);
            self.pieces(from + done, n - done, |p, len| {
                if used < PART {
                    part[used] = libc::iovec { iov_base: p.cast(), iov_len: len };
                    used += 1;
                    bytes += len;
                }
            });
            if bytes == 0 {
                break;
            }
            match f(&mut part[..used]) {
                Ok(moved) => {
                    done += moved;
                    if moved < bytes {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(s: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: s.as_mut_ptr().cast(), iov_len: s.len() }
    }

    #[test]
    fn pieces_cover_exactly_what_is_asked() {
        let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 5]);
        let iov = [entry(&mut a), entry(&mut b), entry(&mut c)];
        // SAFETY: the arrays live through the test.
        let bufs = unsafe { Bufs::new(&iov) };
        assert_eq!(bufs.len(), 8);
        for from in 0..=8 {
            for n in 0..=8 - from {
                let mut sum = 0;
                bufs.pieces(from, n, |_, len| sum += len);
                assert_eq!(sum, n);
            }
        }
    }
}
