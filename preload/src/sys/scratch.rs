//! Arrays of a call that are too long for the stack: mappings that a thread keeps for its next one.
//!
//! A poll of hundreds of descriptors needs several for each look; making and unmapping them each time costs more than the look, most of
//! all beside other threads, whose processors are told of each unmapping. Called by `ready`; a thread that leaves in the middle, by a
//! jump or cancelled, leaves its mapping behind.

use super::{Res, mem};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many are used at a time by one call.
const KEPT: usize = 4;

const PAGE: usize = 4096;

thread_local! {
    /// Address, and the number of pages below it: one word, since a handler of the program's may come here at any moment. 0: none.
    static SCRATCH: [AtomicUsize; KEPT] = const { [const { AtomicUsize::new(0) }; KEPT] };
}

/// Runs `f` with an array of `n` entries, which are all `fill` at first.
pub fn with<T: Copy, R>(n: usize, fill: T, f: impl FnOnce(&mut [T]) -> R) -> Res<R> {
    let (at, bytes) = take(n * size_of::<T>())?;
    // SAFETY: a private mapping of this call's alone, of at least so many bytes and page-aligned; written before it is read.
    let all = unsafe {
        let p: *mut T = (at as *mut u8).cast();
        (0..n).for_each(|i| p.add(i).write(fill));
        std::slice::from_raw_parts_mut(p, n)
    };
    let result = f(all);
    keep(at, bytes);
    Ok(result)
}

fn take(bytes: usize) -> Res<(usize, usize)> {
    let bytes = bytes.max(1).next_multiple_of(PAGE);
    let size = |kept: usize| kept % PAGE * PAGE;
    let found = SCRATCH.with(|all| {
        let long = all.iter().find(|k| size(k.load(Relaxed)) >= bytes)?;
        // A handler may have put another one there since.
        Some(long.swap(0, Relaxed)).filter(|kept| *kept != 0)
    });
    match found.map(|kept| (kept & !(PAGE - 1), size(kept))) {
        Some((at, long)) if long >= bytes => return Ok((at, long)),
        Some((at, long)) => mem::unmap(at as *mut u8, long),
        None => {}
    }
    Ok((mem::map_private(bytes)? as usize, bytes))
}

fn keep(at: usize, bytes: usize) {
    let put = |k: &AtomicUsize| k.compare_exchange(0, at | (bytes / PAGE), Relaxed, Relaxed).is_ok();
    if bytes / PAGE >= PAGE || !SCRATCH.with(|all| all.iter().any(put)) {
        mem::unmap(at as *mut u8, bytes);
    }
}

/// The calling thread ends.
pub fn thread_ends() {
    SCRATCH.with(|all| {
        for kept in all.iter().map(|k| k.swap(0, Relaxed)).filter(|kept| *kept != 0) {
            mem::unmap((kept & !(PAGE - 1)) as *mut u8, kept % PAGE * PAGE);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_new_each_time_and_the_same_memory() {
        let place = |all: &mut [u32]| {
            assert!(all.iter().all(|v| *v == 7));
            all.fill(1);
            all.as_ptr() as usize
        };
        let first = with(3000, 7, |a| {
            let inner = with(2000, 7, place);
            assert_ne!(inner.ok(), Some(a.as_ptr() as usize), "one call has two");
            place(a)
        });
        assert!(with(10, 7, place).is_ok());
        let again: Vec<_> = (0..3).map(|_| with(3000, 7, place).ok()).collect();
        assert!(again.iter().all(|p| *p == again[0]) && again[0].is_some() && first.is_ok());
        thread_ends();
        assert!(with(3000, 7, place).is_ok());
    }
}
