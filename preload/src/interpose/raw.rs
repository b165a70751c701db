//! syscall(2): libuv and Node close every descriptor through it, so the numbers that make, use or
//! close sockets take the way of their hooks; all others pass through. None is a cancellation point, whatever the hooks are.

use super::cancel::aside;
use super::process::Restriction;
use super::readiness::is_sized;
use super::{aio, credentials, data_in, data_out, fds, guarded, hooks, process, readiness, sockets, splices};
use crate::ready::ring;
use crate::real;
use crate::sys::probe::{is_null_or_there, is_there};
use crate::sys::uring::{self, Params};
use crate::table::rings;
use libc::c_long;

hooks! {
    fn syscall(nr: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        // SAFETY: the program's arguments, with the meaning that the number gives them.
        unsafe {
            match nr {
                libc::SYS_read => aside(|| data_in::read(a as i32, b as *mut _, c as usize) as c_long),
                libc::SYS_write => aside(|| data_out::write(a as i32, b as *const _, c as usize) as c_long),
                libc::SYS_readv => aside(|| data_in::readv(a as i32, b as *const _, c as i32) as c_long),
                libc::SYS_writev => aside(|| data_out::writev(a as i32, b as *const _, c as i32) as c_long),
                libc::SYS_recvfrom => aside(|| data_in::recvfrom(a as i32, b as *mut _, c as usize, d as i32, e as *mut _, f as *mut _) as c_long),
                libc::SYS_sendto => aside(|| data_out::sendto(a as i32, b as *const _, c as usize, d as i32, e as *const _, f as u32) as c_long),
                libc::SYS_recvmsg => aside(|| data_in::recvmsg(a as i32, b as *mut _, c as i32) as c_long),
                libc::SYS_sendmsg => aside(|| data_out::sendmsg(a as i32, b as *const _, c as i32) as c_long),
                libc::SYS_recvmmsg => aside(|| c_long::from(data_in::recvmmsg(a as i32, b as *mut _, c as u32, d as i32, e as *mut _))),
                libc::SYS_sendmmsg => aside(|| c_long::from(data_out::sendmmsg(a as i32, b as *mut _, c as u32, d as i32))),
                libc::SYS_sendfile => aside(|| splices::sendfile64(a as i32, b as i32, c as *mut _, d as usize) as c_long),
                libc::SYS_splice => aside(|| splices::splice(a as i32, b as *mut _, c as i32, d as *mut _, e as usize, f as u32) as c_long),
                libc::SYS_close => aside(|| c_long::from(fds::close(a as i32))),
                libc::SYS_close_range => c_long::from(fds::close_range(a as u32, b as u32, c as i32)),
                libc::SYS_dup => c_long::from(fds::dup(a as i32)),
                libc::SYS_dup3 => c_long::from(fds::dup3(a as i32, b as i32, c as i32)),
                libc::SYS_fcntl => aside(|| c_long::from(fds::fcntl(a as i32, b as i32, c as usize))),
                libc::SYS_ioctl => c_long::from(fds::ioctl(a as i32, b as u64, c as usize)),
                libc::SYS_socket => c_long::from(sockets::socket(a as i32, b as i32, c as i32)),
                libc::SYS_listen => c_long::from(sockets::listen(a as i32, b as i32)),
                libc::SYS_accept => aside(|| c_long::from(sockets::accept(a as i32, b as *mut _, c as *mut _))),
                libc::SYS_accept4 => aside(|| c_long::from(sockets::accept4(a as i32, b as *mut _, c as *mut _, d as i32))),
                libc::SYS_connect => aside(|| c_long::from(sockets::connect(a as i32, b as *const _, c as u32))),
                libc::SYS_shutdown => c_long::from(sockets::shutdown(a as i32, b as i32)),
                libc::SYS_getpeername => c_long::from(sockets::getpeername(a as i32, b as *mut _, c as *mut _)),
                libc::SYS_setsockopt => c_long::from(sockets::setsockopt(a as i32, b as i32, c as i32, d as *const _, e as u32)),
                libc::SYS_getsockopt => c_long::from(sockets::getsockopt(a as i32, b as i32, c as i32, d as *mut _, e as *mut _)),
                libc::SYS_epoll_ctl => c_long::from(readiness::epoll_ctl(a as i32, b as i32, c as i32, d as *mut _)),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_dup2 => c_long::from(fds::dup2(a as i32, b as i32)),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_poll => aside(|| c_long::from(readiness::poll(a as *mut _, b as u64, c as i32))),
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_wait => aside(|| c_long::from(readiness::epoll_wait(a as i32, b as *mut _, c as i32, d as i32))),
                // With a timeout that is nowhere the kernel says EFAULT, where libc's select would read it.
                #[cfg(target_arch = "x86_64")]
                libc::SYS_select if is_null_or_there(e as *const libc::timeval) => aside(|| c_long::from(readiness::select_by_number(a as i32, [b as *mut _, c as *mut _, d as *mut _], e as *mut _))),
                libc::SYS_ppoll => {
                    let r = aside(|| readiness::ppoll_by_number(a as *mut _, b as u64, c as *mut _, d as *const _, e as usize));
                    r.map_or_else(|| real::syscall(nr, a, b, c, d, e, f), c_long::from)
                }
                libc::SYS_pselect6 => {
                    let sets = [b as *mut _, c as *mut _, d as *mut _];
                    let r = aside(|| readiness::pselect_by_number(a as i32, sets, e as *mut _, f as *const _));
                    r.map_or_else(|| real::syscall(nr, a, b, c, d, e, f), c_long::from)
                }
                libc::SYS_preadv2 => aside(|| data_in::preadv2(a as i32, b as *const _, c as i32, d, f as i32) as c_long),
                libc::SYS_pwritev2 => aside(|| data_out::pwritev2(a as i32, b as *const _, c as i32, d, f as i32) as c_long),
                libc::SYS_epoll_pwait if is_sized(e as *const _, f as usize) => aside(|| c_long::from(readiness::epoll_pwait(a as i32, b as *mut _, c as i32, d as i32, e as *const _))),
                libc::SYS_epoll_pwait2 if is_sized(e as *const _, f as usize) => aside(|| c_long::from(readiness::epoll_pwait2(a as i32, b as *mut _, c as i32, d as *const _, e as *const _))),
                libc::SYS_execve => c_long::from(process::execve(a as *const _, b as *const _, c as *const _)),
                libc::SYS_execveat => c_long::from(process::execveat(a as i32, b as *const _, c as *const _, d as *const _, e as i32)),
                libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid | libc::SYS_setgid | libc::SYS_setregid
                | libc::SYS_setresgid | libc::SYS_setgroups | libc::SYS_capset | libc::SYS_unshare => {
                    credentials::changing(|| real::syscall(nr, a, b, c, d, e, f))
                }
                libc::SYS_prctl => c_long::from(process::prctl(a as i32, b as u64, c as u64, d as u64, e as u64)),
                // SECCOMP_SET_MODE_STRICT and _FILTER.
                libc::SYS_seccomp => {
                    let how = match a {
                        0 if b == 0 => Restriction::Strict,
                        1 => Restriction::Filter(c as *const _),
                        _ => Restriction::None,
                    };
                    process::restricting(how, || real::syscall(nr, a, b, c, d, e, f))
                }
                libc::SYS_io_submit => {
                    aio::before_io_submit(c as *const _, b);
                    real::syscall(nr, a, b, c, d, e, f)
                }
                libc::SYS_io_uring_setup => {
                    crate::table::life::on_io_uring();
                    let r = real::syscall(nr, a, b, c, d, e, f);
                    if r >= 0 {
                        guarded(|| rings::begin(r as i32, &*(b as *const Params)));
                    }
                    r
                }
                libc::SYS_io_uring_enter => {
                    if b as u32 != 0 && d as u32 & uring::BY_INDEX == 0 {
                        guarded(|| ring::before_enter(a as i32, b as u32));
                    }
                    real::syscall(nr, a, b, c, d, e, f)
                }
                libc::SYS_io_uring_register => {
                    if b as u32 == uring::RESIZE_RINGS {
                        guarded(|| rings::forget(a as i32));
                    }
                    real::syscall(nr, a, b, c, d, e, f)
                }
                _ => match fork_flags(nr, a, b) {
                    Some(flags) => c_long::from(process::forking(flags, || real::syscall(nr, a, b, c, d, e, f) as i32)),
                    None => real::syscall(nr, a, b, c, d, e, f),
                },
            }
        }
    }
}

/// The flags of a call that makes a process with memory of its own, which goes on where its parent does.
///
/// # Safety
/// `a` and `b` must be the program's first arguments for this number.
unsafe fn fork_flags(nr: c_long, a: c_long, b: c_long) -> Option<u64> {
    let if_fork = |flags: u64, stack: u64| (flags & libc::CLONE_VM as u64 == 0 && stack == 0).then_some(flags);
    match nr {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(0),
        libc::SYS_clone => if_fork(a as u64, b as u64),
        libc::SYS_clone3 => {
            let args = a as *const libc::clone_args;
            // SAFETY: by the contract; of a smaller size, or where nothing is, the kernel says what is wrong with it.
            if b >= 64 && is_there(args, 1) { unsafe { if_fork((*args).flags, (*args).stack) } } else { None }
        }
        _ => None,
    }
}
