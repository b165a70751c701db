//! A process that restricts its system calls by seccomp: what becomes of its connections, before the filter is there.
//!
//! The filter is asked for the calls that the library makes (`sys::filter`). If it lets them through, connections that are in memory
//! go on, and those that are on their way there stay on TCP, as all that come. Else a look of ours at a socket would end the
//! program: the library withdraws. All connections go back to TCP, the kernel's epoll sets are the program's again, and from then
//! on every hook passes its call on. So it is in strict mode, which forbids even to read the clock.
//! Called by the hooks of prctl and syscall.

use super::life::forget_stale;
use super::{Entry, connections, range, returning};
use crate::control;
use crate::engine::{inside, resets, signals, spin, switch, waiter};
use crate::family::sock::{Sock, flag};
use crate::rendezvous::{self, mark};
use crate::sys::filter::{self, Instruction};
use crate::sys::{Sysno, clock, net};
use libc::{IPPROTO_TCP, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, SOL_SOCKET};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// What may be asked of the kernel for connections that are in memory, in hooks of calls that the program may make
/// anyway. Of arguments only those that say what is wanted.
const NEEDED: &[(Sysno, [usize; 6])] = &[
    (Sysno::read, [0; 6]),
    (Sysno::write, [0; 6]),
    (Sysno::close, [0; 6]),
    (Sysno::ppoll, [0; 6]),
    (Sysno::epoll_pwait, [0; 6]),
    (Sysno::epoll_ctl, [0, libc::EPOLL_CTL_MOD as usize, 0, 0, 0, 0]),
    (Sysno::epoll_ctl, [0, libc::EPOLL_CTL_DEL as usize, 0, 0, 0, 0]),
    (Sysno::recvfrom, [0, 0, 0, MSG_DONTWAIT as usize, 0, 0]),
    (Sysno::recvfrom, [0, 0, 0, (MSG_DONTWAIT | MSG_PEEK) as usize, 0, 0]),
    (Sysno::sendto, [0, 0, 0, (MSG_DONTWAIT | MSG_NOSIGNAL) as usize, 0, 0]),
    (Sysno::recvmsg, [0, 0, MSG_DONTWAIT as usize, 0, 0, 0]),
    (Sysno::sendmsg, [0, 0, (MSG_DONTWAIT | MSG_NOSIGNAL) as usize, 0, 0, 0]),
    (Sysno::ioctl, [0, libc::FIONREAD as usize, 0, 0, 0, 0]),
    (Sysno::ioctl, [0, libc::TIOCOUTQ as usize, 0, 0, 0, 0]),
    (Sysno::getsockopt, [0, IPPROTO_TCP as usize, libc::TCP_INFO as usize, 0, 0, 0]),
    (Sysno::getsockopt, [0, SOL_SOCKET as usize, libc::SO_ERROR as usize, 0, 0, 0]),
    (Sysno::setsockopt, [0, IPPROTO_TCP as usize, libc::TCP_NODELAY as usize, 0, 0, 0]),
    (Sysno::setsockopt, [0, SOL_SOCKET as usize, libc::SO_RCVLOWAT as usize, 0, 0, 0]),
    (Sysno::setsockopt, [0, SOL_SOCKET as usize, net::SO_MAX_PACING_RATE as usize, 0, 0, 0]),
    (Sysno::getsockname, [0; 6]),
    (Sysno::getpeername, [0; 6]),
    (Sysno::shutdown, [0; 6]),
    (Sysno::fcntl, [0, libc::F_GETFL as usize, 0, 0, 0, 0]),
    (Sysno::fcntl, [0, libc::F_GETFD as usize, 0, 0, 0, 0]),
    (Sysno::fcntl, [0, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0]),
    (Sysno::mmap, [0, 0, 3, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize, usize::MAX, 0]),
    (Sysno::munmap, [0; 6]),
    (Sysno::madvise, [0; 6]),
    (Sysno::sched_yield, [0; 6]),
    (Sysno::getpid, [0; 6]),
    (Sysno::gettid, [0; 6]),
    (Sysno::kill, [0; 6]),
    (Sysno::tgkill, [0, 0, libc::SIGPIPE as usize, 0, 0, 0]),
    (Sysno::rt_sigaction, [0, 0, 0, 8, 0, 0]),
    (Sysno::rt_sigprocmask, [99, 0, 0, 8, 0, 0]),
];

/// Whether connections in memory can be served under this filter; None is the strict mode.
pub fn is_permitted(filter: Option<&[Instruction]>) -> bool {
    filter.is_some_and(|f| NEEDED.iter().all(|(nr, args)| filter::allows(f, *nr, *args)))
}

/// Under a filter that lets our calls through: what sleeping needs is made now, and what is on its way to memory stays on TCP.
pub fn prepare() {
    bring_back(|s| !(s.tx_in_memory() && s.rx_in_memory()));
    spin::is_single_cpu();
    if range(0, u32::MAX).next().is_some() {
        waiter::thread_waiter();
        signals::interrupt();
        control::wake::descriptor();
    }
}

/// Under one that does not: nothing is in memory when this returns. The sets are given back next (`ready::leave`).
pub fn leave_memory() {
    for (fd, e) in range(0, u32::MAX) {
        if let Entry::Sock(s) = e {
            mark::leave(s, fd);
        }
    }
    bring_back(|_| true);
    for (fd, s) in connections() {
        if s.tx_in_memory() || s.rx_in_memory() {
            // Its peer did not come, and nobody will be here to read what it leaves in memory.
            resets::reset(s, fd);
        }
    }
}

/// No descriptor is tracked any more. One in which a thread waits keeps its record: the thread goes on with it.
pub fn forget_all() {
    for (fd, e) in range(0, u32::MAX) {
        match e {
            Entry::Sock(s) if inside::count(s) != 0 => {}
            _ => forget_stale(fd),
        }
    }
    waiter::thread_ends();
}

/// Moves the connections that are meant to TCP, where they stay. All are asked first, and then waited for together.
fn bring_back(is_meant: impl Fn(&Sock) -> bool) {
    let mut any = false;
    let end = clock::now_ns() + rendezvous::PATIENCE_MS * 1_000_000;
    returning::each(is_meant, |fd, s| {
        if s.is_linked() {
            rendezvous::hand_over(s, fd, Reason::Seccomp);
        } else if s.region().is_some() {
            any |= rendezvous::take_up_and_ask(s, fd, Reason::Seccomp, end);
        } else {
            rendezvous::stop_announcing(s, fd, Reason::Seccomp);
            switch::pin(s, fd, Reason::Seccomp);
        }
    });
    returning::await_all(is_coming, if any { end } else { 0 }, Some(Reason::Seccomp));
}

fn is_coming(s: &Sock) -> bool {
    s.region().is_some() && s.has(flag::PINNED) && s.reason.load(Relaxed) == Reason::Seccomp.code()
}
