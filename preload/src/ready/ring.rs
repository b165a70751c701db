//! Registrations by a ring (IORING_OP_EPOLL_CTL), which libuv makes so since 1.45: what is about to be submitted is done here as epoll_ctl(2) does
//! it, and what is left of it for the kernel is to say that it has succeeded. What fails the kernel does itself, and says why.
//!
//! Called by the hook of syscall(2) before io_uring_enter(2).

use super::ctl;
use crate::control;
use crate::sys::probe::is_there;
use crate::sys::uring::{Control, Sqe};
use crate::sys::{fd as desc, keeping_errno};
use crate::table::{self, Entry};

/// So many entries of the ring `fd` are about to be submitted.
pub fn before_enter(fd: i32, number: u32) {
    let Some(Entry::Ring(ring)) = table::get(fd) else { return };
    if control::is_restricted() {
        return; // the program's filter may let it register by the ring alone
    }
    keeping_errno(|| {
        ring.with(|queue| {
            let mut waits = false; // for one that is left to the kernel
            for sqe in queue.submitted(number) {
                let is_done = !waits && register(sqe);
                waits = !is_done && sqe.leads();
            }
        });
        0
    });
}

/// Whether it was one, and has succeeded.
fn register(sqe: &Sqe) -> bool {
    let Some(Control { set, op, fd, event }) = sqe.control() else { return false };
    if op != libc::EPOLL_CTL_DEL && !is_there(event, 1) {
        return false; // EFAULT
    }
    // SAFETY: it is there, where it is needed.
    let event = (op != libc::EPOLL_CTL_DEL).then(|| unsafe { *event });
    let by_kernel = || desc::epoll_ctl(set, op, fd, event).map_or(-1, |_| 0);
    let is_done = ctl::ctl(set, op, fd, event, by_kernel) == 0;
    if is_done {
        sqe.is_done();
    }
    is_done
}
