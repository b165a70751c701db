//! What is done to a connection before the kernel's close(2), exit or exec of our own end. `table::life` and `table::forks` call it;
//! [`super::end`] says what the other end sees, [`super::shut`] is shutdown(2)'s, [`super::unmap`] gives the memory back.

use super::follow::Source;
use super::patience::{self, Patience};
use super::{bell, debt, follow, heirs, here, kernel, linked, proof, shadow, switch};
use crate::family::lock::{CALL_MS, Held, Marker};
use crate::family::sock::{Sock, flag, medium, step};
use crate::fault::{self, Step as Fault};
use crate::sys::{fd, net, proc};
use crate::transport::region::{Dir, fin, setup};
use std::sync::atomic::Ordering::*;

/// How long a close waits for the proof of a peer that has begun, and for the count of a doorbell that is there: a few microseconds, unless it
/// is stopped in between. Another user's may only pretend.
const PROOF_PATIENCE_NS: u64 = 200_000_000;
const PATIENCE_WITH_OTHERS_NS: u64 = 20_000_000;

/// How the kernel comes to close a connection that the program does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unseen {
    /// At an exec, which may fail.
    Exec,
    /// At exit(3): the program's handlers have run, other libraries' may follow.
    Exit,
    /// At _exit(2): nothing follows.
    End,
}

/// Before the kernel's close(2) of the last descriptor: leaves the kernel's socket such that the
/// peer sees what TCP would show, and marks it. The region stays mapped until `unmap`.
pub fn before_close(s: &Sock, sock: i32) {
    if s.is_linked() {
        return linked::before_close(s, sock);
    }
    let (Some(dir), Some(back)) = (s.tx.dir(), s.rx.dir()) else { return };
    give_back(s, sock);
    take_proof(s, sock, back);
    let mut marks = fin::WRITE | fin::CLOSED;
    if s.has(flag::LINGER0) {
        marks |= fin::LINGER0;
    }
    let marker = Marker::new();
    let sending = s.tx.lock.take_within(&marker, 0);
    // Doorbells on their way to this very descriptor must not meet its next owner.
    s.tx.gate.fetch_or(bell::CLOSED, AcqRel);
    for _ in 0..1 << 16 {
        if s.tx.gate.load(Acquire) & !bell::CLOSED == 0 {
            break;
        }
        std::hint::spin_loop();
    }
    let in_memory = s.rx_in_memory();
    let is_unread = if in_memory { leaves_unread(s, back) } else { leaves_taken(s) };
    // What a program that was started with it may have read is not known.
    if is_unread && !s.is_aside() && !is_over(s, sock) {
        marks |= fin::RESET;
    }
    if in_memory {
        // Set before the doorbells go: a last one may come after them, and then the reset that the
        // kernel makes of it is known not to be one.
        dir.fin.fetch_or(marks, Release);
        drop(sending);
        fault::pass(Fault::EndMarked);
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.take_within(&marker, CALL_MS) {
            take_bells(s, back, sock);
        }
    } else {
        dir.fin.fetch_or(marks, Release);
    }
    if marks & fin::RESET != 0 || is_left_by_all(s, sock) {
        reset_on_close(sock);
    }
}

/// On TCP: whether what was taken up for a program that reads it where it lies (`here`) is unread, and no other one may read it.
fn leaves_taken(s: &Sock) -> bool {
    here::is_taken(s) && !heirs::is_any(s)
}

/// Whether bytes are unread that other programs may read still: if none of them does, the last close resets (`heirs::calm`).
fn is_left_by_all(s: &Sock, sock: i32) -> bool {
    if !heirs::is_any(s) {
        return false;
    }
    heirs::look_again(s, sock);
    here::is_taken(s) && !is_over(s, sock)
}

/// Before the kernel closes it unseen, at an exit or exec: what the library has put into the stream does
/// not count as unread, or the kernel would make a reset of the end, which destroys what is still to be
/// delivered (hazard 8).
pub fn before_unseen_close(s: &Sock, sock: i32, how: Unseen) {
    let Some(back) = s.rx.dir().filter(|_| !s.is_linked()) else { return };
    give_back(s, sock);
    take_proof(s, sock, back);
    // Behind its own end the peer would take this for one in order; else it finds what it has sent unread.
    let for_good = how != Unseen::Exec;
    let tells = for_good && !s.is_aside();
    let is_half = tells && s.has(flag::SHUT_WR) && s.rx_in_memory() && leaves_unread(s, back) && !is_over(s, sock);
    if is_half && let Some(dir) = s.tx.dir() {
        dir.fin.fetch_or(fin::WRITE | fin::CLOSED | fin::RESET, Release); // as in `before_close`
    }
    let marker = Marker::new();
    if s.rx_in_memory() {
        let held = s.rx.lock.take_within(&marker, CALL_MS);
        // The call below a handler that ends the process goes on no more, and no other one is waited for any longer.
        if held.is_some() || for_good {
            take_bells(s, back, sock);
            fault::pass(Fault::EndMarked);
        }
        if how == Unseen::End {
            held.into_iter().for_each(Held::keep); // another thread would ask to be rung once more
        }
    }
    // The peer takes either for read, so the kernel tells.
    let is_left = is_half || is_rest_unread(s, back) || leaves_taken(s);
    if tells && is_left || for_good && is_left_by_all(s, sock) {
        reset_on_close(sock);
    }
}

/// Nobody is called by bytes any more, and those that are in the stream come off. Also those that are not counted yet, where this end sends
/// through TCP: there the peer can't tell the reset that a byte makes from one of payload ([`super::end::is_reset_for_bell`]).
fn take_bells(s: &Sock, back: &Dir, sock: i32) {
    bell::silence(s, back);
    bell::drain(s, back, sock);
    if s.tx_in_memory() {
        return;
    }
    let mut patience = patience_with(s);
    // In this order: payload lies behind a mark.
    while fd::unread(sock).is_ok_and(|n| n > 0) && !follow::is_marked(s, back) {
        if patience.is_over_since_last() {
            return patience.was_in_vain();
        }
        proc::yield_now();
        bell::drain(s, back, sock);
    }
}

/// The exec that would have closed it has failed: what comes rings again. True: something has come meanwhile, of which a waiter that we
/// don't see has heard nothing.
pub fn hear_again(s: &Sock) -> bool {
    let marker = Marker::new();
    let Some(back) = s.rx.dir().filter(|_| !s.is_linked() && s.rx_in_memory()) else { return false };
    let Ok(_held) = s.rx.lock.take(&marker) else { return false };
    if back.bell.load(Relaxed) != 0 || s.rx.waiter.load(Relaxed) != 0 {
        return false; // a thread that waits has said so since
    }
    bell::arm_each(s, back);
    (s.is_public() || !s.has(flag::SEEN)) && back.head.load(Acquire) != s.rx.cursor.load(Relaxed)
}

/// Whether what a former program has left to this one (`rendezvous::rest`) lies unread.
fn is_rest_unread(s: &Sock, back: &Dir) -> bool {
    let is_rest = s.region().is_some_and(|r| r.server.load(Relaxed) == setup::REST);
    is_rest && s.rx_in_memory() && leaves_unread(s, back)
}

/// Whether the ring holds something that the program could still read.
fn leaves_unread(s: &Sock, back: &Dir) -> bool {
    back.head.load(Acquire) != s.rx.cursor.load(Relaxed) || here::is_taken(s)
}

/// Whether both ends have ended in order: what lies unread makes a reset of that no more.
fn is_over(s: &Sock, sock: i32) -> bool {
    s.has(flag::SHUT_WR) && fd::poll_now(sock, libc::POLLRDHUP) & libc::POLLHUP != 0 && kernel::has_peer_ended(s, sock)
}

/// What the peer of a link is to see of what lies unread at a close. Where both have shut down TCP has ended by then, and resets nothing.
pub(super) fn on_unread(s: &Sock, back: &Dir) -> u32 {
    let is_unread = back.head.load(Acquire) != s.rx.cursor.load(Relaxed) && !s.has(flag::SHUT_RD);
    fin::of_unread(is_unread, s.has(flag::SHUT_WR) && back.fin.load(Acquire) & (fin::WRITE | fin::RESET) == fin::WRITE)
}

/// What the peer has asked for, since it goes on without the ring, and we have not attended to yet: behind the end nothing
/// can be sent again.
pub(super) fn give_back(s: &Sock, sock: i32) {
    if s.tx_in_memory() && follow::is_asked(s) {
        switch::attend(s, sock);
    }
    debt::settle(s, sock);
}

/// From here on the connecting side can't begin. What one that has begun puts into the stream, the proof, is taken, also if it is
/// still on its way: unread, or behind the close, it would make a reset of our end, which destroys what the kernel has yet to
/// send (hazard 8).
pub(super) fn take_proof(s: &Sock, sock: i32, back: &Dir) {
    let mut patience = None;
    let mut is_over = false;
    loop {
        let is_marked = follow::is_marked(s, back);
        if s.rx_in_memory() || !is_marked && proof::refuse(s) {
            return;
        }
        let marker = Marker::new();
        let Some(held) = s.rx.lock.take_within(&marker, CALL_MS) else { return };
        let source = follow::follow(s, sock, back);
        drop(held);
        // Behind payload that the program leaves unread nothing is to be saved: TCP resets for that itself.
        let comes = !is_marked || matches!(source, Source::Tcp(0));
        if is_over || !comes || s.step.load(Relaxed) != step::NONCE {
            return;
        }
        let patience = patience.get_or_insert_with(|| patience_with(s));
        if patience.is_over_since_last() {
            return patience.was_in_vain();
        }
        let mut p = [libc::pollfd { fd: sock, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
        let _ = fd::poll(&mut p, 1);
        is_over = p[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 && kernel::has_peer_ended(s, sock);
        proc::yield_now();
    }
}

fn patience_with(s: &Sock) -> Patience {
    Patience::with_others(s, if patience::is_own_user(s) { PROOF_PATIENCE_NS } else { PATIENCE_WITH_OTHERS_NS }, 0)
}

/// Before the kernel resets the connection for the program: the peer must not take it for an orderly end.
pub fn before_reset(s: &Sock, sock: i32) {
    if let Some(dir) = s.tx.dir() {
        s.tx.gate.fetch_or(bell::CLOSED, AcqRel);
        dir.fin.fetch_or(fin::WRITE | fin::CLOSED | fin::RESET, Release);
    }
    shadow::restore_sending(s, sock);
    shadow::restore_receiving(s, sock);
}

/// The connection is being reset, and its socket may be connected again while relatives, or threads in calls, have its memory: from
/// here on that is nobody's, and mapped until the end (as behind `offer::abandon`). What comes next stays on TCP.
pub fn leave_behind(s: &Sock) {
    const YIELDS: u32 = 48;
    const TRIES: u32 = 64;
    for n in 0..=TRIES {
        let (m1, m2) = (Marker::new(), Marker::new());
        if let Some(_tx) = s.tx.lock.try_take(&m1)
            && let Some(_rx) = s.rx.lock.try_take(&m2)
        {
            return forget_stream(s);
        }
        match n {
            ..YIELDS => proc::yield_now(),
            TRIES => {}
            _ if n + 1 == TRIES => s.bury_locks(), // of a relative that died with one of them
            _ => drop(fd::poll(&mut [], 1)),
        }
    }
}

/// Both locks are held.
fn forget_stream(s: &Sock) {
    // The kernel's socket has no end and no shutdown any more. That it shows the option is to be taken back (`mark`).
    const STAYS: u32 = flag::NONBLOCK | flag::SEEN | flag::UNSEEN | flag::FORKED | flag::ENDED | flag::MARKED | flag::NOBODY;
    s.tx_medium.store(medium::TCP, Release);
    s.rx_medium.store(medium::TCP, Release);
    s.tx.forget_stream();
    s.rx.forget_stream();
    for w in [&s.role, &s.error, &s.peek_off, &s.bells_tx, &s.bells_rx, &s.tx_ring, &s.rx_ring, &s.tx_switches, &s.rx_switches, &s.ops, &s.tries] {
        w.store(0, Relaxed);
    }
    for n in s.sizes.as_flattened() {
        n.store(0, Relaxed);
    }
    s.names[0].store(0, Relaxed);
    s.peer_cookie.store(0, Relaxed);
    s.step.store(step::FAILED, Release);
    s.flags.fetch_and(STAYS, SeqCst);
}

/// The kernel shall answer its close with a reset.
pub fn reset_on_close(sock: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = net::set_opt(sock, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family;

    #[test]
    fn a_doorbell_that_is_not_counted_yet_comes_off() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let s = family::take_sock().expect("a record");
        s.rx_medium.store(medium::SHM, Relaxed);
        let comes_off = || {
            // SAFETY: all zero is a fresh direction.
            let back: Dir = unsafe { std::mem::zeroed() };
            s.bells_rx.store(0, Relaxed);
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
            theirs.write_all(&bell::BYTE).expect("a byte");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    back.bells.fetch_add(1, Release); // pairs with the Acquire in `bell::drain`
                });
                take_bells(s, &back, ours.as_raw_fd());
            });
            fd::unread(ours.as_raw_fd()) == Ok(0)
        };
        // Where the thread sleeps for longer than a close waits, it is given up.
        assert!((0..10).any(|_| comes_off()));
    }

    #[test]
    fn unread_bytes_reset_a_connection_that_has_not_ended_both_ways() {
        let s = family::take_sock().expect("a record");
        // SAFETY: all zero is a fresh direction.
        let back: Dir = unsafe { std::mem::zeroed() };
        assert_eq!(on_unread(s, &back), 0);
        back.head.store(5, Relaxed);
        assert_eq!(on_unread(s, &back), fin::RESET);
        back.fin.store(fin::WRITE, Relaxed);
        assert_eq!(on_unread(s, &back), fin::RESET, "this end has not");
        s.set(flag::SHUT_WR);
        assert_eq!(on_unread(s, &back), fin::OVER);
        back.fin.store(0, Relaxed);
        assert_eq!(on_unread(s, &back), fin::RESET, "the peer has not");
    }
}
