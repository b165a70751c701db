//! write, writev, send, sendto, sendmsg, sendmmsg; pwrite and its relatives pass through (ESPIPE).

use super::{cancel, direct, hooks, one, rights, vectors};
use crate::engine::bufs::MOST;
use crate::engine::{fast, switch};
use crate::family::sock::{Sock, flag};
use crate::sys::probe::is_there;
use crate::sys::{Errno, set_errno};
use crate::{real, table};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use smcr_proto::reason::Reason;

hooks! {
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::write(fd, buf, n) },
            // SAFETY: as above.
            Some(s) if s.tx_in_memory() => unsafe { write_to(s, fd, buf, n) },
            // SAFETY: as above.
            Some(s) => unsafe { write_slowly(s, fd, buf, n) },
        }
    }

    fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        match table::sock(fd).and_then(|s| Some((s, unsafe { vectors::buffers(iov, n as usize) }?))) {
            // Nothing to write is no matter of the socket's.
            Some((_, all)) if all.iter().all(|v| v.iov_len == 0) => 0,
            // SAFETY: as above.
            Some((s, all)) => direct(|| unsafe {
                cancel::point();
                table::sending::send(fd, s, all, 0, || real::writev(fd, iov, n))
            }),
            // SAFETY: the program's arguments.
            None => unsafe { real::writev(fd, iov, n) },
        }
    }

    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::send(fd, buf, n, flags) },
            // SAFETY: as above.
            Some(s) if s.tx_in_memory() => unsafe { send_to(s, fd, buf, n, flags) },
            // SAFETY: as above.
            Some(s) => unsafe { send_slowly(s, fd, buf, n, flags) },
        }
    }

    fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::sendto(fd, buf, n, flags, addr, len) },
            // SAFETY: as above.
            Some(s) => unsafe { sendto_to(s, fd, buf, n, flags, addr, len) },
        }
    }

    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        let Some(all) = (unsafe { vectors::message(msg) }) else {
            // SAFETY: as above; the kernel refuses it.
            return unsafe { real::sendmsg(fd, msg, flags) };
        };
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe {
                let passes = rights::before(fd, msg);
                let sent = real::sendmsg(fd, msg, flags);
                if passes {
                    rights::after(msg, sent >= 0);
                }
                sent
            },
            // SAFETY: as above.
            Some(s) => direct(|| unsafe {
                cancel::point();
                let m = &*msg;
                if m.msg_controllen > 0 && (s.tx_in_memory() || !s.has(flag::PINNED)) {
                    if let Some(refused) = table::sending::refused_control(s, fd, m) {
                        return refused;
                    }
                    // Control messages are for the kernel's TCP, which also says what is wrong with them; and this call is not to leave it.
                    switch::pin(s, fd, Reason::TcpSpecial);
                }
                table::sending::send(fd, s, all, flags, || real::sendmsg(fd, msg, flags))
            }),
        }
    }

    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
        if table::sock(fd).is_some() {
            cancel::point();
            // SAFETY: the program's arguments.
            return direct(|| unsafe { vectors::send(fd, msgs, n, flags) } as isize) as c_int;
        }
        // SAFETY: the program's arguments.
        unsafe {
            let message = |i: usize| &raw const (*msgs.add(i)).msg_hdr;
            let passing = (0..n as usize).take_while(|i| is_there(message(*i), 1)).filter(|i| rights::before(fd, message(*i)));
            let last = passing.last();
            let sent = real::sendmmsg(fd, msgs, n, flags);
            if let Some(last) = last {
                (0..=last).for_each(|i| rights::after(message(i), (i as isize) < sent as isize));
            }
            sent
        }
    }

    fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, off: i64, flags: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        if off == -1 && let Some(r) = unsafe { vectors::at_position(fd, iov, n, flags, false) } {
            return r;
        }
        // SAFETY: as above.
        unsafe { real::pwritev2(fd, iov, n, off, flags) }
    }

    fn pwritev64v2(fd: c_int, iov: *const iovec, n: c_int, off: i64, flags: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        if off == -1 && let Some(r) = unsafe { vectors::at_position(fd, iov, n, flags, false) } {
            return r;
        }
        // SAFETY: as above.
        unsafe { real::pwritev64v2(fd, iov, n, off, flags) }
    }
}

// The usual call is over in these functions, which are jumped to and hold little; what is unusual goes on
// in a function of its own, and so does what begins on TCP.

/// write on a tracked socket.
#[inline(never)]
unsafe fn write_to(s: &'static Sock, fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments.
    match unsafe { fast::send(s, fd, buf.cast(), n, 0) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { write_slowly(s, fd, buf, n) },
    }
}

#[cold]
#[inline(never)]
unsafe fn write_slowly(s: &'static Sock, fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments.
    direct(|| unsafe { table::sending::send_slowly(fd, s, &one(buf, n), 0, || real::write(fd, buf, n)) })
}

/// send on a tracked socket.
#[inline(never)]
unsafe fn send_to(s: &'static Sock, fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments.
    match unsafe { fast::send(s, fd, buf.cast(), n, flags) } {
        Some(n) => n as ssize_t,
        // SAFETY: as above.
        None => unsafe { send_slowly(s, fd, buf, n, flags) },
    }
}

#[cold]
#[inline(never)]
unsafe fn send_slowly(s: &'static Sock, fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    cancel::point();
    direct(|| {
        // SAFETY: the program's arguments.
        unsafe { table::sending::send_slowly(fd, s, &one(buf, n.min(MOST)), flags, || real::send(fd, buf, n, flags)) }
    })
}

/// sendto on a tracked socket.
#[inline(never)]
unsafe fn sendto_to(s: &'static Sock, fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t {
    cancel::point();
    if addr.is_null()
        // SAFETY: the program's arguments.
        && let Some(n) = unsafe { fast::send(s, fd, buf.cast(), n, flags) }
    {
        return n as ssize_t;
    }
    // SAFETY: as above.
    unsafe { sendto_slowly(s, fd, buf, n, flags, addr, len) }
}

#[cold]
#[inline(never)]
unsafe fn sendto_slowly(s: &'static Sock, fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t {
    // TCP has no use for the address, but the kernel reads it first.
    if let Some(e) = wrong_address(addr, len) {
        set_errno(Errno(e));
        return -1;
    }
    // SAFETY: the program's arguments.
    direct(|| unsafe {
        if flags & libc::MSG_FASTOPEN != 0 {
            table::life::on_connect(s);
            switch::pin(s, fd, Reason::FastOpen);
        }
        table::sending::send_slowly(fd, s, &one(buf, n.min(MOST)), flags, || real::sendto(fd, buf, n, flags, addr, len))
    })
}

/// What the kernel says of an address that it can't take.
fn wrong_address(addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    if addr.is_null() || len == 0 {
        return None;
    }
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Some(libc::EINVAL);
    }
    (!is_there(addr.cast::<u8>(), len as usize)).then_some(libc::EFAULT)
}
