//! longjmp and its relatives: out of a signal handler they may leave a call of ours in the middle (`table::left`). And a thread that
//! may be cancelled in the middle of one, without a handler of the program's.
//!
//! Where the program was not in such a call a jump is one look at the thread's notes.

use super::{cancel, hooks};
use crate::engine::signals;
use crate::real;
use crate::sys::jump;
use crate::table::left;
use libc::{c_int, c_void};

hooks! {
    fn longjmp(buffer: *mut c_void, value: c_int) {
        // SAFETY: the program's arguments.
        unsafe { leaving(buffer); real::longjmp(buffer, value) }
    }

    fn _longjmp(buffer: *mut c_void, value: c_int) {
        // SAFETY: the program's arguments.
        unsafe { leaving(buffer); real::_longjmp(buffer, value) }
    }

    fn siglongjmp(buffer: *mut c_void, value: c_int) {
        // SAFETY: the program's arguments.
        unsafe { leaving(buffer); real::siglongjmp(buffer, value) }
    }

    fn __longjmp_chk(buffer: *mut c_void, value: c_int) {
        // SAFETY: the program's arguments.
        unsafe { leaving(buffer); real::__longjmp_chk(buffer, value) }
    }

    fn setcontext(context: *const libc::ucontext_t) -> c_int {
        // SAFETY: the program's argument.
        unsafe {
            if let Some(target) = jump::target_of_context(context) {
                leave_below(target);
            }
            real::setcontext(context)
        }
    }

    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
        const ASYNCHRONOUS: c_int = 1;
        if kind == ASYNCHRONOUS {
            signals::may_cancel(); // before it can be
            cancel::may_cancel_anywhere();
        }
        // SAFETY: the program's arguments.
        unsafe { real::pthread_setcanceltype(kind, old) }
    }
}

/// # Safety
/// `buffer` must be the program's.
unsafe fn leaving(buffer: *const c_void) {
    // SAFETY: by the contract.
    if let Some(target) = unsafe { jump::target(buffer) } {
        leave_below(target);
    }
}

/// The calling thread goes on at `target` of its stack: what the calls below it have in their hands is given back.
fn leave_below(target: usize) {
    left::below(target);
    cancel::leave_below(target);
}
