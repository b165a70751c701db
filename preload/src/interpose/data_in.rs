//! read, readv, recv, recvfrom, recvmsg, recvmmsg and their fortified entries; pread and its
//! relatives pass through (ESPIPE).

use super::{direct, hooks, one, vectors};
use crate::engine::fast;
use crate::engine::rx::FROM_READ;
use crate::family::sock::Sock;
use crate::{real, table};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

hooks! {
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::read(fd, buf, n) },
            // SAFETY: as above.
            Some(s) => unsafe { read_from(s, fd, buf, n) },
        }
    }

    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            Some(s) if n <= room => unsafe { read_from(s, fd, buf, n) },
            // SAFETY: the program's arguments.
            _ => unsafe { real::__read_chk(fd, buf, n, room) },
        }
    }

    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        match table::sock(fd).and_then(|s| Some((s, unsafe { vectors::buffers(iov, n as usize) }?))) {
            // SAFETY: as above.
            Some((s, all)) => direct(|| unsafe { table::io::recv(fd, s, all, FROM_READ, || real::readv(fd, iov, n)) }),
            // SAFETY: the program's arguments.
            None => unsafe { real::readv(fd, iov, n) },
        }
    }

    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::recv(fd, buf, n, flags) },
            // SAFETY: as above.
            Some(s) => unsafe { recv_from(s, fd, buf, n, flags) },
        }
    }

    fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            Some(s) if n <= room => unsafe { recv_from(s, fd, buf, n, flags) },
            // SAFETY: the program's arguments.
            _ => unsafe { real::__recv_chk(fd, buf, n, room, flags) },
        }
    }

    fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::recvfrom(fd, buf, n, flags, addr, len) },
            // SAFETY: as above.
            Some(s) => unsafe { recvfrom_from(s, fd, buf, n, flags, addr, len) },
        }
    }

    fn __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
        if table::sock(fd).is_some() && n <= room {
            // SAFETY: the program's arguments.
            return unsafe { recvfrom(fd, buf, n, flags, addr, len) };
        }
        // SAFETY: the program's arguments.
        unsafe { real::__recvfrom_chk(fd, buf, n, room, flags, addr, len) }
    }

    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        match table::sock(fd).and_then(|s| Some((s, unsafe { vectors::message(msg) }?))) {
            Some((s, all)) => direct(|| {
                let kernel = std::cell::Cell::new(false);
                // SAFETY: the program's arguments.
                unsafe {
                    let r = table::io::recv(fd, s, all, flags, || {
                        kernel.set(true);
                        real::recvmsg(fd, msg, flags)
                    });
                    if !kernel.get() && r >= 0 {
                        vectors::answer(&mut *msg, flags, table::options::inq(s, fd));
                    }
                    r
                }
            }),
            // SAFETY: the program's arguments.
            None => unsafe { real::recvmsg(fd, msg, flags) },
        }
    }

    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::recvmmsg(fd, msgs, n, flags, timeout) },
            // SAFETY: as above.
            Some(s) => unsafe { vectors::receive(fd, s, msgs, n, flags, timeout) },
        }
    }

    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, off: i64, flags: c_int) -> ssize_t {
        if off == -1 && table::sock(fd).is_some() && flags & !NOWAIT == 0 {
            return at_position(fd, iov, n, flags);
        }
        // SAFETY: the program's arguments.
        unsafe { real::preadv2(fd, iov, n, off, flags) }
    }

    fn preadv64v2(fd: c_int, iov: *const iovec, n: c_int, off: i64, flags: c_int) -> ssize_t {
        if off == -1 && table::sock(fd).is_some() && flags & !NOWAIT == 0 {
            return at_position(fd, iov, n, flags);
        }
        // SAFETY: the program's arguments.
        unsafe { real::preadv64v2(fd, iov, n, off, flags) }
    }
}

// As in `data_out`: the usual call is over in these functions.

/// read on a tracked socket.
#[inline(never)]
unsafe fn read_from(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: the program's arguments.
    match unsafe { fast::recv(s, buf.cast(), n, FROM_READ) } {
        Ok(n) => n as ssize_t,
        // SAFETY: as above.
        Err(more) => unsafe { read_slowly(s, fd, buf, n, more as c_int) },
    }
}

#[cold]
#[inline(never)]
unsafe fn read_slowly(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t, more: c_int) -> ssize_t {
    // SAFETY: the program's arguments.
    direct(|| unsafe { table::io::recv_slowly(fd, s, &one(buf, n), FROM_READ | more, || real::read(fd, buf, n)) })
}

/// recv on a tracked socket.
#[inline(never)]
unsafe fn recv_from(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's arguments.
    match unsafe { fast::recv(s, buf.cast(), n, flags) } {
        Ok(n) => n as ssize_t,
        // SAFETY: as above.
        Err(more) => unsafe { recv_slowly(s, fd, buf, n, flags, more as c_int) },
    }
}

#[cold]
#[inline(never)]
unsafe fn recv_slowly(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, more: c_int) -> ssize_t {
    direct(|| {
        // SAFETY: the program's arguments.
        unsafe { table::io::recv_slowly(fd, s, &one(buf, n), flags | more, || real::recv(fd, buf, n, flags)) }
    })
}

/// recvfrom on a tracked socket.
#[inline(never)]
unsafe fn recvfrom_from(
    s: &'static Sock,
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    let mut more = 0;
    if addr.is_null() {
        // SAFETY: the program's arguments.
        match unsafe { fast::recv(s, buf.cast(), n, flags) } {
            Ok(n) => return n as ssize_t,
            Err(m) => more = m as c_int,
        }
    }
    // SAFETY: as above.
    unsafe { recvfrom_slowly(s, fd, buf, n, flags, more, addr, len) }
}

#[cold]
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the arguments of recvfrom")]
unsafe fn recvfrom_slowly(
    s: &'static Sock,
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    more: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    direct(|| {
        // SAFETY: the program's arguments.
        let r = unsafe {
            table::io::recv_slowly(fd, s, &one(buf, n), flags | more, || real::recvfrom(fd, buf, n, flags, addr, len))
        };
        // A stream socket gives no address.
        if r >= 0 && !addr.is_null() && !len.is_null() {
            // SAFETY: the program's pointer.
            unsafe { *len = 0 };
        }
        r
    })
}

/// RWF_NOWAIT.
const NOWAIT: c_int = 8;

/// preadv2 with offset -1 is readv.
fn at_position(fd: c_int, iov: *const iovec, n: c_int, flags: c_int) -> ssize_t {
    // SAFETY: an all-zero msghdr is valid; the entries are the program's.
    unsafe {
        if flags & NOWAIT == 0 {
            return readv(fd, iov, n);
        }
        let mut msg: msghdr = std::mem::zeroed();
        msg.msg_iov = iov.cast_mut();
        msg.msg_iovlen = n.max(0) as usize;
        recvmsg(fd, &mut msg, libc::MSG_DONTWAIT)
    }
}
