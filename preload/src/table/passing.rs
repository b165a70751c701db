//! Connections that are arranged for a program about to be started: their numbers are duplicated or lose
//! close-on-exec, in the process that starts it or in its vfork child.
//!
//! A vfork child has descriptors of its own and its parent's memory: what the table says of a number was true
//! when the child began. It is asked of the kernel before anything is done to it. Called by the hooks of
//! dup, fcntl and ioctl through `life`, and by `forks` before a program is started.

use super::{connections, life, sock};
use crate::engine::linked;
use crate::engine::own_end::is_at;
use crate::family::process;
use crate::family::sock::{Sock, aside as who, flag};
use crate::rendezvous::aside::{self, Place};
use crate::rendezvous::smc;
use crate::sys;
use smcr_proto::reason::Reason;

/// A duplicate was made in a vfork child, which does that for the program that it becomes.
pub fn on_vfork_dup(old: i32, new: i32) {
    if let Some(s) = sock(old) {
        pass_on(s, new);
    }
}

/// A number that the next program will have beside one that it will not.
pub fn on_dup(s: &Sock, old: i32, new: i32) {
    if !survives_exec(old) && survives_exec(new) {
        note(s);
    }
}

/// Whether F_SETFD with this argument, or FIONCLEX (0), takes close-on-exec off a connection.
pub fn would_keep(fd: i32, flags: usize) -> bool {
    flags & libc::FD_CLOEXEC as usize == 0
        && sock(fd).is_some()
        && sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f as i32 & libc::FD_CLOEXEC != 0)
}

/// It did.
pub fn on_kept(fd: i32) {
    let Some(s) = sock(fd) else { return };
    if process::is_vfork_child() {
        pass_on(s, fd);
    } else {
        note(s);
    }
}

fn note(s: &Sock) {
    s.set(flag::INHERITABLE);
}

/// Before a program is started by posix_spawn, or from a vfork child (`pid`): what it will have is on TCP. Some: it has
/// connections that may come back when it has ended.
pub fn before_start(pid: Option<u32>) -> Option<Place> {
    // The kernel is asked last: a program may have ten thousand of them.
    let surviving = |is_meant: fn(&Sock) -> bool| connections().filter(move |(fd, s)| is_meant(s) && survives_exec(*fd));
    surviving(|s| s.has(flag::UNASKED)).for_each(|(fd, s)| smc::give_away(s, fd, Reason::Exec));
    for (fd, s) in surviving(|s| s.has(flag::INHERITABLE)) {
        pass_on(s, fd);
    }
    let others = || surviving(may_be_used).filter(|(fd, s)| is_at(s, *fd));
    others().next()?;
    let place = aside::expect(pid); // before it is looked for
    if aside::set(others(), connections(), who::STARTED) {
        return Some(place);
    }
    place.started(0);
    None
}

/// The same before this process becomes another program by exec, for what it has inherited and never used.
pub fn before_exec(is_own: impl Fn(&Sock) -> bool) {
    let inherited = connections().filter(|(fd, s)| !is_own(s) && s.region().is_some() && may_be_used(s) && survives_exec(*fd));
    aside::set(inherited, connections(), who::RELATIVE);
}

/// Whether the library could do anything that a program which uses it would not see. From a link to a kernel there is no way, from others
/// one for good, unless the peer has closed.
fn may_be_used(s: &Sock) -> bool {
    (!s.is_linked() || smc::may_return(s) && !linked::has_closed(s)) && (s.rx_in_memory() || s.tx_in_memory() || !s.has(flag::PINNED))
}

fn pass_on(s: &'static Sock, fd: i32) {
    if s.is_connection() && is_at(s, fd) {
        life::hand_over(s, fd, Reason::Exec);
    }
}

/// The kernel keeps it open at an exec.
pub fn survives_exec(fd: i32) -> bool {
    sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|f| f as i32 & libc::FD_CLOEXEC == 0)
}
