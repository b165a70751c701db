//! Whether memory that the program names is there, before a hook looks into it: the kernel answers
//! EFAULT to a pointer into nothing, a load in a hook would end the program.
//!
//! Called by the hooks that read structures of the program (addresses, message headers, poll arrays).
//! Pages that were found are remembered by each thread, so that a call in a loop asks the kernel once;
//! a page that was unmapped since is not noticed.

use super::{Sysno, call, thread};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Nothing of a program lies below (vm.mmap_min_addr) or above (the canonical half).
const FIRST: usize = 1 << 16;
const LAST: usize = 1 << 56;
const PAGE: usize = 4096;

/// Whether `n` values at `p` can be read. Of a long array the two ends are looked at.
#[inline]
pub fn is_there<T>(p: *const T, n: usize) -> bool {
    let Some(len) = n.checked_mul(size_of::<T>()).filter(|len| *len < LAST) else { return false };
    let (first, last) = (p as usize, (p as usize).wrapping_add(len.max(1) - 1));
    page_is_there(first) && (first / PAGE == last / PAGE || page_is_there(last))
}

/// As [`is_there`]; a null pointer stands for nothing and is as good.
#[inline]
pub fn is_null_or_there<T>(p: *const T) -> bool {
    p.is_null() || is_there(p, 1)
}

/// Whether the value at `p`, which is there and is about to be written, can be. It may hold anything afterwards.
pub fn can_be_written<T>(p: *mut T) -> bool {
    const BLOCK: usize = 0;
    const MASK: usize = 8;
    let ends = [p as usize, p as usize + size_of::<T>().max(MASK) - MASK];
    // SAFETY: the kernel writes the mask of signals, eight bytes at each end, if it can; it changes none.
    !SILENT.load(Relaxed) && ends.iter().all(|at| unsafe { call(Sysno::rt_sigprocmask, [BLOCK, 0, *at, MASK, 0, 0]) }.is_ok())
}

/// The kernel may not be asked any more.
static SILENT: AtomicBool = AtomicBool::new(false);

/// From now on no memory is said to be there: hooks leave what they would look into to the kernel.
pub fn ask_no_more() {
    SILENT.store(true, Relaxed);
}

/// Whether a program can have so many addresses from `p` on, with or without memory there. `file`: one of ours, to be read behind
/// its end.
pub fn is_space(file: i32, p: *const u8, n: usize) -> bool {
    const BEHIND: usize = 1 << 40;
    // SAFETY: nothing is there to be read.
    let read = unsafe { call(Sysno::pread64, [file as usize, p as usize, n, BEHIND, 0, 0]) };
    read.map_or_else(|e| e.0 != libc::EFAULT, |_| true)
}

#[inline]
fn page_is_there(at: usize) -> bool {
    if !(FIRST..LAST).contains(&at) || SILENT.load(Relaxed) {
        return false;
    }
    let page = (at / PAGE) as u32;
    thread::with(|t| {
        let known = &t.pages[page as usize % t.pages.len()];
        known.get() == page || {
            let there = ask(at);
            if there {
                known.set(page);
            }
            there
        }
    })
}

/// The kernel copies a signal set before it finds that nothing is to be done with it: EFAULT or EINVAL,
/// and no mask is changed.
#[cold]
fn ask(at: usize) -> bool {
    const NO_SUCH_CHANGE: usize = 99;
    let args = [NO_SUCH_CHANGE, at & !7, 0, 8, 0, 0];
    // SAFETY: the kernel reads eight bytes, if they are there.
    match unsafe { call(Sysno::rt_sigprocmask, args) } {
        Err(e) => e.0 != libc::EFAULT,
        Ok(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem;

    #[test]
    fn memory_is_there_while_it_can_be_read() {
        let page = mem::map_private(2 * PAGE).map(|p| p as usize).unwrap_or(0);
        assert!(is_there(page as *const u64, 1024));
        assert!(is_there(&page, 1));
        // Unmapped it might be another thread's at once.
        // SAFETY: the mapping is this test's alone.
        assert_eq!(unsafe { libc::mprotect(page as *mut libc::c_void, 2 * PAGE, libc::PROT_NONE) }, 0);
        std::thread::spawn(move || {
            assert!(!is_there(page as *const u64, 1));
            assert!(!is_there((page + PAGE - 8) as *const u64, 2));
        })
        .join()
        .expect("nothing is found");
    }

    #[test]
    fn what_can_only_be_read_is_there_and_not_to_be_written() {
        static FOR_EVER: [u64; 2] = [3, 4];
        let (p, mut mine) = (std::hint::black_box(&raw const FOR_EVER), [3u64, 4]);
        assert!(is_there(p, 1) && !can_be_written(p.cast_mut()));
        assert_eq!(FOR_EVER, [3, 4]);
        assert!(can_be_written(&raw mut mine));
    }

    #[test]
    fn null_and_what_only_the_kernel_has_are_not_there() {
        assert!(!is_there(std::ptr::null::<u8>(), 1));
        assert!(!is_there(usize::MAX as *const u8, 1));
        assert!(!is_there((LAST - 1) as *const u16, 1));
        assert!(!is_there(FIRST as *const u64, usize::MAX));
        assert!(is_null_or_there(std::ptr::null::<u8>()));
    }
}
