//! Marking: which handshakes carry the SMC option (`proto::handshake`), and what they have shown.
//!
//! Called by `table::life` before connect() and listen(), at accept(), and where a descriptor leaves;
//! the RDMA path asks [`ask`] and sets [`set_provider`]. A mark is a commitment: whoever shows the
//! option has to speak CLC. So nothing is marked before a provider says that it is usable.
//!
//! Where the eBPF programs are not installed one getsockopt() per process finds it out, and a
//! comparison of a static tells it from then on.

use super::{deferred, is_local};
use crate::family::sock::{Sock, flag, role};
use crate::sys::{Errno, fd, net, proc, tcp_state};
use crate::{control, log};
use smcr_proto::handshake::{ABI, LEVEL, MARK, Peer, VERDICT, Verdict};
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// What is known of the programs; inherited by forked children.
static PROGRAMS: AtomicU32 = AtomicU32::new(programs::UNKNOWN);
/// Whether an RDMA device can be used: a function, or null.
static PROVIDER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

mod programs {
    pub const UNKNOWN: u32 = 0;
    pub const ABSENT: u32 = 1;
    pub const PRESENT: u32 = 2;
}

/// What the handshake of a connection has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// The socket was not marked: there is nothing to ask.
    Unmarked,
    /// The handshake is under way.
    NotYet,
    /// The other end does not speak SMC, or it is not certain: plain TCP, not a byte of CLC.
    Nobody,
    /// It does, and it knows that we do: CLC must follow, from the client towards a kernel, from the
    /// server towards libsmcr.
    Peer(Peer),
}

/// Who knows whether a verbs device is usable. Asked before each mark, and only where the programs are
/// installed: the first call may load what it needs, later ones must be cheap.
pub fn set_provider(is_usable: fn(bool) -> bool) {
    PROVIDER.store(is_usable as *mut (), Release); // pairs with the Acquire in `has_provider`
}

fn has_provider(connects: bool) -> bool {
    let p = PROVIDER.load(Acquire);
    if p.is_null() {
        return false;
    }
    // SAFETY: `set_provider` alone stores, and stores functions of this type.
    let is_usable = unsafe { std::mem::transmute::<*mut (), fn(bool) -> bool>(p) };
    is_usable(connects)
}

/// Before connect(2): marks the socket if the connection may go through RDMA.
#[inline]
pub fn before_connect(s: &Sock, sock: i32, peer: Option<net::Addr>) {
    if PROGRAMS.load(Relaxed) != programs::ABSENT && !PROVIDER.load(Relaxed).is_null() {
        mark_client(s, sock, peer);
    }
}

#[cold]
fn mark_client(s: &Sock, sock: i32, peer: Option<net::Addr>) {
    if s.has(flag::MARKED) {
        return connects_again(s, sock);
    }
    let Some(peer) = peer.map(net::Addr::folded) else {
        return;
    };
    let is_first = s.role.load(Relaxed) == 0 && may_mark(s) && !s.has(flag::FORKED);
    if !is_first || !is_candidate(&peer) || !are_present(sock) || !has_provider(true) || is_local(&peer) {
        return;
    }
    // Its SYN goes with the first bytes, when nobody looks any more for what it has shown.
    if net::get_opt::<i32>(sock, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) != Ok(0) {
        return;
    }
    if let Err(why) = control::decide_connect(sock, &peer) {
        s.note(why);
        return;
    }
    set(s, sock);
    // Here, and not when connect() returns: a signal may end it, or a handler leave it, and the handshake goes on.
    s.put(flag::UNASKED, s.has(flag::MARKED));
}

/// A marked socket connects another time: the kernel would show the option again, and nobody here
/// expects a second CLC exchange on one socket.
fn connects_again(s: &Sock, sock: i32) {
    // In any other state connect(2) asks only how far it has come.
    if tcp_state::of(sock) == Ok(tcp_state::CLOSE) && net::set_opt(sock, LEVEL, MARK, &0u32).is_ok() {
        s.clear(flag::MARKED | flag::NOBODY | flag::UNASKED);
    }
}

/// Before listen(2): marks the socket if its connections may go through RDMA.
#[inline]
pub fn before_listen(s: &Sock, sock: i32) {
    if PROGRAMS.load(Relaxed) != programs::ABSENT && !PROVIDER.load(Relaxed).is_null() {
        mark_listener(s, sock);
    }
}

#[cold]
fn mark_listener(s: &Sock, sock: i32) {
    // One that listens already cannot be marked any more (a SYN may have been answered). One that a parent has made and its child
    // listens with (Varnish) is as good as another: relatives share what is known of it.
    let is_first = s.role.load(Relaxed) == 0 && may_mark(s);
    let Ok(local) = net::local_addr(sock).map(net::Addr::folded) else {
        return;
    };
    if !is_first || local.is_loopback() || !may_leave_later(sock) {
        return;
    }
    if !are_present(sock) || !has_provider(false) {
        return;
    }
    if control::decide_listener(&local).is_ok() {
        set(s, sock);
    }
}

/// Not pinned, not marked before.
fn may_mark(s: &Sock) -> bool {
    !s.has(flag::MARKED | flag::PINNED)
}

/// SMC-Rv2 needs IPv4; peers on this host have shared memory.
fn is_candidate(peer: &net::Addr) -> bool {
    i32::from(peer.family) == libc::AF_INET && peer.ip[0] != 0 && !peer.is_loopback() && peer.port != 0
}

/// Whether the mark can be called back when a program without the library gets the listener: since
/// Linux 6.12; before, only a listener that no program inherits is marked.
fn may_leave_later(sock: i32) -> bool {
    proc::kernel_release() >= (6, 12) || fd::fcntl(sock, libc::F_GETFD, 0).is_ok_and(|f| f as i32 & libc::FD_CLOEXEC != 0)
}

/// Whether the programs are there and speak our version.
fn are_present(sock: i32) -> bool {
    match PROGRAMS.load(Relaxed) {
        programs::PRESENT => true,
        programs::ABSENT => false,
        _ => {
            let answer = net::get_opt::<u32>(sock, LEVEL, MARK);
            let present = answer.is_ok_and(|v| v >> 16 == u32::from(ABI));
            log::debug!(target: "smcr::mark", present, answer = ?answer, "eBPF programs");
            PROGRAMS.store(if present { programs::PRESENT } else { programs::ABSENT }, Relaxed);
            present
        }
    }
}

fn set(s: &Sock, sock: i32) {
    match net::set_opt(sock, LEVEL, MARK, &1u32) {
        Ok(_) => s.set(flag::MARKED),
        Err(Errno(e)) => log::debug!(target: "smcr::mark", fd = sock, errno = e, "not marked"),
    }
}

/// accept(2) gave `s`: it has what its listener showed. One that shows the option no more may have done so when this connection
/// came, which has waited in its queue since: the handshake itself is asked.
pub fn accepted(listener: &Sock, s: &Sock) {
    s.put(flag::MARKED, listener.has(flag::MARKED | flag::NOBODY));
}

/// accept(2) gave `s` from a listener of which nothing is known here: the program before this one may have made it, and marked.
pub fn accepted_from_elsewhere(s: &Sock, sock: i32) {
    let may_be = PROGRAMS.load(Relaxed) != programs::ABSENT && !PROVIDER.load(Relaxed).is_null();
    if may_be && are_present(sock) && verdict(sock).peer().is_some() {
        s.set(flag::MARKED);
    }
}

/// What the handshake has shown. One system call on a marked socket, none on another and none after
/// [`Shown::Nobody`].
pub fn ask(s: &Sock, sock: i32) -> Shown {
    if !s.has(flag::MARKED) {
        return Shown::Unmarked;
    }
    if s.has(flag::NOBODY) {
        return Shown::Nobody;
    }
    let verdict = verdict(sock);
    if let Some(peer) = verdict.peer() {
        // The end that connects, if its connect() was left before it could say so.
        let _ = s.role.compare_exchange(0, role::CLIENT, Relaxed, Relaxed);
        return Shown::Peer(peer);
    }
    // An accepted socket has its handshake behind it.
    if verdict.active() && !verdict.known() {
        return Shown::NotYet;
    }
    s.set(flag::NOBODY);
    s.note(Reason::SmcPeerNoSmc);
    Shown::Nobody
}

fn verdict(sock: i32) -> Verdict {
    Verdict(net::get_opt(sock, LEVEL, VERDICT).unwrap_or(0))
}

/// The descriptor goes to a program or process that may be without the library: a listener shows the
/// option no more. A connection keeps what was agreed.
pub fn leave(s: &Sock, sock: i32) {
    if s.role.load(Relaxed) != role::LISTENER || !s.has(flag::MARKED) {
        return;
    }
    match net::set_opt(sock, LEVEL, MARK, &0u32) {
        Ok(_) => {
            s.set(flag::NOBODY);
            s.clear(flag::MARKED);
            deferred::give_back(s, sock);
            log::info!(target: "smcr::mark", fd = sock, "listener unmarked: it leaves the library");
        }
        Err(e) => {
            log::warn!(target: "smcr::mark", fd = sock, errno = e.0, "a listener leaves the library marked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family;

    fn address(ip: [u8; 4], port: u16) -> net::Addr {
        let mut raw = [0u8; 16];
        raw[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        raw[2..4].copy_from_slice(&port.to_be_bytes());
        raw[4..8].copy_from_slice(&ip);
        net::Addr::parse(&raw).unwrap()
    }

    fn record() -> &'static Sock {
        let s = family::take_sock().unwrap();
        s.reset();
        s
    }

    #[test]
    fn other_hosts_over_ipv4_are_candidates() {
        assert!(is_candidate(&address([10, 77, 0, 1], 80)));
        for (ip, port) in [([127, 0, 0, 1], 80), ([127, 9, 9, 9], 80), ([0, 0, 0, 0], 80), ([10, 77, 0, 1], 0)] {
            assert!(!is_candidate(&address(ip, port)), "{ip:?}:{port}");
        }
        let mut raw = [0u8; 28];
        raw[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        raw[2..4].copy_from_slice(&80u16.to_be_bytes());
        raw[8..10].copy_from_slice(&[0x20, 0x01]);
        let six = net::Addr::parse(&raw).unwrap();
        assert!(!is_candidate(&six.folded()));
        raw[8..10].copy_from_slice(&[0, 0]);
        raw[18..24].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 1]);
        assert!(is_candidate(&net::Addr::parse(&raw).unwrap().folded()), "IPv4 in the form of IPv6");
    }

    #[test]
    fn what_is_marked_or_pinned_is_not_marked_again() {
        let s = record();
        assert!(may_mark(s));
        for f in [flag::MARKED, flag::PINNED] {
            s.set(f);
            assert!(!may_mark(s), "{f:#x}");
            s.clear(f);
        }
    }

    #[test]
    fn an_accepted_socket_has_what_its_listener_showed() {
        let (listener, s) = (record(), record());
        for marked in [true, false] {
            listener.put(flag::MARKED, marked);
            accepted(listener, s);
            assert_eq!(s.has(flag::MARKED), marked);
        }
        listener.set(flag::NOBODY);
        accepted(listener, s);
        assert!(s.has(flag::MARKED), "it had waited in the queue");
    }

    #[test]
    fn without_the_programs_nobody_is_there() {
        let sock = net::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap();
        let s = record();
        assert_eq!(ask(s, sock), Shown::Unmarked);
        assert_eq!(s.reason.load(Relaxed), 0, "nothing was asked");
        s.set(flag::MARKED);
        assert_eq!(ask(s, sock), Shown::Nobody);
        assert_eq!(s.reason.load(Relaxed), Reason::SmcPeerNoSmc.code());
        fd::close(sock);
        assert_eq!(ask(s, sock), Shown::Nobody, "asked once");
    }
}
