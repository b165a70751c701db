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
    // SAFETY: what is no memory is left to the kernel.
    unsafe { is_whole(msg) && each(&*msg, |fd| passed::before(fd, over)) }
}

/// It was not sent.
///
/// # Safety
/// As for [`before`].
pub unsafe fn not_sent(msg: *const msghdr) {
    // SAFETY: as above.
    unsafe {
        if is_whole(msg) {
            each(&*msg, passed::not_sent);
        }
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

/// Whether it has control data that is there. Most messages have none, for which nobody is asked.
unsafe fn is_whole(msg: *const msghdr) -> bool {
    // SAFETY: null or the program's.
    let m = unsafe { msg.as_ref() };
    m.is_some_and(|m| m.msg_controllen != 0 && is_there(m.msg_control.cast::<u8>(), m.msg_controllen))
}

/// Walks over the control buffer as libc's macros do; whether there was one.
unsafe fn each(m: &msghdr, f: impl Fn(c_int)) -> bool {
    let mut any = false;
    // SAFETY: the caller has made sure of the buffer.
    unsafe {
        let mut c = if m.msg_controllen == 0 { std::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(m) };
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
