//! Registrations by a ring (IORING_OP_EPOLL_CTL), which libuv makes so since 1.45: what is about to be submitted is done here as epoll_ctl(2) does
//! it, and what is left of it for the kernel is to say that it has succeeded. What fails the kernel does itself, and says why.
//!
//! Called by the hook of syscall(2) before io_uring_enter(2).

use super::ctl;
use crate::control;
use crate::sys::probe::is_there;
use crate::sys::uring::{Control, Entry as Operation};
use crate::sys::{errno, fd as desc, set_errno};
use crate::table::{self, Entry};

/// So many entries of the ring `fd` are about to be submitted.
pub fn before_enter(fd: i32, number: u32) {
    let Some(Entry::Ring(ring)) = table::get(fd) else { return };
    if control::is_restricted() {
        return; // the program's filter may let it register by the ring alone
    }
    let before = errno();
    ring.with(|queue| {
        let mut waits = false; // for one that is left to the kernel
        for operation in queue.submitted(number) {
            let is_done = !waits && register(operation);
            waits = !is_done && operation.leads();
        }
    });
    set_errno(before);
}

/// Whether it was one, and has succeeded.
fn register(operation: &Operation) -> bool {
    let Some(Control { set, op, fd, event }) = operation.control() else { return false };
    if op != libc::EPOLL_CTL_DEL && !is_there(event, 1) {
        return false; // EFAULT
    }
    // SAFETY: it is there, where it is needed.
    let event = (op != libc::EPOLL_CTL_DEL).then(|| unsafe { *event });
    let by_kernel = || match desc::epoll_ctl(set, op, fd, event) {
        Ok(_) => 0,
        Err(e) => {
            set_errno(e);
            -1
        }
    };
    let is_done = ctl::ctl(set, op, fd, event, by_kernel) == 0;
    if is_done {
        operation.is_done();
    }
    is_done
}
