//! Memory that a network card writes to: shared with forked children, so that it stays the same page for the parent
//! when it forks and a child can go on with a connection over the parent's link.
//!
//! What there is is kept here, so that a child which goes apart from its family (`table::apart`) can let go of all
//! that it has from its parent. Used by `link::pool` and `verbs::domain`.

use super::{Errno, Res, mem};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

/// Mappings at a time: slabs double in size.
const MOST: usize = 1024;

struct Place {
    start: AtomicPtr<u8>,
    /// Its bytes, and the lowest bit where it comes from the parent.
    len: AtomicUsize,
}

const INHERITED: usize = 1;

static PLACES: [Place; MOST] = [const { Place { start: AtomicPtr::new(std::ptr::null_mut()), len: AtomicUsize::new(0) } }; MOST];

/// Maps zeroed memory.
pub fn map(len: usize) -> Res<*mut u8> {
    let p = mem::map_anonymous(len)?;
    let free = |place: &&Place| place.start.compare_exchange(std::ptr::null_mut(), p, AcqRel, Relaxed).is_ok();
    match PLACES.iter().find(free) {
        Some(place) => place.len.store(len & !INHERITED, Release), // pairs with the Acquire in `leave_to_parent`
        None => {
            mem::unmap(p, len);
            return Err(Errno(libc::ENOMEM));
        }
    }
    Ok(p)
}

/// Unmaps it.
pub fn unmap(p: *mut u8, len: usize) {
    for place in &PLACES {
        if place.start.load(Relaxed) == p {
            place.len.store(0, Relaxed);
            place.start.store(std::ptr::null_mut(), Release); // pairs with the exchange in `map`
        }
    }
    mem::unmap(p, len);
}

/// A forked child: all that there is comes from the parent.
pub fn mark_in_child() {
    for place in &PLACES {
        let len = place.len.load(Relaxed);
        if len != 0 {
            place.len.store(len | INHERITED, Relaxed);
        }
    }
}

/// Puts empty memory of this process's own in the place of what comes from the parent.
pub fn leave_to_parent() {
    for place in &PLACES {
        let len = place.len.load(Acquire);
        if len & INHERITED != 0 {
            let start = place.start.swap(std::ptr::null_mut(), AcqRel);
            place.len.store(0, Relaxed);
            if mem::empty(start, len & !INHERITED).is_err() {
                mem::unmap(start, len & !INHERITED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_leaves_stays_with_its_parent() {
        let p = map(4096).expect("a page");
        // SAFETY: a live page of this test.
        unsafe { p.write_volatile(7) };
        // SAFETY: the child makes system calls and stores only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            mark_in_child();
            leave_to_parent();
            // SAFETY: the page is still mapped, and the child's own.
            let found = unsafe {
                let found = p.read_volatile();
                p.write_volatile(9);
                found
            };
            // SAFETY: no pointers.
            unsafe { libc::_exit(i32::from(found)) };
        }
        let mut status = -1;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's page is empty");
        // SAFETY: as above.
        assert_eq!(unsafe { p.read_volatile() }, 7);
        unmap(p, 4096);
    }
}
