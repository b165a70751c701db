//! Messages with descriptors over a Unix socket (SCM_RIGHTS).

use super::{Errno, Res, fd, net};
use libc::{c_int, c_void};
use std::mem::MaybeUninit;

/// Most descriptors that one message carries.
pub const MAX_FDS: usize = 4;

/// Sends a message with descriptors over a Unix socket, without waiting.
pub fn send_with_fds(sock: c_int, data: &[u8], fds: &[c_int]) -> Res {
    let mut control = [0u64; 8];
    let mut iov = libc::iovec { iov_base: data.as_ptr() as *mut c_void, iov_len: data.len() };
    let mut msg = header(&mut iov, &mut []);
    if !fds.is_empty() {
        let bytes = size_of_val(fds);
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the macros only compute; the control buffer is aligned and large enough for
        // MAX_FDS descriptors (checked by the slice index below).
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(bytes as u32) as usize;
            let c = libc::CMSG_FIRSTHDR(&msg);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(bytes as u32) as usize;
            let fds = &fds[..fds.len().min(MAX_FDS)];
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(c).cast(), fds.len());
        }
    }
    // SAFETY: header, data and control buffer live until the call returns.
    unsafe { net::sendmsg(sock, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
}

/// What a look at a message shows.
pub struct Peeked {
    /// Bytes.
    pub bytes: usize,
    /// Descriptors that are open now.
    pub fds: usize,
    /// There are more of them: beyond [`MAX_FDS`], or than the table has room for.
    pub cut: bool,
}

/// Looks at a message and has its descriptors (close-on-exec) opened, without waiting; it stays where it is.
pub fn peek_with_fds(sock: c_int, data: &mut [u8], fds: &mut [c_int; MAX_FDS]) -> Res<Peeked> {
    let mut control = [0u64; 8];
    let mut iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    let mut msg = header(&mut iov, &mut control);
    // SAFETY: only computes.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE((MAX_FDS * size_of::<c_int>()) as u32) } as usize;
    // SAFETY: header, data and control buffer live until the call returns.
    let bytes = unsafe { net::recvmsg(sock, &mut msg, libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) }?;
    let mut got = 0;
    let keep = |one| {
        if got < MAX_FDS {
            fds[got] = one;
            got += 1;
        } else {
            fd::close(one);
        }
    };
    // SAFETY: the kernel wrote the control buffer.
    unsafe { each(&msg, keep) };
    Ok(Peeked { bytes, fds: got, cut: msg.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Calls `f` with each descriptor that a message names, as far as the kernel would read it.
///
/// # Safety
/// Its control buffer must be there.
pub unsafe fn each(msg: &libc::msghdr, mut f: impl FnMut(c_int)) {
    // SAFETY: a walk as that of libc's macros; what a header says of its length is checked as the kernel does (CMSG_OK).
    unsafe {
        let end = msg.msg_control as usize + msg.msg_controllen;
        let mut c = libc::CMSG_FIRSTHDR(msg);
        while !c.is_null() && ((*c).cmsg_len as usize) >= size_of::<libc::cmsghdr>() && (*c).cmsg_len as usize <= end - c as usize {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*c).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let from = libc::CMSG_DATA(c).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    f(from.add(i).read_unaligned());
                }
            }
            c = libc::CMSG_NXTHDR(msg, c);
        }
    }
}

/// Receives a message and its descriptors (close-on-exec) from a Unix socket, without waiting. EMFILE:
/// there is no room for its descriptors now, and it stays where it is.
pub fn recv_with_fds(sock: c_int, data: &mut [u8], fds: &mut [c_int; MAX_FDS]) -> Res<(usize, usize)> {
    let peeked = peek_with_fds(sock, data, fds)?;
    if peeked.cut && peeked.fds < MAX_FDS {
        fds[..peeked.fds].iter().for_each(|one| fd::close(*one));
        return Err(Errno(libc::EMFILE));
    }
    if peeked.bytes > 0 {
        // Its descriptors are here; this takes the message itself.
        let _ = net::recv_slice(sock, &mut [0u8; 1], libc::MSG_DONTWAIT);
    }
    Ok((peeked.bytes, peeked.fds))
}

/// Bytes of the next message, and whether descriptors come with it; none is opened.
pub fn peek_without_fds(sock: c_int, data: &mut [u8]) -> Res<(usize, bool)> {
    let mut iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    let mut msg = header(&mut iov, &mut []);
    // SAFETY: header and data live until the call returns; there is no control buffer.
    let bytes = unsafe { net::recvmsg(sock, &mut msg, libc::MSG_PEEK | libc::MSG_DONTWAIT) }?;
    Ok((bytes, msg.msg_flags & libc::MSG_CTRUNC != 0))
}

/// Takes a message with all that comes with it, which stays open; false if there is none.
pub fn take_with_all_fds(sock: c_int) -> bool {
    /// The kernel lets through no more (SCM_MAX_FD).
    const ALL: usize = 253;
    let mut control = [0u64; ALL.div_ceil(2) + 4];
    let mut data = [0u8; 1];
    let mut iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    let mut msg = header(&mut iov, &mut control);
    // SAFETY: header, data and control buffer live until the call returns.
    let taken = unsafe { net::recvmsg(sock, &mut msg, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    matches!(taken, Ok(n) if n > 0 || msg.msg_controllen > 0)
}

/// A message of these; they must live as long as it is used.
fn header(iov: &mut libc::iovec, control: &mut [u64]) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    msg.msg_iov = iov;
    msg.msg_iovlen = 1;
    if !control.is_empty() {
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = size_of_val(control);
    }
    msg
}
