//! Receiving: from the TCP stream up to the switch, then from the ring, and back, as one stream.
//!
//! Called by the socket table for sockets whose reads are careful. An attempt never waits and never
//! takes a byte beyond the switch offset; PEEK ([`peek`]), WAITALL and the low-water mark work across it.

use super::bufs::Bufs;
use super::follow::{self, Source};
use super::handlers::Since;
use super::rounds::Rounds;
use super::{
    asleep, bell, beside, bulk, end, fast, from_tcp, here, idle_sets, inside, kernel, linked, peek, proof, resets, seldom, shadow, spin, switch,
    urgent, wait,
};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::fault::{self, Step as Fault};
use crate::sys::{self, Errno, Res, fd};
use crate::transport::region::{self, Dir};
use smcr_proto::cursor;
use std::sync::atomic::Ordering::*;

/// What one attempt did.
pub enum Step {
    /// Bytes delivered.
    Moved(usize),
    /// Nothing there.
    Empty,
    /// The peer sends nothing more.
    End,
    /// The call ends with this errno.
    Failed(Errno),
}

/// Flag of our own, no bit of Linux's: the call is read or readv.
pub const FROM_READ: i32 = 1 << 24;
/// Flag of our own as well: the caller has polled in vain.
pub const POLLED: i32 = 1 << 28;
/// And this: the call is splice, which knows of no low-water mark, and moves no SO_PEEK_OFF.
pub const ANY: i32 = 1 << 23;
/// All of them, which mean nothing where a program gives them.
pub const OWN_FLAGS: i32 = FROM_READ | POLLED | ANY;

/// Doorbells spent on a reader that we have seen wait, would wait here and never had to, until it is taken for one that has no
/// other waiter.
const NEVER_REFUSED: u32 = 64;

/// Wishes of the peer's that one call follows: a peer can wish faster than they are looked at.
const ASKED: u32 = 64;

/// Receives as recv(2) would, for a careful socket.
pub fn receive(s: &Sock, mut sock: i32, bufs: Bufs, flags: i32) -> Res {
    crate::control::poll(); // a program that always finds something never waits
    let peek = flags & libc::MSG_PEEK != 0;
    let mut nonblock = flags & libc::MSG_DONTWAIT != 0 || s.has(flag::NONBLOCK);
    let low = if flags & ANY != 0 { 1 } else { s.low_water.load(Relaxed) as usize };
    let enough = if flags & libc::MSG_WAITALL != 0 { bufs.len() } else { bufs.len().min(low.max(1)) };
    let mut got = 0;
    let (record, connection) = (s.generation.load(Relaxed), s.disconnects.load(Relaxed));
    let (mut rounds, mut asked) = (Rounds::default(), 0u32);
    let since = if flags & POLLED != 0 { Since::polling() } else { Since::now() };
    let mut timer = wait::Timer::since(s.recv_timeout.load(Relaxed), since);
    if bufs.len() == 0 && flags & FROM_READ != 0 {
        return Ok(0); // read(2) of nothing returns at once, recv(2) waits for something
    }
    let may_poll = flags & POLLED == 0 && !nonblock && !peek && bufs.len() != 0;
    if may_poll && idle_sets::are_beside(s) {
        idle_sets::look(s);
    }
    // The ring was empty a moment ago, and this reader waits: polling comes before the look at everything.
    let polls = may_poll && s.has(flag::BLOCKS);
    let mut visit = if polls || flags & POLLED != 0 { inside::visit(s, &timer) } else { None };
    let mut polled = flags & POLLED != 0 || polls && wait::has_polled(s);
    let (came, mut waits) = (s.rx.kernel.load(Relaxed), 0u32);
    let mut is_all = false; // a PEEK finds no more than it has
    let mut moves_on = false;
    loop {
        if got == 0
            && let Some((p, n)) = bufs.single()
        {
            // SAFETY: the program's buffer, valid for writes as it promised the kernel.
            if let Some(n) = unsafe { fast::recv_again(s, p, n, flags & !POLLED) } {
                return Ok(n);
            }
        }
        // With SO_PEEK_OFF, here or in the kernel, each look begins behind the one before.
        moves_on |= peek && (s.has(flag::PEEK_OFF) || got > 0 && peek::kernel_has_offset(sock));
        if peek && !moves_on {
            got = 0;
        }
        if visit.is_some() || inside::has_moved(s) {
            let Some(now) = inside::descriptor_in(s, record, sock) else { return end::closed(got) };
            sock = now;
        }
        let lies_here = here::is_here(s);
        match attempt(s, sock, &bufs, got, flags) {
            // The stream goes on elsewhere. What a peer claims may say so without end.
            Step::Moved(0) => {
                if !rounds.are_too_fast() {
                    continue;
                }
                if got >= enough && got > 0 && !peek {
                    return Ok(got);
                }
            }
            Step::Moved(n) => {
                got += n;
                if waits == 0 && kernel::is_unknown(s) {
                    wait::was_called_rightly(s);
                }
                if !peek && urgent::is_near(s) && urgent::is_at_mark(s) {
                    return Ok(got); // a call ends before an urgent byte (tcp_recvmsg)
                }
                let is_more = |d| follow::pending(s, d) || follow::is_at_switch(s, d) || lies_here && !s.rx_in_memory() && fd::unread(sock) != Ok(0);
                let more = !peek && got < bufs.len() && s.rx.dir().is_some_and(is_more);
                if got == bufs.len() || (got >= enough && !more) || is_all {
                    return Ok(got);
                }
                if !peek {
                    rounds = Rounds::default();
                    continue;
                }
            }
            Step::Empty if asked < ASKED && follow::is_asked(s) && switch::attend(s, sock) => {
                asked += 1;
                continue;
            }
            Step::Empty if got >= enough && !peek && got > 0 => return Ok(got),
            Step::Empty if is_all && got > 0 => return Ok(got),
            Step::Empty => {}
            Step::End => return Ok(got),
            Step::Failed(e) if got == 0 => return Err(e),
            Step::Failed(Errno(libc::EFAULT)) => return Ok(got), // this call's own, not the socket's
            Step::Failed(e) => {
                end::leave(s, e);
                return Ok(got);
            }
        }
        if nonblock {
            if got > 0 {
                return Ok(got);
            }
            if seldom::has_come(s) {
                continue;
            }
            if (!s.has(flag::SEEN) || s.is_public()) && kernel::arm_unseen(s, sock) && !rounds.are_too_fast() {
                continue;
            }
            if s.is_linked() && !s.has(flag::SEEN) {
                linked::read_in_vain(s);
            }
            return Err(Errno(libc::EAGAIN));
        }
        if bufs.len() == 0 && s.rx.dir().is_none() {
            return Ok(0);
        }
        if waits == 0 && shadow::is_nonblocking_by_others(s, sock) {
            nonblock = true;
            continue;
        }
        if visit.is_none() {
            visit = inside::visit(s, &timer);
            let Some(now) = inside::descriptor_in(s, record, sock) else { return end::closed(got) };
            sock = now;
        }
        let begun = got > 0;
        if waits == 0 && kernel::is_unknown(s) {
            wait::may_have_been_called(s, sock, came);
        }
        waits += 1;
        if s.is_another(connection) {
            return end::disconnected(got);
        }
        let mut waited = match peek && begun {
            true => wait::for_more(s, sock, &mut timer).map(|over| is_all = over),
            false => wait::for_data(s, sock, &mut timer, wait::Asks { begun, polled }),
        };
        polled = false;
        if waited.is_ok() && rounds.are_too_fast() {
            waited = asleep::a_moment(sock, &mut timer);
        }
        match waited {
            Ok(()) if s.is_another(connection) => return end::disconnected(got),
            Ok(()) if s.rx.in_kernel.load(Relaxed) != 0 => beside::give_way(s, sock),
            Ok(()) => {}
            // Where nothing is wanted the kernel waits once, and that is all.
            Err(_) if got > 0 || bufs.len() == 0 => return Ok(got),
            Err(e) => return Err(e),
        }
    }
}

/// One pass under the lock.
pub fn attempt(s: &Sock, sock: i32, bufs: &Bufs, from: usize, flags: i32) -> Step {
    let marker = Marker::new();
    let Ok(held) = s.rx.lock.take(&marker) else {
        return Step::Failed(Errno(libc::EAGAIN));
    };
    let step = sys::caught(|| locked(s, sock, bufs, from, flags));
    drop(held);
    let step = step.unwrap_or(Step::Failed(Errno(libc::EIO)));
    if let Some(dir) = s.rx.dir()
        && (bell::unread(s, dir) != 0 && (s.rx.waiter.load(Relaxed) == bell::EACH || !s.has(flag::SEEN | flag::BLOCKS))
            || kernel::is_unknown(s)
            || kernel::is_unasked(s)
            || s.is_public())
        && flags & libc::MSG_PEEK == 0
        && matches!(step, Step::Moved(_))
        && s.rx_in_memory()
    {
        let again = Marker::new();
        if let Ok(_held) = s.rx.lock.take(&again) {
            let waits = flags & libc::MSG_DONTWAIT == 0 && !s.has(flag::NONBLOCK) && !s.is_public();
            let has_spent = s.has(flag::SEEN) && s.bells_rx.load(Relaxed) > NEVER_REFUSED;
            if waits && (s.has(flag::BLOCKS) || has_spent) {
                kernel::reads_blocking(s, dir);
            } else {
                kernel::after_read(s, dir, sock);
            }
        }
    }
    if let Step::Moved(n) = step
        && s.rx_in_memory()
        && n > 0
    {
        switch::answer_tx(s, sock);
        if s.has(flag::BEHIND) || !s.tx_in_memory() {
            kernel::leave_no_bell(s, sock);
        }
    }
    if s.is_aside() {
        here::ask_anew(s, sock);
    }
    step
}

#[inline]
fn locked(s: &Sock, sock: i32, bufs: &Bufs, from: usize, flags: i32) -> Step {
    let Some(dir) = s.rx.dir() else { return from_tcp::read(s, sock, None, bufs, from, flags, u64::MAX) };
    if s.rx.gate.load(Relaxed) != 0
        && let Some(step) = here::read(s, sock, dir, bufs, from, flags).or_else(|| wait_for_what_was_taken(s, sock, dir))
    {
        return match step {
            Step::Moved(n) if flags & libc::MSG_PEEK != 0 && n > 0 => Step::Moved(n + behind_here(s, sock, dir, bufs, from + n, flags)),
            step => step,
        };
    }
    let mut turns = 0;
    loop {
        match follow::follow_on(s, sock, dir, &mut turns) {
            Source::Ring(0) => return at_end(s, sock, dir, flags, 0),
            Source::Ring(n) => return from_ring(s, sock, dir, bufs, from, flags, n),
            Source::Tcp(_) if from > 0 && flags & libc::MSG_PEEK == 0 && fd::is_at_mark(sock) => return Step::End, // as in `receive`
            Source::Tcp(limit) => match from_tcp::read(s, sock, Some(dir), bufs, from, flags, limit) {
                Step::Moved(0) => turns += 1, // the stream moved on: follow it
                step => return step,
            },
            // Before the proof the claims are a stranger's, who must not harm this connection.
            Source::Broken if proof::is_due(s) => {
                proof::has_failed(s);
                return from_tcp::read(s, sock, None, bufs, from, flags, u64::MAX);
            }
            Source::Broken => return Step::Failed(resets::broken(s, sock)),
        }
    }
}

/// A look has seen what is read [`here`], and wants more: what TCP or the ring has behind that.
#[cold]
fn behind_here(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, flags: i32) -> usize {
    if from >= bufs.len() || s.has(flag::PEEK_OFF) || peek::kernel_has_offset(sock) {
        return 0;
    }
    let step = match follow::follow(s, sock, dir) {
        Source::Ring(n) if n > 0 => from_ring(s, sock, dir, bufs, from, flags, n),
        Source::Tcp(limit) if limit > 0 => from_tcp::read(s, sock, Some(dir), bufs, from, flags, limit),
        _ => return 0,
    };
    if let Step::Moved(n) = step { n } else { 0 }
}

/// Another thread, or a relative, gives the connection away: what it has taken up comes again, and before all else.
#[cold]
fn wait_for_what_was_taken(s: &Sock, sock: i32, dir: &Dir) -> Option<Step> {
    if here::is_begun(s) {
        return None; // a look that begins behind it
    }
    let is_broken = matches!(follow::follow(s, sock, dir), Source::Broken);
    if is_broken || s.rx.gate.load(Relaxed) == 0 {
        return None;
    }
    match s.rx.end.load(Relaxed) {
        0 => Some(Step::Empty),
        _ if is_given_away(s) => Some(Step::Empty),
        // It does not come any more, and what lies behind it is not what comes next.
        _ if end::take_death(s) => Some(Step::Failed(Errno(libc::ECONNRESET))),
        _ => Some(Step::End),
    }
}

/// Whether somebody who lives is at it.
fn is_given_away(s: &Sock) -> bool {
    s.rx.leaving.bury();
    s.rx.leaving.is_taken() && !s.rx.leaving.is_own()
}

fn from_ring(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, flags: i32, avail: usize) -> Step {
    if bufs.len() == 0 {
        // Where nothing is wanted, that something is there is all there is to know.
        return if peek::offset_in_ring(s, dir, flags) < avail { Step::End } else { at_end(s, sock, dir, flags, avail as u64) };
    }
    let skip = peek::offset_in_ring(s, dir, flags);
    let n = avail.saturating_sub(skip).min(bufs.len() - from);
    let copies = n > 0 && flags & libc::MSG_TRUNC == 0;
    if copies && bufs.are_nowhere(from, n) {
        return Step::Failed(Errno(libc::EFAULT));
    }
    let Some((ring, size)) = bulk::ring_to_read(s, dir) else {
        return Step::Failed(resets::broken(s, sock));
    };
    let n = n.min(size); // what is there was counted with the size that was claimed then
    let tail = s.rx.cursor.load(Relaxed);
    let copy = |pos: u64, at: usize, n: usize| {
        let mut pos = pos;
        bufs.pieces(at, n, |p, len| {
            // SAFETY: the program's buffer, valid for writes as it promised the kernel.
            unsafe { ring.get(pos, p, len) };
            pos += len as u64;
        });
    };
    if flags & libc::MSG_PEEK != 0 {
        if copies {
            copy(tail + skip as u64, from, n);
        }
        let behind = if n < bufs.len() - from { peek::behind_ring(s, sock, dir, bufs, from + n, skip + n, flags) } else { 0 };
        peek::move_offset(s, n + behind);
        return match n + behind {
            0 => at_end(s, sock, dir, flags, avail as u64), // all was seen before
            n => Step::Moved(n),
        };
    }
    let mut done = 0;
    while done < n {
        let part = (n - done).min(size / 4);
        if copies {
            copy(tail + done as u64, from + done, part);
        }
        done += part;
        give_back(s, dir, size, tail + done as u64);
    }
    peek::has_read(s, done, flags);
    urgent::after_read(s, dir);
    s.count_size(1, done);
    Step::Moved(done)
}

/// Where the next byte of the ring will stand, for [`crate::sys::mem::fetch`] alone: what the peer says of
/// the base moves it inside the ring.
#[inline(always)]
pub fn next_byte(s: &Sock, dir: &Dir) -> *const u8 {
    let size = ((s.rx.size.load(Relaxed) & !region::size::WISH) as usize).max(1);
    let off = cursor::offset(s.rx.cursor.load(Relaxed), dir.base.load(Relaxed), size);
    s.rx.ring.load(Relaxed).wrapping_add(off)
}

/// Gives the room below `now` back to the producer. The lock is held.
#[inline(always)]
pub fn give_back(s: &Sock, dir: &Dir, size: usize, now: u64) {
    dir.consumer_cpu.store(spin::cpu(), Relaxed);
    give_back_from_here(s, dir, size, now);
}

/// As [`give_back`] for a thread that has told where it runs.
#[inline(always)]
pub fn give_back_from_here(s: &Sock, dir: &Dir, size: usize, now: u64) {
    fault::pass(Fault::Taken);
    let before = s.rx.cursor.load(Relaxed);
    s.rx.cursor.store(now, Relaxed);
    // The bytes were copied out: pairs with the Acquire in `tx::look_at_tail`.
    dir.tail.store(now, Release);
    fault::pass(Fault::GivenBack);
    bell::after_consume(s, dir, size, before, now);
}

/// The ring holds nothing behind the `seen` bytes that a PEEK has passed over: whether the stream has ended. Asks the kernel when there
/// is a sign of it, and now and then without (a non-blocking reader that never waits).
fn at_end(s: &Sock, sock: i32, dir: &Dir, flags: i32, seen: u64) -> Step {
    let (is_marked, was_ended) = (end::is_marked_end(dir), s.rx.end.load(Acquire) != 0);
    if kernel::may_have_ended(s, dir) {
        kernel::look_at_kernel(s, sock, dir);
    }
    // Before the ring is looked at again: what was published before the end is there then. A mark that comes later, and an end that another
    // thread finds, are for the next attempt. Acquire pairs with the Release in `end::found`, that of the mark with `shut::before_shutdown`.
    let may_end = is_marked || s.rx.end.load(Acquire) != 0;
    // The end came behind what was published last.
    if follow::in_ring(s, dir) > seen {
        return Step::Moved(0);
    }
    // A switch that was made after `follow` looked: the kernel's end lies behind what TCP brings.
    if follow::is_marked(s, dir) {
        if s.rx.end.load(Relaxed) == 0 {
            return Step::Empty;
        }
        // What a PEEK has seen of the ring stays there, and TCP behind it has been looked at: whether that was all is known if it had ended then.
        let goes_on = if seen > 0 { !was_ended } else { follow::can_follow(s, dir) };
        if goes_on {
            return Step::Moved(0);
        }
    }
    match end::take_left(s) {
        0 => {}
        e => return Step::Failed(end::took_left(s, e)),
    }
    fault::pass(Fault::FoundEmpty);
    let outcome = if may_end { end::outcome(s, sock, dir, flags & libc::MSG_PEEK != 0) } else { None };
    match outcome {
        Some(step) => step,
        None if s.has(flag::SHUT_RD) => Step::End,
        None => Step::Empty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is there was counted while the peer claimed a larger ring.
    #[test]
    fn no_more_is_copied_than_the_ring_has() {
        // SAFETY: all zero is a fresh record, and so is a direction of a page.
        let (s, dir): (Sock, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let (mut ring, mut to) = (vec![7u8; region::RING_MIN], vec![0u8; 2 * region::RING_MIN]);
        s.rx.ring.store(ring.as_mut_ptr(), Relaxed);
        dir.size.store(region::RING_MIN as u32, Relaxed);
        let part = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
        // SAFETY: memory of this test's.
        let bufs = unsafe { Bufs::new(&part) };
        let step = from_ring(&s, -1, &dir, &bufs, 0, libc::MSG_PEEK, 2 * region::RING_MIN);
        assert!(matches!(step, Step::Moved(region::RING_MIN)));
        assert!(to[..region::RING_MIN].iter().all(|b| *b == 7) && to[region::RING_MIN..].iter().all(|b| *b == 0));
    }
}
