//! socket, listen, accept, accept4, connect, shutdown, getpeername, getsockopt, setsockopt. bind and getsockname
//! need no hook: the descriptor is the kernel's own socket.

use super::{guarded, hooks};
use crate::engine::shut::{self, Left};
use crate::engine::{self, switch};
use crate::family::sock::flag;
use crate::rendezvous::smc::{backlog, declined};
use crate::sys::net::Addr;
use crate::sys::probe::is_there;
use crate::sys::{Errno, few, keeping_errno, set_errno};
use crate::table::{disconnect, full, life, options};
use crate::{config, real, table};
use libc::{c_int, c_void, sockaddr, socklen_t};
use smcr_proto::reason::Reason;

hooks! {
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: the program's arguments.
        let fd = unsafe { real::socket(family, kind, protocol) };
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if fd >= 0 {
            let tcp = (family == libc::AF_INET || family == libc::AF_INET6)
                && kind & !flags == libc::SOCK_STREAM
                && (protocol == 0 || protocol == libc::IPPROTO_TCP);
            if tcp && config::enabled() {
                guarded(|| {
                    life::on_socket(fd, kind & libc::SOCK_NONBLOCK != 0);
                });
            } else {
                life::forget_stale(fd);
            }
        }
        fd
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let s = table::sock(fd);
        if let Some(s) = s {
            guarded(|| life::before_listen(s, fd));
        }
        // SAFETY: the program's arguments.
        let r = unsafe { real::listen(fd, backlog) };
        if r == 0 && let Some(s) = s {
            guarded(|| life::on_listen(s, fd));
        }
        r
    }

    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { accept_with(fd, addr, len, 0, || real::accept(fd, addr, len)) }
    }

    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { accept_with(fd, addr, len, flags, || real::accept4(fd, addr, len, flags)) }
    }

    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        let s = table::sock(fd);
        let mut nobody = false;
        if let Some(s) = s {
            let there = is_there(addr.cast::<u8>(), (len as usize).min(LONGEST));
            // SAFETY: the program's address, which is there.
            nobody = len >= 2 && there && unsafe { (*addr).sa_family } == libc::AF_UNSPEC as u16;
            if nobody {
                guarded(|| disconnect::before(s, fd));
            } else if there {
                // SAFETY: the program's arguments.
                guarded(|| life::before_connect(s, fd, unsafe { peer(addr, len) }));
            }
        }
        // SAFETY: the program's arguments.
        let r = unsafe { real::connect(fd, addr, len) };
        if let Some(s) = s
            && (r == 0 || life::is_under_way(crate::sys::errno()))
        {
            if nobody {
                disconnect::after(s);
            } else {
                life::on_connect(s);
                if r == 0 {
                    guarded(|| life::first_use(s, fd));
                }
            }
        }
        r
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if let Some(s) = table::sock(fd) {
            guarded(|| life::first_use(s, fd));
        }
        if let Some(s) = table::sock(fd) {
            shut::before_memory(s, fd, how);
        }
        let mut left = Left::Kernel;
        if let Some(s) = table::sock(fd) && s.region().is_some() {
            let mut over = false;
            if shut::ends(how) != 0 {
                guarded(|| left = shut::left(s, fd));
            }
            if left == Left::Nothing {
                set_errno(Errno(libc::ENOTCONN));
                return -1;
            }
            guarded(|| {
                over = s.is_linked() && engine::linked::is_over(s, fd);
                shut::before_shutdown(s, fd, how);
                if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
                    full::after_shutdown(s);
                }
            });
            if s.is_linked() && !over {
                return if (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
                    engine::linked::after_own_shutdown(s);
                    0
                } else {
                    set_errno(Errno(libc::EINVAL));
                    -1
                };
            }
        }
        // SAFETY: the program's arguments.
        let shut = || unsafe { real::shutdown(fd, how) };
        if left == Left::Own {
            return keeping_errno(|| {
                shut(); // it fails
                0
            }) as c_int;
        }
        shut()
    }

    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let mut left = Left::Kernel;
        if let Some(s) = table::sock(fd) {
            guarded(|| left = shut::left(s, fd));
        }
        if left == Left::Nothing {
            set_errno(Errno(libc::ENOTCONN));
            return -1;
        }
        // SAFETY: the program's arguments.
        unsafe { real::getpeername(fd, addr, len) }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        if let Some(s) = table::sock(fd) {
            // SAFETY: the program gave `len` bytes.
            let int = ((4..=i32::MAX as u32).contains(&len) && is_there(value.cast::<i32>(), 1)).then(|| unsafe { value.cast::<i32>().read_unaligned() });
            let mut set = options::Set::Kernel;
            // SAFETY: as above.
            let ulp = unsafe { options::is_tls(level, name, value.cast(), len as usize) };
            if !ulp || s.is_linked() {
                guarded(|| set = options::before_set(s, fd, level, name, int));
            }
            match set {
                options::Set::Kernel => {}
                options::Set::Done => return 0,
                options::Set::Refused(e) => {
                    crate::sys::set_errno(e);
                    return -1;
                }
            }
            // SAFETY: the program's arguments.
            let r = unsafe { real::setsockopt(fd, level, name, value, len) };
            if r == 0 {
                // SAFETY: as above.
                let is_past = unsafe { options::is_past(level, name, value.cast(), len as usize) };
                options::after_set(s, fd, level, name, is_past);
                if ulp {
                    guarded(|| options::after_tls(s, fd));
                }
            }
            return r;
        }
        // SAFETY: the program's arguments.
        unsafe { real::setsockopt(fd, level, name, value, len) }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let Some(s) = table::sock(fd) else {
            // SAFETY: the program's arguments.
            return unsafe { real::getsockopt(fd, level, name, value, len) };
        };
        guarded(|| options::before_get(s, fd, level, name));
        // SAFETY: the program's pointer, which is there; a negative length is the kernel's to refuse.
        let is_sound = is_there(len, 1) && is_there(value.cast::<u8>(), 1) && unsafe { *len } <= i32::MAX as u32;
        if is_sound && let Some(v) = options::get(s, fd, level, name) {
            // SAFETY: the program gave `*len` bytes.
            unsafe {
                let n = (*len as usize).min(4);
                std::ptr::copy_nonoverlapping((&raw const v).cast::<u8>(), value.cast(), n);
                *len = n as socklen_t;
            }
            return 0;
        }
        // SAFETY: the program's arguments.
        let r = unsafe { real::getsockopt(fd, level, name, value, len) };
        if r == 0 && level == libc::IPPROTO_TCP && name == libc::TCP_INFO {
            // SAFETY: the kernel wrote `*len` bytes.
            unsafe {
                add_memory_bytes(s, value.cast(), *len as usize);
                lower_idle_times(s, value.cast(), *len as usize);
            }
        }
        r
    }
}

/// Longest address of the Internet's.
const LONGEST: usize = size_of::<libc::sockaddr_in6>();

/// The address that connect(2) was given, if it can be one of the Internet's.
unsafe fn peer(addr: *const sockaddr, len: socklen_t) -> Option<Addr> {
    const SHORTEST: usize = size_of::<libc::sockaddr_in>();
    if addr.is_null() || (len as usize) < SHORTEST {
        return None;
    }
    // SAFETY: the program gave `len` bytes.
    Addr::parse(unsafe { std::slice::from_raw_parts(addr.cast(), (len as usize).min(LONGEST)) })
}

/// accept(2) or accept4(2): `real` makes the program's call, with these arguments.
///
/// # Safety
/// The address and its length must be valid or null, as the program promised the kernel.
unsafe fn accept_with(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int, real: impl Fn() -> c_int) -> c_int {
    let real = || few::call(&real);
    let Some(listener) = table::sock(fd).filter(|l| backlog::enter(l)) else {
        let new = real();
        accepted(fd, new, flags);
        return new;
    };
    // SAFETY: the program's length, null where it wants no address.
    let room = if addr.is_null() || len.is_null() { 0 } else { unsafe { *len } };
    let new = real();
    let e = crate::sys::errno();
    let mut kept = None;
    guarded(|| kept = backlog::leave(listener, new));
    if kept.is_some() && room > 0 {
        // SAFETY: as above; another connection has the number now.
        unsafe {
            *len = room;
            crate::sys::net::peer_name(new, addr.cast(), len);
        }
    }
    accepted(fd, new, flags);
    if let (Some(clc), Some(s)) = (kept, table::sock(new)) {
        declined::was_declined(s, clc);
    }
    crate::sys::set_errno(e);
    new
}

fn accepted(listener: c_int, new: c_int, flags: c_int) {
    if new < 0 {
        return;
    }
    match table::sock(listener) {
        Some(l) if config::enabled() => guarded(|| {
            life::on_accept(new, flags & libc::SOCK_NONBLOCK != 0, Some(l));
            if l.has(flag::PINNED)
                && let Some(s) = table::sock(new)
            {
                // What pins a listener (a protocol above TCP, zero-copy) holds for its children.
                let why = Reason::from_code(l.reason.load(std::sync::atomic::Ordering::Relaxed));
                switch::pin(s, new, why.unwrap_or(Reason::TcpSpecial));
            }
        }),
        // A listener that was inherited or passed: its connections are eligible as well.
        None if config::enabled() => guarded(|| {
            if let Ok(a) = crate::sys::net::local_addr(new)
                && (i32::from(a.family) == libc::AF_INET || i32::from(a.family) == libc::AF_INET6)
                && crate::sys::net::get_opt::<i32>(new, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
            {
                life::on_accept(new, flags & libc::SOCK_NONBLOCK != 0, None);
            } else {
                life::forget_stale(new);
            }
        }),
        _ => life::forget_stale(new),
    }
}

/// tcpi_bytes_acked, tcpi_bytes_received and tcpi_bytes_sent with what went through memory.
unsafe fn add_memory_bytes(s: &crate::family::sock::Sock, info: *mut u8, len: usize) {
    const ACKED: usize = 120;
    const RECEIVED: usize = 128;
    const SENT: usize = 200;
    let (tx, rx) = options::memory_bytes(s);
    for (at, add) in [(ACKED, tx), (RECEIVED, rx), (SENT, tx)] {
        if at + 8 <= len {
            // SAFETY: inside the `len` bytes.
            unsafe {
                let p = info.add(at).cast::<u64>();
                p.write_unaligned(p.read_unaligned().wrapping_add(add));
            }
        }
    }
}

/// tcpi_last_data_sent, tcpi_last_data_recv and tcpi_last_ack_recv where the last use was through memory.
unsafe fn lower_idle_times(s: &crate::family::sock::Sock, info: *mut u8, len: usize) {
    const DATA_SENT: usize = 44;
    const DATA_RECEIVED: usize = 52;
    const ACK_RECEIVED: usize = 56;
    let [sent, received] = table::busy::idle_ms(s);
    for (at, ms) in [(DATA_SENT, sent), (DATA_RECEIVED, received), (ACK_RECEIVED, sent)] {
        if let Some(ms) = ms.filter(|_| at + 4 <= len) {
            // SAFETY: inside the `len` bytes.
            unsafe {
                let p = info.add(at).cast::<u32>();
                p.write_unaligned(p.read_unaligned().min(ms));
            }
        }
    }
}
