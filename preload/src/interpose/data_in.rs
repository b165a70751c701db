//! read, readv, recv, recvfrom, recvmsg, recvmmsg and their fortified entries; pread and its
//! relatives pass through (ESPIPE).

use super::{cancel, direct, hooks, one, rights, vectors};
use crate::engine::bufs::{Control, MOST};
use crate::engine::fast;
use crate::engine::rx::{FROM_READ, OWN_FLAGS};
use crate::family::sock::{Sock, flag};
use crate::sys::probe::is_there;
use crate::sys::{Errno, set_errno};
use crate::{real, table};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

hooks! {
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::read(fd, buf, n) },
            // SAFETY: as above.
            Some(s) if s.rx_in_memory() => unsafe { read_from(s, fd, buf, n) },
            // SAFETY: as above.
            Some(s) => unsafe { read_slowly(s, fd, buf, n, 0) },
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
            Some((s, all)) => direct(|| unsafe {
                cancel::point();
                table::receiving::recv(fd, s, all, FROM_READ, None, || real::readv(fd, iov, n))
            }),
            // SAFETY: the program's arguments.
            None => unsafe { real::readv(fd, iov, n) },
        }
    }

    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::recv(fd, buf, n, flags) },
            // SAFETY: as above.
            Some(s) if s.rx_in_memory() => unsafe { recv_from(s, fd, buf, n, flags) },
            // SAFETY: as above.
            Some(s) => unsafe { recv_slowly(s, fd, buf, n, flags, 0) },
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
        match table::sock(fd).and_then(|s| Some((s, unsafe { vectors::message_to_fill(msg) }?))) {
            Some((s, all)) => direct(|| {
                cancel::point();
                let flags = flags & !OWN_FLAGS;
                let kernel = std::cell::Cell::new(false);
                // SAFETY: the program's arguments.
                unsafe {
                    let place = Control::of(&*msg);
                    if place.is_some() {
                        table::options::before_control(s, fd);
                    }
                    let control = place.filter(|_| !s.has(flag::INQ));
                    let r = table::receiving::recv(fd, s, all, flags, control.as_ref(), || {
                        kernel.set(true);
                        real::recvmsg(fd, msg, flags)
                    });
                    if !kernel.get() && r >= 0 {
                        let came = control.and_then(|c| c.came.get());
                        vectors::answer(&mut *msg, flags, table::options::inq(s, fd), came);
                    }
                    r
                }
            }),
            // SAFETY: the program's arguments; where something was received, the message is there.
            None => unsafe {
                let received = real::recvmsg(fd, msg, flags);
                if received >= 0 {
                    rights::received(fd, msg, flags);
                }
                received
            },
        }
    }

    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe {
                let received = real::recvmmsg(fd, msgs, n, flags, timeout);
                for i in 0..received.max(0) as usize {
                    rights::received(fd, &raw const (*msgs.add(i)).msg_hdr, flags);
                }
                received
            },
            // SAFETY: as above.
            Some(s) => unsafe {
                cancel::point();
                direct(|| vectors::receive(fd, s, msgs, n, flags, timeout) as isize) as c_int
            },
        }
    }

    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, off: i64, flags: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        if off == -1 && let Some(r) = unsafe { vectors::at_position(fd, iov, n, flags, true) } {
            return r;
        }
        // SAFETY: as above.
        unsafe { real::preadv2(fd, iov, n, off, flags) }
    }

    fn preadv64v2(fd: c_int, iov: *const iovec, n: c_int, off: i64, flags: c_int) -> ssize_t {
        // SAFETY: the program's arguments.
        if off == -1 && let Some(r) = unsafe { vectors::at_position(fd, iov, n, flags, true) } {
            return r;
        }
        // SAFETY: as above.
        unsafe { real::preadv64v2(fd, iov, n, off, flags) }
    }
}

// As in `data_out`: the usual call is over in these functions.

/// read on a tracked socket.
#[inline(never)]
unsafe fn read_from(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    cancel::point();
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
    cancel::point();
    // SAFETY: the program's arguments.
    direct(|| unsafe { table::receiving::recv_slowly(fd, s, &one(buf, n), FROM_READ | more, None, || real::read(fd, buf, n)) })
}

/// recv on a tracked socket.
#[inline(never)]
unsafe fn recv_from(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    cancel::point();
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
    cancel::point();
    direct(|| {
        // SAFETY: the program's arguments.
        unsafe { table::receiving::recv_slowly(fd, s, &one(buf, n.min(MOST)), flags & !OWN_FLAGS | more, None, || real::recv(fd, buf, n, flags)) }
    })
}

/// recvfrom on a tracked socket.
#[inline(never)]
unsafe fn recvfrom_from(s: &'static Sock, fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    cancel::point();
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
            table::receiving::recv_slowly(fd, s, &one(buf, n.min(MOST)), flags & !OWN_FLAGS | more, None, || {
                real::recvfrom(fd, buf, n, flags, addr, len)
            })
        };
        if r < 0 || addr.is_null() {
            return r;
        }
        // A stream socket gives no address, and the bytes are gone whatever is wrong with the place for it.
        // SAFETY: the program's pointer, which is there.
        let wrong = match is_there(len, 1).then(|| unsafe { std::mem::replace(&mut *len, 0) }) {
            None => libc::EFAULT,
            Some(n) if n > i32::MAX as u32 => libc::EINVAL,
            Some(_) => return r,
        };
        set_errno(Errno(wrong));
        -1
    })
}
