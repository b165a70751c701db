//! The pipe by which `smcrctl drain` wakes a process that sleeps, so that it looks at the control page.
//!
//! Whoever may read the family page may open the pipe as /proc/PID/fd/N; the page says which number and
//! inode it is, so that nobody writes into what the program has put there since. Every sleep of a
//! process with connections in memory waits for it too: epoll sets edge-triggered, others by its level,
//! and one awake thread is enough, which takes the bytes out. An eventfd would not do: it can't be opened
//! that way.

use super::RESTRICTED;
use crate::family::process;
use crate::sys::{fd, held};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// The end to wait on, and the one that keeps it from showing an end of file.
static ENDS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// 0: not made yet, 1: somebody is making it or it could not be had, 2: made.
static STATE: AtomicU32 = AtomicU32::new(0);

/// The descriptor to wait on, made at the first sleep; -1 where it can't be had.
#[inline]
pub fn descriptor() -> i32 {
    if STATE.load(Relaxed) == 0 {
        make();
    }
    ENDS[0].load(Relaxed)
}

/// Takes out what woke us. Called by a sleeper that the level woke, and when a page was read.
pub fn take() {
    held::with(&ENDS[0], |from| {
        let mut bytes = [0u8; 256];
        // SAFETY: the buffer is valid for writes.
        while matches!(unsafe { fd::read(from.fd(), bytes.as_mut_ptr(), bytes.len()) }, Ok(256)) {}
    });
}

/// Whether it is the end to which there is room to write.
pub fn is_writable(fd: i32) -> bool {
    ENDS[1].load(Relaxed) == fd
}

/// Does something with the end to which there is room to write.
pub fn with_writable<T>(act: impl Fn(i32) -> T) -> Option<T> {
    descriptor();
    held::with(&ENDS[1], |to| act(to.fd()))
}

#[cold]
fn make() {
    if RESTRICTED.load(Relaxed) || STATE.swap(1, AcqRel) != 0 {
        return;
    }
    let Ok(ends) = fd::pipe() else { return };
    // A page of room: what all pipes of a user hold is limited.
    let _ = fd::fcntl(ends[1], libc::F_SETPIPE_SZ, 4096);
    let ends = ends.map(fd::park);
    if !held::can_hold(ends[0]) {
        return ends.into_iter().for_each(fd::close);
    }
    for (end, fd) in ENDS.iter().zip(ends) {
        end.store(fd, Release);
    }
    if let Ok((_, inode)) = fd::identity(ENDS[0].load(Relaxed)) {
        process::show_wake(ENDS[0].load(Relaxed), inode);
    }
    STATE.store(2, Release);
}

/// A forked child has its parent's pipe, and makes one of its own.
pub fn forget_in_child() {
    for end in &ENDS {
        let fd = end.swap(-1, Relaxed);
        if fd >= 0 {
            fd::close(fd);
        }
    }
    STATE.store(0, Relaxed);
}

/// Whether `fd` is one of our descriptors here.
pub fn owns(fd: i32) -> bool {
    ENDS.iter().any(|end| end.load(Relaxed) == fd)
}

/// Names our descriptors here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    for end in &ENDS {
        add(end.load(Relaxed));
    }
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    let Some(at) = ENDS.iter().position(|end| end.compare_exchange(old, new, AcqRel, Relaxed).is_ok()) else {
        return false;
    };
    if at == 0
        && let Ok((_, inode)) = fd::identity(new)
    {
        process::show_wake(new, inode);
    }
    true
}
