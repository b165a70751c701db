//! Connections that are arranged for a program about to be started: their numbers are duplicated or lose
//! close-on-exec, in the process that starts it or in its vfork child.
//!
//! A vfork child has descriptors of its own and its parent's memory: what the table says of a number was true
//! when the child began. It is asked of the kernel before anything is done to it. Called by the hooks of
//! dup, fcntl and ioctl through `life`, and by `forks` before a program is started.

use super::{Entry, life, range, sock};
use crate::family::process;
use crate::family::sock::{Sock, flag};
use crate::sys::{self, net};
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::*};

/// Any connection has [`flag::INHERITABLE`].
static ANY: AtomicBool = AtomicBool::new(false);

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
    ANY.store(true, Relaxed);
}

/// Before a program is started by posix_spawn, or from a vfork child: what it is meant to have is on TCP.
pub fn before_start() {
    if !ANY.load(Relaxed) {
        return;
    }
    for (fd, e) in range(0, u32::MAX) {
        if let Entry::Sock(s) = e
            && s.has(flag::INHERITABLE)
            && survives_exec(fd)
        {
            pass_on(s, fd);
        }
    }
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

/// Whether the kernel has this connection under this number.
fn is_at(s: &Sock, fd: i32) -> bool {
    let (Ok(local), Ok(remote)) = (net::local_addr(fd), net::peer_addr(fd)) else { return false };
    // Acquire: pairs with the Release in `rendezvous::learn_names`, which stores the family last.
    let known = s.names[0].load(Acquire) != 0;
    !known || is_name(&local.folded(), &s.local, &s.names[1]) && is_name(&remote.folded(), &s.remote, &s.names[2])
}

fn is_name(name: &net::Addr, ip: &[AtomicU64; 2], port: &AtomicU16) -> bool {
    let ip = ip.iter().map(|part| part.load(Relaxed).to_ne_bytes());
    name.port == port.load(Relaxed) && ip.eq(name.ip.chunks_exact(8).map(|part| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| part[i])))
}
