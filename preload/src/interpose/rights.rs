//! Descriptors in messages over Unix sockets (SCM_RIGHTS): names them to the table before a message goes, where it did not,
//! and when one has come. Called by the hooks of sendmsg and recvmsg.

use crate::sys::probe::is_there;
use crate::table::passed;
use libc::{c_int, msghdr};

/// Before `over` sends the message; whether there are any.
///
/// # Safety
/// The message is the program's, as for sendmsg(2).
pub unsafe fn before(over: c_int, msg: *const msghdr) -> bool {
    // SAFETY: the program's message.
    unsafe { each(msg, |fd| passed::before(fd, over)) }
}

/// It was not sent.
///
/// # Safety
/// As for [`before`].
pub unsafe fn not_sent(msg: *const msghdr) {
    // SAFETY: the program's message.
    unsafe { each(msg, passed::not_sent) };
}

/// `over` has received it.
///
/// # Safety
/// The kernel has just filled the message.
pub unsafe fn received(over: c_int, msg: *const msghdr, flags: c_int) {
    // SAFETY: the program's message.
    unsafe { each(msg, |fd| passed::received(fd, over, flags & libc::MSG_PEEK != 0)) };
}

/// Walks over the program's control buffer as libc's macros do; whether there was one.
unsafe fn each(msg: *const msghdr, f: impl Fn(c_int)) -> bool {
    let mut any = false;
    if !is_there(msg, 1) {
        return any;
    }
    // SAFETY: the program's message, which is there, and its control buffer.
    unsafe {
        let m = &*msg;
        if m.msg_controllen == 0 || !is_there(m.msg_control.cast::<u8>(), m.msg_controllen) {
            return any;
        }
        let mut c = libc::CMSG_FIRSTHDR(m);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*c).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(c).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    any = true;
                    f(fds.add(i).read_unaligned());
                }
            }
            c = libc::CMSG_NXTHDR(m, c);
        }
    }
    any
}
