//! How a connection ends for who goes on: shutdown, close and death of the other side, and a peer that breaks the rules.
//! Our own close is [`super::close`]'s.
//!
//! TCP's own rule (hazard 9): what was sent is delivered, then EOF; ECONNRESET exactly if the dead
//! side left inbound bytes unread. The kernel's FIN or RST tells that the other side ended; what it
//! left unread we know from its cursor. A mark in the ring header, set before the kernel is told,
//! tells an orderly end from death.

use super::{bell, debt, follow, kernel, rx::Step};
use crate::control;
use crate::family::sock::{Sock, flag};
use crate::sys::{Errno, Res, fd, net, proc};
use crate::transport::region::{Dir, fin};
use std::sync::atomic::Ordering::*;

/// Value of `rx.end`: the kernel's socket shows a FIN.
pub const FIN: u32 = 1;
/// Value of `rx.end`: the kernel's socket was reset (its error may still be pending).
pub const RST: u32 = 2;

/// Value of `rx.end`: a FIN, and later a reset that our own sending brought about.
pub const FIN_RST: u32 = 3;

/// Value of `rx.end`: neither end ended it, but this host's kernel (`ss -K`); its error is kept.
pub const ABORTED: u32 = 4;

/// Value of `rx.end`: we have reset it ([`super::resets`]).
pub const OURS: u32 = 5;

/// As [`found`] for a reset. Where it would be taken for the kernel's answer to a doorbell, its error says
/// whether it came from the peer at all. The kernel tells it once, and nobody else will want to know: what a send
/// gets then is not the kernel's to say either ([`answer_send`]).
pub fn found_reset(s: &Sock, sock: i32) {
    found(s, RST);
    if s.rx.dir().is_some_and(|dir| is_reset_for_bell(s, dir))
        && let Ok(e) = net::get_opt::<i32>(sock, libc::SOL_SOCKET, libc::SO_ERROR)
        && !matches!(e, 0 | libc::ECONNRESET | libc::EPIPE)
    {
        s.error.store(e as u32, Relaxed);
        found(s, ABORTED);
    }
}

/// Notes what the kernel's socket shows. A FIN may be followed by an RST.
pub fn found(s: &Sock, what: u32) {
    let old = s.rx.end.load(Relaxed);
    let new = if old == FIN && what == RST { FIN_RST } else { old.max(what) };
    s.rx.end.store(new, Release); // pairs with the Acquire in `rx::at_end`
}

/// A call of ours took the error of the kernel's socket, which tells it once: the program gets it from
/// its next call.
pub fn took(s: &Sock, e: Errno) {
    if matches!(e.0, libc::EAGAIN | libc::EINTR | libc::EPIPE) || is_of_another_file(e) {
        return; // none, or one that stays
    }
    found(s, RST);
    if !s.rx.dir().is_some_and(|dir| is_reset_for_bell(s, dir)) {
        let _ = s.error.compare_exchange(0, e.0 as u32, Relaxed, Relaxed);
    }
}

/// What the kernel says of a number that names the connection no longer: another thread has closed it.
pub fn is_of_another_file(e: Errno) -> bool {
    matches!(e.0, libc::EBADF | libc::ENOTSOCK | libc::ENOTTY)
}

/// The reset is the kernel's answer to a doorbell that a dead peer left unread: TCP would have shown
/// its end only. Not while we receive through TCP, or are to when the ring is read: there a reset may have destroyed
/// what was on its way.
pub fn is_reset_for_bell(s: &Sock, dir: &Dir) -> bool {
    s.rx_in_memory()
        && !follow::is_marked(s, dir)
        && s.rx.end.load(Relaxed) == RST
        && dir.fin.load(Acquire) & (fin::RESET | fin::LINGER0) == 0
        && left_nothing(s)
}

/// What a send gets where the kernel's socket would answer otherwise than TCP's at the same state of
/// the stream: after the peer's death. None: the kernel knows.
pub fn answer_send(s: &Sock, sock: i32, n: usize) -> Option<Res> {
    let dir = s.rx.dir()?;
    let verdict = match s.rx.end.load(Relaxed) {
        0 if kernel::is_behind_ring(s) && shows_death(s, sock, dir) => Verdict::Died,
        0 => return None,
        _ => verdict(s, sock, dir),
    };
    match verdict {
        Verdict::Died if take_death(s) => Some(Err(Errno(libc::ECONNRESET))),
        Verdict::Died => Some(Err(Errno(libc::EPIPE))),
        _ if is_reset_for_bell(s, dir) => {
            let first = s.flags.fetch_or(flag::SWALLOWED, AcqRel) & flag::SWALLOWED == 0;
            Some(if first { Ok(n) } else { Err(Errno(libc::EPIPE)) })
        }
        Verdict::Reset => error_of_death(s, sock).map(Err),
        _ => None,
    }
}

/// A send of ours got `e`, which the kernel took for the answer to sending behind the FIN of a peer that died with bytes of ours unread
/// in its ring, of which the kernel knows nothing: from here on the connection is [`Verdict::Died`].
pub fn is_behind_death(s: &Sock, sock: i32, e: Errno) -> bool {
    !s.has(flag::SHUT_WR) && is_error_of_death(s, sock, e) // behind our own FIN every send gets it
}

/// What ends a call that has sent something: TCP keeps it for the next one. Not what our own shutdown has brought about, of which the
/// kernel's socket keeps nothing.
pub fn keep(s: &Sock, sock: i32, e: Errno) {
    let is_own = e.0 == libc::EPIPE && s.has(flag::SHUT_WR);
    if !matches!(e.0, libc::EAGAIN | libc::EINTR) && !is_own && !is_behind_death(s, sock, e) {
        let _ = s.error.compare_exchange(0, e.0 as u32, Relaxed, Relaxed);
    }
}

/// As [`is_behind_death`] for an error that waited in the kernel's socket: there our own FIN is no reason for EPIPE, and a shutdown that
/// comes too late has set its flag.
fn is_error_of_death(s: &Sock, sock: i32, e: Errno) -> bool {
    let died = e.0 == libc::EPIPE && !was_ours(s) && s.rx.dir().is_some_and(|d| is_killed(s, sock, d));
    if died {
        s.rx.end.store(FIN_RST, Relaxed);
    }
    died
}

/// The error that the kernel has told, as TCP would have told it.
pub fn as_of_tcp(s: &Sock, sock: i32, e: Errno) -> Errno {
    if !is_death_told(s) && is_error_of_death(s, sock, e) { Errno(libc::ECONNRESET) } else { e }
}

/// The kernel's error, where bytes of ours lie unread in the peer's ring: if that is dead it is taken here, since the kernel would tell
/// EPIPE if a FIN had come before. None: there is no error.
pub fn error_of_death(s: &Sock, sock: i32) -> Option<Errno> {
    if is_death_told(s) || !s.rx.dir().is_some_and(|d| is_killed(s, sock, d)) {
        return None;
    }
    let e = net::get_opt::<i32>(sock, libc::SOL_SOCKET, libc::SO_ERROR).ok().filter(|e| *e != 0)?;
    let e = as_of_tcp(s, sock, Errno(e));
    if ends(e) {
        take_death(s);
    }
    Some(e)
}

/// Whether nothing is left to tell after this error.
pub fn ends(e: Errno) -> bool {
    matches!(e.0, libc::ECONNRESET | libc::ECONNABORTED | libc::ETIMEDOUT)
}

/// Whether the peer died with bytes of ours unread: TCP would have shown a reset.
pub fn has_died(s: &Sock, sock: i32) -> bool {
    s.rx.end.load(Relaxed) != 0 && s.rx.dir().is_some_and(|d| verdict(s, sock, d) == Verdict::Died)
}

/// What the end of a connection is for the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not ended.
    Open,
    /// The peer sends nothing more.
    Eof,
    /// Reset, and the kernel's socket says so itself.
    Reset,
    /// Reset, but the kernel's socket has a FIN only: the peer died with our bytes unread in the ring, or we have reset it.
    Died,
}

/// Judges by the kernel's socket, the peer's marks and its cursor.
pub fn verdict(s: &Sock, sock: i32, dir: &Dir) -> Verdict {
    let marks = dir.fin.load(Acquire);
    match s.rx.end.load(Relaxed) {
        // A dead peer's kernel resets when a doorbell was unread; TCP does so for payload only.
        RST if is_reset_for_bell(s, dir) => Verdict::Eof,
        RST | ABORTED => Verdict::Reset,
        OURS => Verdict::Died,
        FIN | FIN_RST if comes_reset(marks) && has_reset_come(s, sock) => Verdict::Reset,
        FIN | FIN_RST => {
            if marks & fin::RESET != 0 || is_killed(s, sock, dir) {
                Verdict::Died
            } else {
                Verdict::Eof
            }
        }
        // The mark comes a moment before the FIN; nothing follows it either. A mark of a reset waits
        // for the kernel's. So does one of a stream that goes on through TCP: the descriptor may have gone to another process.
        _ if marks & fin::WRITE != 0 && !comes_reset(marks) && !(s.rx_in_memory() && follow::is_marked(s, dir)) => Verdict::Eof,
        _ => Verdict::Open,
    }
}

/// Whether the reset that a close has marked, behind a FIN, is there: then the kernel has the error of it.
#[cold]
fn has_reset_come(s: &Sock, sock: i32) -> bool {
    if s.rx.end.load(Relaxed) == FIN {
        kernel::look_at_kernel_for_sender(s, sock);
    }
    s.rx.end.load(Relaxed) == FIN_RST
}

/// Whether the peer went without a word and left bytes unread in our ring.
fn is_killed(s: &Sock, sock: i32, dir: &Dir) -> bool {
    is_killed_by(s, sock, dir, s.rx.end.load(Relaxed) == FIN)
}

/// `is_fin`: its kernel shows an end, and no reset.
fn is_killed_by(s: &Sock, sock: i32, dir: &Dir, is_fin: bool) -> bool {
    let marks = dir.fin.load(Acquire);
    marks & (fin::WRITE | fin::CLOSED) == 0 && s.tx.switches.load(Relaxed) > 0 && !ring_was_read(s, sock, is_fin)
}

/// As [`Verdict::Died`], while receiving is on TCP and payload that came before the end is still to be read: `kernel` is what poll says
/// of RDHUP. The end itself is not noted: whoever waits would be told that the stream is through.
pub fn is_death(s: &Sock, sock: i32, dir: &Dir, kernel: u32) -> bool {
    const RDHUP: u32 = libc::POLLRDHUP as u32;
    const HUP: u32 = libc::POLLHUP as u32;
    // Behind a link, and of a reset, the kernel alone knows.
    kernel & (RDHUP | HUP) == RDHUP && s.region_of_peers().is_some() && !s.has(flag::SHUT_RD) && is_killed_by(s, sock, dir, true)
}

/// As [`is_death`], and asks the kernel.
fn shows_death(s: &Sock, sock: i32, dir: &Dir) -> bool {
    !s.rx_in_memory() && is_death(s, sock, dir, fd::poll_now(sock, libc::POLLRDHUP) as u16 as u32)
}

/// What a reader gets when the ring is drained. None: not ended.
pub fn outcome(s: &Sock, sock: i32, dir: &Dir, peek: bool) -> Option<Step> {
    match verdict(s, sock, dir) {
        Verdict::Open => None,
        Verdict::Eof => {
            // Nobody looks for doorbells behind the end, and one that stays unread makes a reset of ours,
            // which destroys what we still send (hazard 8).
            bell::drain(s, dir, sock);
            Some(Step::End)
        }
        Verdict::Reset => {
            // The kernel's own answer, which takes the error; doorbells before it are not data.
            bell::drain(s, dir, sock);
            match take_left(s) {
                0 => {}
                e => {
                    take_death(s); // told
                    return Some(Step::Failed(Errno(e as i32)));
                }
            }
            let mut b = [0u8; 1];
            let flags = libc::MSG_DONTWAIT | if peek { libc::MSG_PEEK } else { 0 };
            match net::recv_slice(sock, &mut b, flags) {
                Err(e) if e.0 != libc::EAGAIN => {
                    let e = as_of_tcp(s, sock, e);
                    take_death(s); // told
                    Some(Step::Failed(e))
                }
                // A send of ours had the kernel's error, which was another one behind the dead end's FIN.
                _ if is_killed(s, sock, dir) && take_death(s) => Some(Step::Failed(Errno(libc::ECONNRESET))),
                _ => Some(Step::End),
            }
        }
        Verdict::Died if take_death(s) => Some(Step::Failed(Errno(libc::ECONNRESET))),
        Verdict::Died => Some(Step::End),
    }
}

/// Whether the peer has marked the end of its sending, with nothing more to wait for.
pub fn is_marked_end(dir: &Dir) -> bool {
    let marks = dir.fin.load(Acquire);
    marks & fin::WRITE != 0 && !comes_reset(marks)
}

/// Marks of a close that resets: the kernel shows it in a moment.
fn comes_reset(marks: u32) -> bool {
    marks & fin::CLOSED != 0 && marks & (fin::RESET | fin::LINGER0) != 0
}

/// Takes the ECONNRESET of a peer that died, once: recv, send and SO_ERROR share it.
pub fn take_death(s: &Sock) -> bool {
    s.flags.fetch_or(flag::ERROR_PENDING, AcqRel) & flag::ERROR_PENDING == 0
}

/// A call that has moved a part keeps its error for the next one, or for SO_ERROR.
pub fn leave(s: &Sock, e: Errno) {
    s.error.store(e.0 as u32, Relaxed);
}

/// Takes the error that a call before has left, for a receive; 0: none. A broken pipe that a send has left is for the next one: behind
/// an end the kernel tells a receive nothing else.
pub fn take_left(s: &Sock) -> u32 {
    match s.error.load(Relaxed) as i32 {
        0 | libc::EPIPE => 0,
        _ => s.error.swap(0, Relaxed),
    }
}

/// The error that a call before has left (`Sock::error`) is told now.
pub fn took_left(s: &Sock, e: u32) -> Errno {
    if e as i32 == libc::ECONNRESET {
        take_death(s);
    }
    Errno(e as i32)
}

/// Whether the ECONNRESET of a dead peer was reported.
pub fn is_death_told(s: &Sock) -> bool {
    s.has(flag::ERROR_PENDING)
}

/// Whether the ECONNRESET of a dead peer is still to be reported.
pub fn death_is_pending(s: &Sock, sock: i32) -> bool {
    !is_death_told(s) && is_dead(s, sock)
}

/// Whether the peer has died as [`Verdict::Died`] says.
pub fn is_dead(s: &Sock, sock: i32) -> bool {
    s.rx.dir().is_some_and(|d| verdict(s, sock, d) == Verdict::Died || shows_death(s, sock, d))
}

/// Whether we reset the connection ourselves.
pub fn was_ours(s: &Sock) -> bool {
    s.rx.end.load(Relaxed) == OURS
}

/// Whether the peer had read all that we left in its ring. After a way back: what lies before the mark, and what
/// it asked for through TCP lies unread unless it has followed the mark, or the program that has the connection from it,
/// which knows of no mark, has read it.
fn ring_was_read(s: &Sock, sock: i32, is_fin: bool) -> bool {
    let (made, end) = (s.tx.switches.load(Relaxed), s.tx.cursor.load(Relaxed));
    s.tx.dir().is_none_or(|d| {
        let to = if made.is_multiple_of(2) { d.at_ring(made).load(Relaxed) } else { end };
        let tail = d.tail.load(Acquire);
        // One that has followed has passed what comes again.
        (tail == to || tail == end) && (to == end || d.passed.load(Acquire) == made || is_fin && tcp_was_read(s, sock))
    })
}

/// Whether all that went through TCP was read by whoever has the peer's socket: its kernel has taken all of it and shows an
/// end, where it shows a reset if some of it lies unread.
fn tcp_was_read(s: &Sock, sock: i32) -> bool {
    !s.tx_in_memory() && !debt::owes(s) && fd::unacked(sock) == Ok(0)
}

/// Whether the peer had read all payload of ours: of the ring, and of TCP. There `taken` says how far it had come, and
/// what it had followed, which of our stretches of TCP may hold payload that it never came to.
fn left_nothing(s: &Sock) -> bool {
    s.tx.dir().is_none_or(|d| {
        let (made, sent) = (s.tx.switches.load(Relaxed), s.tx.kernel.load(Relaxed));
        let at = |n: u32| d.at_kernel(n).load(Relaxed);
        let taken = d.taken.load(Acquire);
        let in_memory = made % 2 == 1;
        let of_tcp = match made.wrapping_sub(d.passed.load(Acquire)) {
            0 => in_memory || taken == sent,
            1 if in_memory => taken >= at(made),
            1 => sent == at(made),
            2 if !in_memory => taken >= at(made - 1) && sent == at(made),
            _ => false,
        };
        of_tcp && d.tail.load(Acquire) == s.tx.cursor.load(Relaxed)
    })
}

/// Another thread has disconnected the socket while this one waited, and may have connected it again: what comes, or is left to be sent, is for
/// other calls (`sk_wait_event` in the kernel since 6.6). `done`: what has been moved before.
#[cold]
pub fn disconnected(done: usize) -> Res {
    if done > 0 { Ok(done) } else { Err(Errno(libc::EPIPE)) }
}

/// Another thread has closed the socket before this call had said that it is in it. As [`disconnected`].
#[cold]
pub fn closed(done: usize) -> Res {
    if done > 0 { Ok(done) } else { Err(Errno(libc::EBADF)) }
}

/// Raises SIGPIPE for a send on a finished direction unless the program asked for none.
pub fn pipe_signal(flags: i32) {
    if flags & libc::MSG_NOSIGNAL != 0 {
        return;
    }
    if control::is_restricted() {
        proc::raise(libc::SIGPIPE); // the call that was asked of its filter
    } else {
        proc::break_pipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::resets;
    use crate::family::sock::medium;
    use smcr_proto::reason::Reason;

    #[test]
    fn a_reset_of_ours_is_told_once_whatever_its_reason() {
        // SAFETY: all zero is a fresh record, and so is a direction of a page.
        let (s, dir): (Sock, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        s.rx_medium.store(medium::SHM, Relaxed);
        s.note(Reason::CountMismatch);
        resets::reset(&s, -1);
        assert!(was_ours(&s) && !is_reset_for_bell(&s, &dir));
        assert!(matches!(outcome(&s, -1, &dir, false), Some(Step::Failed(Errno(libc::ECONNRESET)))));
        assert!(matches!(outcome(&s, -1, &dir, false), Some(Step::End)));
        found(&s, FIN);
        assert!(was_ours(&s), "its FIN comes later");
    }

    #[test]
    fn a_broken_pipe_that_a_send_has_left_is_for_sends() {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        s.error.store(libc::EPIPE as u32, Relaxed);
        assert_eq!((take_left(&s), s.error.load(Relaxed)), (0, libc::EPIPE as u32));
        s.error.store(libc::ETIMEDOUT as u32, Relaxed);
        assert_eq!((take_left(&s), s.error.load(Relaxed)), (libc::ETIMEDOUT as u32, 0));
    }
}
