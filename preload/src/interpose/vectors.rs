//! Calls with many buffers or many messages: what the kernel checks before it looks at the socket, and
//! recvmmsg and sendmmsg, which are loops over one message as they are in the kernel.
//!
//! Used by the hooks of [`super::data_in`] and [`super::data_out`].

use super::sockets;
use super::{data_in, data_out};
use crate::engine::bufs::MOST;
use crate::engine::{end, switch};
use crate::family::sock::Sock;
use crate::sys::net::TCP_INQ;
use crate::sys::probe::{is_null_or_there, is_there};
use crate::sys::{Errno, clock, errno, set_errno};
use crate::table;
use crate::table::life;
use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, timespec};
use smcr_proto::reason::Reason;

/// Most buffers of a call, and most messages of sendmmsg.
const UIO_MAXIOV: usize = 1024;
const WAITFORONE: c_int = 0x10000;
const LONGEST_ADDRESS: usize = 128;
/// A control message of one int, and the room that it takes.
const INQ_LEN: usize = size_of::<libc::cmsghdr>() + 4;
const INQ_SPACE: usize = size_of::<libc::cmsghdr>() + 8;

/// The program's iovec array as a slice; None: the kernel refuses it, and says why.
///
/// # Safety
/// `iov` must point to `n` entries, or to nothing at all.
#[inline]
pub unsafe fn buffers<'a>(iov: *const iovec, n: usize) -> Option<&'a [iovec]> {
    if n == 0 {
        return Some(&[]);
    }
    if n > UIO_MAXIOV || !is_there(iov, n) {
        return None;
    }
    // SAFETY: by the contract, and it is there.
    let all = unsafe { std::slice::from_raw_parts(iov, n) };
    all.iter().all(|v| v.iov_len <= isize::MAX as usize).then_some(all)
}

/// The buffers of a message to be sent; None: the kernel refuses the message, and says why.
///
/// # Safety
/// As for sendmsg(2): `msg` and what it names are the program's, or nothing at all.
#[inline]
pub unsafe fn message<'a>(msg: *const msghdr) -> Option<&'a [iovec]> {
    // SAFETY: by the contract.
    let all = unsafe { message_to_fill(msg) }?;
    // SAFETY: it is there.
    let m = unsafe { &*msg };
    let n = (m.msg_namelen as usize).min(LONGEST_ADDRESS);
    let is_named = !m.msg_name.is_null() && n != 0;
    (!is_named || is_there(m.msg_name.cast::<u8>(), n)).then_some(all)
}

/// The same of a message to be received: its name is never written over TCP, so it may lie anywhere.
///
/// # Safety
/// As for [`message`].
#[inline]
pub unsafe fn message_to_fill<'a>(msg: *const msghdr) -> Option<&'a [iovec]> {
    if !is_there(msg, 1) {
        return None;
    }
    // SAFETY: it is there.
    let m = unsafe { &*msg };
    if !m.msg_name.is_null() && m.msg_namelen > i32::MAX as u32 {
        return None;
    }
    // SAFETY: by the contract.
    unsafe { buffers(m.msg_iov, m.msg_iovlen) }
}

/// Flags of preadv2 and pwritev2 that mean nothing for a socket (HIPRI, DSYNC, SYNC, APPEND, NOAPPEND), and the one that does.
const OF_FILES: c_int = 0x1 | 0x2 | 0x4 | 0x10 | 0x20;
const NOWAIT: c_int = 0x8;

/// preadv2 or pwritev2 with offset -1, which are readv and writev. None: the real function's.
///
/// # Safety
/// As for these.
pub unsafe fn at_position(fd: c_int, iov: *const iovec, n: c_int, flags: c_int, reads: bool) -> Option<isize> {
    let s = table::sock(fd)?;
    if flags & !(OF_FILES | NOWAIT) != 0 {
        // The kernel refuses it, or knows what it means.
        if reads {
            life::hand_over(s, fd, Reason::TcpSpecial);
        } else if s.tx_in_memory() {
            switch::pin(s, fd, Reason::TcpSpecial);
        }
        return None;
    }
    // SAFETY: an all-zero msghdr is valid; the entries are the program's.
    unsafe {
        if flags & NOWAIT == 0 {
            return Some(if reads { data_in::readv(fd, iov, n) } else { data_out::writev(fd, iov, n) });
        }
        let all = buffers(iov, n as usize)?;
        if all.iter().all(|v| v.iov_len == 0) {
            return Some(0);
        }
        let mut msg: msghdr = std::mem::zeroed();
        msg.msg_iov = iov.cast_mut();
        msg.msg_iovlen = all.len() as _;
        let now = libc::MSG_DONTWAIT;
        Some(if reads { data_in::recvmsg(fd, &mut msg, now) } else { data_out::sendmsg(fd, &raw const msg, now) })
    }
}

/// What the kernel says in a message that it did not receive itself: nothing, but what TCP_INQ asks for, and what `came` from
/// it with the bytes.
///
/// # Safety
/// As for recvmsg(2): what the message names is the program's, or nothing at all.
pub unsafe fn answer(m: &mut msghdr, flags: c_int, inq: Option<i32>, came: Option<(usize, i32)>) {
    let room = m.msg_controllen;
    if !m.msg_name.is_null() {
        m.msg_namelen = 0;
    }
    m.msg_controllen = 0;
    m.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    if let Some((len, more)) = came {
        m.msg_controllen = len as _;
        m.msg_flags |= more;
    }
    let Some(inq) = inq else { return };
    // As put_cmsg in the kernel: cut where there is no room for all.
    let head = libc::cmsghdr { cmsg_len: room.min(INQ_LEN), cmsg_level: libc::IPPROTO_TCP, cmsg_type: TCP_INQ };
    if m.msg_control.is_null() || room < size_of_val(&head) {
        m.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    if room < INQ_LEN {
        m.msg_flags |= libc::MSG_CTRUNC;
    }
    let to = m.msg_control.cast::<u8>();
    if !is_there(to, head.cmsg_len) {
        return;
    }
    let data = inq.to_ne_bytes();
    // SAFETY: the program's buffer, at least a header and `cmsg_len` bytes long, and there; it may lie at any address.
    unsafe {
        to.cast::<libc::cmsghdr>().write_unaligned(head);
        to.add(size_of_val(&head)).copy_from_nonoverlapping(data.as_ptr(), head.cmsg_len - size_of_val(&head));
    }
    m.msg_controllen = room.min(INQ_SPACE);
}

/// recvmmsg(2) on a tracked socket.
///
/// # Safety
/// As for recvmmsg(2).
pub unsafe fn receive(fd: c_int, s: &Sock, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
    let fail = |e| {
        set_errno(Errno(e));
        -1 as c_int
    };
    if !is_null_or_there(timeout) {
        return fail(libc::EFAULT);
    }
    // SAFETY: the program's pointer, null or there.
    let limit = unsafe { timeout.as_ref() }.copied();
    if limit.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec)) {
        return fail(libc::EINVAL);
    }
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(e) = pending_error(fd)
    {
        return fail(e);
    }
    let nanos = |t: timespec| (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64);
    let end = limit.map(|t| clock::now_ns().saturating_add(nanos(t)));
    let (mut flags, mut done) = (flags, 0);
    while done < n {
        // SAFETY: the program gave `n` entries; what is no memory is refused as the kernel does.
        let entry = unsafe { msgs.add(done as usize) };
        let r = if is_there(entry, 1) {
            // SAFETY: as above.
            unsafe { data_in::recvmsg(fd, &raw mut (*entry).msg_hdr, flags & !WAITFORONE) }
        } else {
            fail(libc::EFAULT) as isize
        };
        if r < 0 {
            let e = errno();
            if done == 0 {
                return -1;
            }
            if e.0 != libc::EAGAIN {
                end::leave(s, e);
            }
            break;
        }
        // SAFETY: it is there.
        unsafe { (*entry).msg_len = r as c_uint };
        done += 1;
        if flags & WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if let Some(end) = end {
            let left = end.saturating_sub(clock::now_ns());
            // SAFETY: the program's pointer, which is there; the kernel writes it too.
            unsafe {
                (*timeout).tv_sec = (left / 1_000_000_000) as i64;
                (*timeout).tv_nsec = (left % 1_000_000_000) as i64;
            }
            if left == 0 {
                break;
            }
        }
        // SAFETY: it is there.
        if unsafe { (*entry).msg_hdr.msg_flags } & libc::MSG_OOB != 0 {
            break;
        }
    }
    done as c_int
}

/// The error that the socket has for the program, taken.
fn pending_error(fd: c_int) -> Option<c_int> {
    let (mut e, mut len) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: both are variables of ours.
    let r = unsafe { sockets::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut e).cast(), &raw mut len) };
    (r == 0 && e != 0).then_some(e)
}

/// sendmmsg(2) on a tracked socket.
///
/// # Safety
/// As for sendmmsg(2).
pub unsafe fn send(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    let mut done = 0;
    for i in 0..(n as usize).min(UIO_MAXIOV) {
        // SAFETY: the program gave `n` entries; what is no memory is refused as the kernel does.
        let entry = unsafe { msgs.add(i) };
        let r = if is_there(entry, 1) {
            // SAFETY: as above.
            unsafe { data_out::sendmsg(fd, &raw const (*entry).msg_hdr, flags) }
        } else {
            set_errno(Errno(libc::EFAULT));
            -1
        };
        if r < 0 {
            return if done > 0 { done } else { -1 };
        }
        // SAFETY: it is there.
        unsafe { (*entry).msg_len = r as c_uint };
        done += 1;
        // SAFETY: it was sent, so its buffers are there.
        let all = unsafe { message(&raw const (*entry).msg_hdr) };
        if all.is_some_and(|b| b.iter().map(|v| v.iov_len).sum::<usize>().min(MOST) > r as usize) {
            break; // a part only: what follows would stand in the wrong place
        }
    }
    done
}
