//! Descriptors that could not be let go of yet (`sys::porter` has the reason): they stay open, and the library's own, until a
//! porter is there to take them. Left and taken by [`super::porter`]; `transport::peers` asks for them among its own.

use libc::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// Descriptor + 1.
static LEFT: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];
/// There is something.
static ANY: AtomicU32 = AtomicU32::new(0);

/// Leaves one.
pub(super) fn leave(fd: c_int) {
    let _ = LEFT.iter().find(|l| l.compare_exchange(0, fd + 1, AcqRel, Relaxed).is_ok());
    ANY.store(1, Relaxed);
}

/// Takes as many as there is room for; the number of them.
pub(super) fn take(some: &mut [c_int]) -> usize {
    if ANY.load(Relaxed) == 0 || ANY.swap(0, AcqRel) == 0 {
        return 0;
    }
    let found = LEFT.iter().filter_map(|l| match l.swap(0, AcqRel) {
        0 => None,
        fd => Some(fd - 1),
    });
    let n = some.iter_mut().zip(found).map(|(to, fd)| *to = fd).count();
    if n == some.len() {
        ANY.store(1, Relaxed); // perhaps more
    }
    n
}

/// Whether `fd` is to be let go of still.
pub fn owns(fd: c_int) -> bool {
    ANY.load(Relaxed) != 0 && LEFT.iter().any(|l| l.load(Relaxed) == fd + 1)
}

/// Names what is to be let go of still.
pub fn descriptors(add: &mut impl FnMut(c_int)) {
    LEFT.iter().map(|l| l.load(Relaxed)).filter(|fd| *fd != 0).for_each(|fd| add(fd - 1));
}

/// One of these has another number now; false if it is none.
pub fn moved(old: c_int, new: c_int) -> bool {
    LEFT.iter().any(|l| l.compare_exchange(old + 1, new + 1, AcqRel, Relaxed).is_ok())
}
