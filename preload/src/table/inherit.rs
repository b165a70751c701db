//! Connections that this program has from the one that the process was before exec, or from another process.
//!
//! [`look`] is called once, by the constructor. Looks at the lowest descriptors only: that is where inetd, git daemon and
//! sshd put a connection, and a program with nothing there pays one system call for each.

use super::life::{self, REFS};
use super::{Entry, put, range};
use crate::config;
use crate::engine::{count, shadow};
use crate::family::sock::{Sock, role};
use crate::family::{self, process};
use crate::rendezvous::rest::{self, Rest};
use crate::rendezvous::{legacy, worth};
use crate::sys::{fd, net, proc};
use smcr_proto::reason::Reason;
use smcr_proto::register::Legacy;
use std::sync::atomic::Ordering::*;

/// Descriptors that are looked at.
const LOWEST: i32 = 16;
/// Bytes not sent yet: answered by TCP sockets that do not listen. As ioctl(2) it is asked of a socket of
/// any kind, also where a filter lets no call of the network through.
const SIOCOUTQNSD: u64 = 0x894b;

/// Looks for connections that were left to this process.
pub fn look() {
    if !config::enabled() {
        return;
    }
    rest::found().for_each(take_rest);
    for sock in 0..LOWEST {
        let is_socket = fd::stat(sock).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFSOCK);
        if is_socket && fd::ioctl_int(sock, SIOCOUTQNSD).is_ok() {
            take_over(sock);
        }
    }
}

/// A connection of which the last program has left what nobody can send again.
fn take_rest(rest: Rest) {
    let cookie = rest.cookie;
    let mut names = rest.names.into_iter().filter(|sock| net::cookie(*sock) == Ok(cookie));
    let Some(first) = names.next() else { return rest.drop() };
    life::on_inherited(first, |s| {
        rest.take_over(s, first, Reason::Exec);
        true
    });
    if let Some(Entry::Sock(s)) = super::get(first) {
        names.for_each(|sock| also(s, sock));
    }
}

/// What has come with a message. False: the connection can't be tracked.
pub fn take_bequest(rest: Rest, sock: i32) -> bool {
    let mut rest = Some(rest);
    life::on_inherited(sock, |s| {
        rest.take().is_some_and(|rest| {
            rest.take_over(s, sock, Reason::Passed);
            true
        })
    }) || {
        rest.into_iter().for_each(Rest::drop);
        false
    }
}

/// It is the same connection.
fn also(s: &'static Sock, sock: i32) {
    REFS[family::index_of(s) as usize].fetch_add(1, Relaxed);
    put(sock, Entry::Sock(s));
}

fn take_over(sock: i32) {
    let pid = proc::pid();
    let Some(legacy) = legacy::found(sock, pid) else { return };
    let Ok(cookie) = net::cookie(sock) else { return };
    let known = range(0, sock as u32).find_map(|(_, e)| match e {
        Entry::Sock(s) if s.cookie.load(Relaxed) == cookie => Some(s),
        _ => None,
    });
    if let Some(s) = known {
        return also(s, sock);
    }
    go_on(sock, cookie, &legacy);
}

/// From here on it is this program's, if it can be tracked.
pub fn go_on(sock: i32, cookie: u64, legacy: &Legacy) -> bool {
    let end = if legacy.connected { role::CLIENT } else { role::SERVER };
    life::on_inherited(sock, |s| {
        s.role.store(end, Relaxed);
        s.cookie.store(cookie, Relaxed);
        s.legacy.store(legacy.heir, Relaxed);
        s.note(Reason::NotWorthIt);
        shadow::learn_nonblock(s, sock);
        begin_counting(s, sock)
    })
}

/// From here on all that goes through it is counted by this program.
fn begin_counting(s: &Sock, sock: i32) -> bool {
    worth::begin_counting(s);
    s.process.store(process::index(), Relaxed);
    count::begin(s, sock)
}
