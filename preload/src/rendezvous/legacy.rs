//! Connections that go on in another program: what is left on the socket for it before exec, and whether
//! the new program is the only one that holds the connection.
//!
//! The new program knows nothing; but it is the same process, and the socket is the same. So the socket's
//! register (SO_MAX_PACING_RATE) says what it was (`proto`'s `Legacy`): which process may take it over, and
//! how many relatives of the one that called exec still hold it. They hold it in a page that the new program
//! does not have; each of them brings the number up to date when it leaves. While it is not 0 the
//! connection stays on TCP, and who leaves without a word (killed, closed behind the hooks) keeps it there.
//!
//! A connection that a message over a Unix socket takes to another process (SCM_RIGHTS) is left in the same way: to whoever
//! receives it by the socket at the other end. A process without the library may receive it, keep it and pass it on: over
//! another socket. Who has passed it on uses it on TCP until it closes it.
//!
//! Called by `table` around fork, exec and close, by `table::inherit` at the start of a program, by `table::passed` around
//! messages, and before a connection begins.

use super::{SHARED_OPS, later, server, stepping};
use crate::control;
use crate::engine::{count, inside, switch};
use crate::family::process;
use crate::family::sock::{Sock, flag, role, step};
use crate::sys::{clock, diag, fd, net, proc};
use smcr_proto::page::State;
use smcr_proto::reason::Reason;
use smcr_proto::register::Legacy;
use std::sync::atomic::{Ordering::*, fence};

/// Value of TCP_SYNCNT, which means nothing once a connection is established: a program that took the
/// connection over has made relatives since, of which what stands in the register knows nothing.
const DISOWNED: i32 = 119;

/// How long a fork waits for those who have not closed the connection yet.
const A_MOMENT_US: u64 = 1000;

/// Relatives that leave at once each write what they see; more rounds than that are not needed.
const ROUNDS: u32 = 64;

/// Before exec into a program with the library: leaves the connection to it. False: it can't be, and goes
/// on in TCP for good.
pub fn leave(s: &'static Sock, sock: i32) -> bool {
    let heir = process::pid();
    // By another descriptor, or by this one.
    s.heir.load(Relaxed) == heir || leave_to(s, sock, || Some(heir))
}

/// The same before the Unix socket `over` sends the descriptor.
pub fn leave_to_receiver(s: &'static Sock, sock: i32, over: i32) -> bool {
    let receiver = || fd::stat(over).and_then(|st| diag::unix_peer(st.st_ino)).ok().map(Legacy::message);
    !s.is_aside() && leave_to(s, sock, receiver)
}

/// `heir` is asked if it may be left at all.
fn leave_to(s: &'static Sock, sock: i32, heir: impl FnOnce() -> Option<u32>) -> bool {
    if control::is_restricted() {
        return false; // it looks at the socket, and may mark it
    }
    // Another thread may be about to offer memory, or this one, which a handler has interrupted: then it is handed over.
    let Some(_stepping) = stepping::begin(s, &sock) else { return false };
    let may = may_leave(s, sock);
    let inherited = if is_sole(s, sock) { 0 } else { s.legacy.load(Relaxed) };
    if inherited != 0 && !may {
        disown(sock);
    }
    if !may {
        return false;
    }
    let Some(heir) = heir() else { return false };
    if inherited != 0 {
        // What stands there still holds for the program that this process becomes. By a message it goes to one more.
        return inherited == heir && !Legacy::is_message(heir);
    }
    // As who takes an offer, so that none is taken meanwhile.
    match s.step.compare_exchange(step::ANNOUNCED, step::TAKING, AcqRel, Acquire) {
        Ok(_) => server::withdraw(s, sock, Reason::NotWorthIt, step::IDLE),
        Err(step::IDLE) => {}
        Err(_) => return false,
    }
    if net::rate(sock) != Ok(u64::MAX) {
        return false; // the program's own
    }
    s.heir.store(heir, SeqCst);
    write(s, sock)
}

fn may_leave(s: &Sock, sock: i32) -> bool {
    s.is_connection()
        && !s.has(flag::PINNED | flag::MARKED)
        && s.region().is_none()
        && s.link.load(Relaxed) == 0
        && matches!(s.step.load(Relaxed), step::IDLE | step::ANNOUNCED)
        && s.heir.load(Relaxed) == 0
        && process::index() != u32::MAX
        && super::learn_names(s, sock).is_some_and(|(_, remote)| super::is_local(&remote))
}

/// This process leaves its family (`table::apart`), with a connection that relatives hold too: leaves it to itself, as for
/// exec. False: it goes on in TCP for good.
pub fn part(s: &'static Sock, sock: i32) -> bool {
    if s.legacy.load(Relaxed) != 0 && !is_sole(s, sock) {
        disown(sock);
        return false;
    }
    strike_out(s, sock);
    let heir = s.heir.load(Relaxed);
    let is_over = || process::number_of(heir).is_none_or(|n| !s.is_held_in(n)) || proc::is_gone(heir);
    if heir != 0 && !(is_over() && come_back(s, sock)) {
        return false;
    }
    let left = leave(s, sock);
    if left {
        s.apart.store(1, Relaxed);
    }
    left
}

/// After [`part`], in the process's own page.
pub fn inherit(s: &Sock, sock: i32) {
    s.set_state(State::Tcp);
    s.note(Reason::SharedByFork);
    if !count::begin(s, sock) {
        switch::pin(s, sock, Reason::CountMismatch);
    }
}

/// Nobody holds it with this process any more, which had left it to a relative that went apart and has ended: it may begin
/// here. Of one that was left to a program nobody knows whom that has given it to.
pub fn come_back(s: &Sock, sock: i32) -> bool {
    let heir = s.heir.load(Relaxed);
    if heir == 0 || s.apart.load(Relaxed) == 0 {
        return true;
    }
    if is_disowned(sock) {
        s.note(Reason::Privileges);
        later(s, u32::MAX);
        return false;
    }
    if of(sock).is_some_and(|l| l.heir == heir) {
        let _ = net::set_rate(sock, u64::MAX);
    }
    let counts = count::begin(s, sock);
    if counts {
        s.heir.store(0, SeqCst);
        s.apart.store(0, Relaxed);
    }
    counts
}

/// This process, which went apart with it, holds it no more (the kernel's descriptor is still open): takes its word off
/// the socket, so that the others need not wait for its end.
pub fn give_up(s: &Sock, sock: i32) {
    let pid = process::pid();
    if s.legacy.load(Relaxed) == pid && of(sock).is_some_and(|l| l.heir == pid) && !is_disowned(sock) {
        let _ = net::set_rate(sock, u64::MAX);
    }
}

/// Strikes out the relative that went apart with it, if that says that it holds it no more. A false word breaks this
/// connection, which that process could do anyhow.
pub fn strike_out(s: &Sock, sock: i32) {
    let heir = s.heir.load(Relaxed);
    let says_so = || net::rate(sock) == Ok(u64::MAX);
    if heir != 0
        && s.apart.load(Relaxed) != 0
        && says_so()
        && !is_disowned(sock)
        && process::number_of(heir).is_some_and(|number| s.let_go_in(number))
    {
        s.holders.fetch_sub(1, AcqRel);
    }
}

/// The descriptor goes to a process of which nobody knows: who has left it to this one does not get it back.
pub fn passed_on(s: &Sock, sock: i32) {
    if s.legacy.load(Relaxed) != 0 && !control::is_restricted() {
        disown(sock);
    }
}

/// Whether a message has taken it to a process that goes on with it.
pub fn is_passed_on(s: &Sock) -> bool {
    Legacy::is_message(s.heir.load(Relaxed))
}

/// Why one stays on TCP that others may hold.
pub fn reason(s: &Sock) -> Reason {
    let came_by_message = Legacy::is_message(s.legacy.load(Relaxed));
    if came_by_message || is_passed_on(s) { Reason::Passed } else { Reason::SharedByFork }
}

/// exec failed: nobody takes it over.
pub fn take_back(s: &Sock, sock: i32) {
    if s.heir.load(Relaxed) == process::pid() {
        take_off(s, sock);
    }
}

/// The same where the message was not sent.
pub fn take_back_message(s: &Sock, sock: i32) {
    if is_passed_on(s) {
        take_off(s, sock);
        later(s, s.ops.load(Relaxed).saturating_add(SHARED_OPS));
    }
}

/// It has no heir any more.
fn take_off(s: &Sock, sock: i32) {
    s.heir.store(0, SeqCst);
    s.set_state(State::Tcp);
    let _ = net::set_rate(sock, u64::MAX);
}

/// This process holds it no more (the kernel's descriptor is still open): says so to the heir.
pub fn left(s: &Sock, sock: i32) {
    let heir = s.heir.load(SeqCst);
    if heir != 0 && !control::is_restricted() && of(sock).is_some_and(|l| l.heir == heir) {
        write(s, sock);
    }
}

/// Says who else holds it. Whoever writes last has seen the final number: it was changed before, and is
/// looked at again behind.
fn write(s: &Sock, sock: i32) -> bool {
    for _ in 0..ROUNDS {
        let (heir, holders) = (s.heir.load(Relaxed), s.holders.load(SeqCst));
        // The program that one of them becomes is among them, who receives a message is not.
        let others = holders.saturating_sub(u32::from(!Legacy::is_message(heir)));
        let others = others.min(u32::from(Legacy::NEVER) - 1) as u8;
        // Pinned by one of us meanwhile, or in a program that was started since: it may be with a stranger.
        let is_elsewhere = s.has(flag::PINNED) || Legacy::is_message(heir) && (s.is_aside() || is_inside(s));
        let legacy = Legacy { heir, connected: s.role.load(Relaxed) == role::CLIENT, others: if is_elsewhere { Legacy::NEVER } else { others } };
        let Some(rate) = legacy.rate() else { return false };
        if net::set_rate(sock, rate).is_err() {
            return false;
        }
        if others == 0 {
            s.set_state(State::Closed); // listed by the heir from now on
        }
        fence(SeqCst);
        if s.holders.load(SeqCst) == holders {
            return true;
        }
    }
    false
}

/// Whether a thread is in a call on it, where the kernel keeps it open for that.
fn is_inside(s: &Sock) -> bool {
    let in_kernel = s.rx.in_kernel.load(SeqCst) + s.tx.in_kernel.load(SeqCst);
    in_kernel + s.readers.load(SeqCst) != 0 || inside::count(s) != 0
}

/// What stands on a socket.
fn of(sock: i32) -> Option<Legacy> {
    net::rate(sock).ok().and_then(Legacy::parse)
}

/// What a program finds at its start: a connection that was left to it.
pub fn found(sock: i32, pid: u32) -> Option<Legacy> {
    left_to(sock, |heir| heir == pid)
}

/// What comes with a descriptor that was received by the Unix socket `over`.
pub fn received(sock: i32, over: i32) -> Option<Legacy> {
    left_to(sock, |heir| Legacy::is_message(heir) && fd::stat(over).is_ok_and(|st| heir == Legacy::message(st.st_ino)))
}

fn left_to(sock: i32, is_it: impl FnOnce(u32) -> bool) -> Option<Legacy> {
    of(sock).filter(|l| is_it(l.heir) && !is_disowned(sock))
}

/// It was received, and will be another time: by two descriptors of which nobody knows that they are one.
pub fn not_received(sock: i32) {
    if of(sock).is_some_and(|l| Legacy::is_message(l.heir)) {
        disown(sock);
    }
}

/// Whether nobody holds it any more of whom this family does not know.
pub fn is_sole(s: &Sock, sock: i32) -> bool {
    let heir = s.legacy.load(Relaxed);
    if heir == 0 {
        return true;
    }
    match of(sock).filter(|l| l.heir == heir).map_or(Legacy::NEVER, |l| l.others) {
        0 => {
            let _ = net::set_rate(sock, u64::MAX);
            s.legacy.store(0, Relaxed);
            true
        }
        Legacy::NEVER => {
            s.note(if Legacy::is_message(heir) { Reason::Passed } else { Reason::Exec });
            later(s, u32::MAX);
            false
        }
        _ => false,
    }
}

/// Before fork: from now on what stands on the socket is not the whole truth. Who called exec closes the
/// connection at once as a rule: it is given a moment, once.
pub fn before_fork(s: &Sock, sock: i32) {
    if s.legacy.load(Relaxed) == 0 || control::is_restricted() || is_disowned(sock) {
        return;
    }
    let until = clock::ticks() + clock::ticks_of_us(A_MOMENT_US);
    while !is_sole(s, sock) {
        if clock::ticks() >= until {
            return disown(sock);
        }
        proc::yield_now();
    }
}

fn disown(sock: i32) {
    let _ = net::set_opt(sock, libc::IPPROTO_TCP, libc::TCP_SYNCNT, &DISOWNED);
}

fn is_disowned(sock: i32) -> bool {
    net::get_opt::<i32>(sock, libc::IPPROTO_TCP, libc::TCP_SYNCNT) == Ok(DISOWNED)
}
