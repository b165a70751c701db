//! Descriptors in messages over Unix sockets (SCM_RIGHTS): names them to the table before a message goes, where it did not,
//! and when one has come. Called by the hooks of sendmsg and recvmsg.

use crate::sys::probe::is_there;
use crate::sys::rights::each;
use crate::table::passed;
use libc::{c_int, msghdr};

/// Before `over` sends the message; whether there are any.
///
/// # Safety
/// The message is the program's, as for sendmsg(2).
pub unsafe fn before(over: c_int, msg: *const msghdr) -> bool {
    let mut any = false;
    // SAFETY: by the contract.
    if let Some(m) = unsafe { with_control(msg) } {
        let pass = |fd| {
            any = true;
            passed::before(fd, over);
        };
        // SAFETY: it is there.
        unsafe { each(m, pass) };
    }
    any
}

/// It was sent, or it was not.
///
/// # Safety
/// As for [`before`].
pub unsafe fn after(msg: *const msghdr, sent: bool) {
    // SAFETY: by the contract.
    if let Some(m) = unsafe { with_control(msg) } {
        // SAFETY: it is there.
        unsafe { each(m, |fd| passed::after(fd, sent)) };
    }
}

/// `over` has received it.
///
/// # Safety
/// The kernel has just filled the message, and its control buffer.
pub unsafe fn received(over: c_int, msg: *const msghdr, flags: c_int) {
    // SAFETY: by the contract.
    unsafe { each(&*msg, |fd| passed::received(fd, over, flags & libc::MSG_PEEK != 0)) };
}

/// The message, if it has control data, and that is there; else it is left to the kernel. Most have none, for which nobody is asked.
unsafe fn with_control<'a>(msg: *const msghdr) -> Option<&'a msghdr> {
    // SAFETY: null or the program's.
    let m = unsafe { msg.as_ref() }?;
    (m.msg_controllen != 0 && is_there(m.msg_control.cast::<u8>(), m.msg_controllen)).then_some(m)
}
