//! The program's buffers of one call: an iovec array with a position, and where control messages go.

use crate::control;
use crate::family;
use crate::sys::probe;
use std::cell::Cell;

/// Most bytes of a call; what is more is taken for this.
pub const MOST: usize = 0x7fff_f000;

/// Buffers of a call, as the program gave them.
#[derive(Clone, Copy)]
pub struct Bufs<'a> {
    iov: &'a [libc::iovec],
    len: usize,
    control: Option<&'a Control>,
}

/// Where the program wants control messages, which come from the kernel alone (SO_TIMESTAMP).
pub struct Control {
    at: *mut libc::c_void,
    room: usize,
    /// Length and flags of what came with the last bytes.
    pub came: Cell<Option<(usize, i32)>>,
}

impl Control {
    /// The place that a message names; None: there is none.
    pub fn of(m: &libc::msghdr) -> Option<Control> {
        let room = m.msg_controllen;
        (room > 0 && !m.msg_control.is_null()).then(|| Control { at: m.msg_control, room, came: Cell::new(None) })
    }

    /// Puts the place into a message for the kernel.
    pub fn ask(&self, m: &mut libc::msghdr) {
        m.msg_control = self.at;
        m.msg_controllen = self.room as _;
    }
}

/// Whether no memory of a program can be there: the first page, and the kernel's half of the addresses.
#[inline(always)]
pub fn is_nowhere(p: *const u8) -> bool {
    const PAGE: usize = 4096;
    (p as usize).wrapping_sub(PAGE) > isize::MAX as usize - PAGE
}

/// Whether an entry reaches beyond the addresses that a program can have: the whole call is EFAULT, before
/// anything else is looked at.
pub fn reach_beyond(iov: &[libc::iovec]) -> bool {
    const LAST: usize = isize::MAX as usize;
    iov.iter().any(|v| {
        let at = v.iov_base as usize;
        at > LAST || v.iov_len > LAST - at || v.iov_len > MOST && !is_space(v)
    })
}

/// Whether so many bytes can be there at all. Where the addresses end is a matter of the kernel and the processor.
#[cold]
fn is_space(v: &libc::iovec) -> bool {
    control::is_restricted() || probe::is_space(family::descriptor(), v.iov_base.cast(), v.iov_len)
}

#[allow(clippy::len_without_is_empty, reason = "nobody asks")]
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
        Bufs { iov, len: len.min(MOST), control: None }
    }

    /// With a place for control messages.
    pub fn with(self, control: Option<&'a Control>) -> Bufs<'a> {
        Bufs { control, ..self }
    }

    /// Where control messages go.
    pub fn control(&self) -> Option<&'a Control> {
        self.control
    }

    /// Whether some of the `n` bytes from `from` on lie where no memory can be: EFAULT instead of moving them.
    #[inline]
    pub fn are_nowhere(&self, from: usize, n: usize) -> bool {
        let mut found = false;
        self.pieces(from, n, |p, _| found |= is_nowhere(p));
        found
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
    /// stops at the first part that is not moved whole. `f` is told how many were moved before. Returns the bytes moved, or the error of the
    /// first part.
    pub fn with_parts<E>(&self, from: usize, n: usize, mut f: impl FnMut(&mut [libc::iovec], usize) -> Result<usize, E>) -> Result<usize, E> {
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
            match f(&mut part[..used], done) {
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
    fn memory_that_cannot_be_is_told() {
        let mut a = [0u8; 3];
        let bad = |at: usize, n| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: n };
        for at in [0, 4000, 1 << 63, usize::MAX] {
            let iov = [bad(at, 0), entry(&mut a), bad(at, 2), entry(&mut a)];
            // SAFETY: what is bad is not looked at.
            let bufs = unsafe { Bufs::new(&iov) };
            assert!(!bufs.are_nowhere(0, 3) && bufs.are_nowhere(0, 4) && bufs.are_nowhere(4, 1));
            assert!(!bufs.are_nowhere(5, 3));
            assert_eq!(reach_beyond(&iov), at > 4000);
        }
        assert!(!is_nowhere(4096 as *const u8) && !is_nowhere((1usize << 63).wrapping_sub(1) as *const u8));
    }

    #[test]
    fn a_call_moves_no_more_than_the_kernel_would() {
        let large = libc::iovec { iov_base: 4096 as *mut libc::c_void, iov_len: 3 << 30 };
        // SAFETY: nothing of them is looked at.
        let len = |iov: &[libc::iovec]| unsafe { Bufs::new(iov) }.len();
        assert_eq!((len(&[large]), len(&[large; 2]), len(&[large; 1024])), (MOST, MOST, MOST));
        // The last piece of several is cut.
        let parts = [libc::iovec { iov_len: 1 << 30, ..large }; 3];
        // SAFETY: as above.
        let bufs = unsafe { Bufs::new(&parts) };
        let mut sum = 0;
        bufs.pieces(0, bufs.len(), |_, n| sum += n);
        assert_eq!(sum, MOST);
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
