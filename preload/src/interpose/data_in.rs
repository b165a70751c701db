//! read, readv, recv, recvfrom, recvmsg, recvmmsg and their fortified entries; pread and its
//! relatives pass through (ESPIPE).

use super::{direct, entries, hooks, one};
use crate::engine::rx::FROM_READ;
use crate::{real, table};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

hooks! {
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::read(fd, buf, n) },
            // SAFETY: as above.
            Some(s) => direct(|| unsafe { table::io::recv(fd, s, &one(buf, n), FROM_READ, || real::read(fd, buf, n)) }),
        }
    }

    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            Some(s) if n <= room => direct(|| unsafe {
                table::io::recv(fd, s, &one(buf, n), FROM_READ, || real::read(fd, buf, n))
            }),
            // SAFETY: the program's arguments.
            _ => unsafe { real::__read_chk(fd, buf, n, room) },
        }
    }

    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            Some(s) if (0..=1024).contains(&n) => direct(|| unsafe {
                table::io::recv(fd, s, entries(iov, n as usize), FROM_READ, || real::readv(fd, iov, n))
            }),
            // SAFETY: the program's arguments.
            _ => unsafe { real::readv(fd, iov, n) },
        }
    }

    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::recv(fd, buf, n, flags) },
            // SAFETY: as above.
            Some(s) => direct(|| unsafe {
                table::io::recv(fd, s, &one(buf, n), flags, || real::recv(fd, buf, n, flags))
            }),
        }
    }

    fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            Some(s) if n <= room => direct(|| unsafe {
                table::io::recv(fd, s, &one(buf, n), flags, || real::recv(fd, buf, n, flags))
            }),
            // SAFETY: the program's arguments.
            _ => unsafe { real::__recv_chk(fd, buf, n, room, flags) },
        }
    }

    fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            None => unsafe { real::recvfrom(fd, buf, n, flags, addr, len) },
            Some(s) => direct(|| {
                // SAFETY: the program's arguments.
                let r = unsafe {
                    table::io::recv(fd, s, &one(buf, n), flags, || real::recvfrom(fd, buf, n, flags, addr, len))
                };
                // A stream socket gives no address.
                if r >= 0 && !addr.is_null() && !len.is_null() {
                    // SAFETY: the program's pointer.
                    unsafe { *len = 0 };
                }
                r
            }),
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
        match table::sock(fd) {
            // SAFETY: the program's arguments.
            Some(s) if !msg.is_null() => direct(|| unsafe {
                let m = &mut *msg;
                // The kernel says in msg_flags what it did; in memory there is nothing to say.
                let asked = (m.msg_namelen, m.msg_controllen);
                let mut kernel = false;
                let answered = std::cell::Cell::new(false);
                let iov = entries(m.msg_iov, m.msg_iovlen);
                let r = table::io::recv(fd, s, iov, flags, || {
                    answered.set(true);
                    real::recvmsg(fd, msg, flags)
                });
                kernel |= answered.get();
                if !kernel && r >= 0 {
                    let m = &mut *msg;
                    let _ = asked;
                    m.msg_namelen = 0;
                    m.msg_controllen = 0;
                    m.msg_flags = if flags & libc::MSG_CMSG_CLOEXEC != 0 { libc::MSG_CMSG_CLOEXEC } else { 0 };
                }
                r
            }),
            // SAFETY: the program's arguments.
            _ => unsafe { real::recvmsg(fd, msg, flags) },
        }
    }

    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if table::sock(fd).is_none() {
            // SAFETY: the program's arguments.
            return unsafe { real::recvmmsg(fd, msgs, n, flags, timeout) };
        }
        // As the kernel: recvmsg for each; the timeout is looked at between them only.
        const WAITFORONE: c_int = 0x10000;
        let mut flags = flags;
        // SAFETY: the program's pointer.
        let limit = (!timeout.is_null()).then(|| unsafe { *timeout });
        let start = crate::sys::clock::now_ns();
        let mut done = 0;
        for i in 0..n as usize {
            // SAFETY: the program gave `n` entries.
            let r = unsafe {
                let m = &mut *msgs.add(i);
                let r = recvmsg(fd, &mut m.msg_hdr, flags & !WAITFORONE);
                if r >= 0 {
                    m.msg_len = r as c_uint;
                }
                r
            };
            if r < 0 {
                return if done > 0 { done } else { -1 };
            }
            done += 1;
            if flags & WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            if let Some(t) = limit {
                let ns = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
                if crate::sys::clock::now_ns() - start >= ns {
                    break;
                }
            }
            if r == 0 {
                break;
            }
        }
        done
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
