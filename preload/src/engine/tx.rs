//! Sending: into the ring while the direction is in memory, else through the kernel.
//!
//! Called by the socket table with the program's buffers. [`Step::Kernel`] tells the caller that the
//! stream goes on through TCP now.

use super::bufs::Bufs;
use super::pace::Kind;
use super::within::Within;
use super::{behind, bell, bulk, called, debt, end, inside, kernel, linked, near, resets, seldom, shadow, spin, switch, urgent, wait};
use crate::family::lock::Marker;
use crate::family::process::count;
use crate::family::sock::{Sock, flag};
use crate::fault::{self, Step as Fault};
use crate::real;
use crate::sys::{self, Errno, Res, mem};
use crate::transport::region::{self, Dir, RING_MAX};
use crate::transport::ring::Ring;
use smcr_proto::cursor;
use smcr_proto::page::Counter;
use std::sync::atomic::Ordering::*;

/// What one attempt did.
pub enum Step {
    /// Bytes put into the ring.
    Moved(usize),
    /// No room.
    Full,
    /// The direction is on TCP.
    Kernel,
    /// The call ends with this errno.
    Failed(Errno),
}

/// Something that fills ring memory: the program's buffers, or a file that is read into the ring.
pub trait Source {
    /// Bytes left to send.
    fn left(&self) -> usize;
    /// Whether the last byte is urgent.
    fn is_urgent(&self) -> bool {
        false
    }
    /// What a call gets that finds nothing to send, whatever the connection is like: the end of a file or pipe. None: there is something.
    fn nothing(&mut self) -> Option<Step> {
        None
    }
    /// What the time that filling takes is said to be.
    fn kind(&self) -> Kind;
    /// Puts up to `n` bytes at `pos`; returns how many (fewer only at the end of a file).
    fn fill(&mut self, ring: &Ring, pos: u64, n: usize) -> Res;
    /// Takes what is left, and nobody gets it; returns how much (of a pipe, what it has).
    fn swallow(&mut self) -> Res;
}

/// The program's buffers as a source.
pub struct FromBufs<'a> {
    bufs: Bufs<'a>,
    /// Bytes taken so far.
    pub done: usize,
    /// The last one is urgent.
    pub urgent: bool,
}

impl<'a> FromBufs<'a> {
    /// All of the buffers from the beginning.
    #[inline]
    pub fn new(bufs: Bufs<'a>) -> FromBufs<'a> {
        FromBufs { bufs, done: 0, urgent: false }
    }
}

impl Source for FromBufs<'_> {
    #[inline]
    fn left(&self) -> usize {
        self.bufs.len() - self.done
    }

    fn is_urgent(&self) -> bool {
        self.urgent
    }

    fn kind(&self) -> Kind {
        Kind::Memory
    }

    #[inline]
    fn fill(&mut self, ring: &Ring, pos: u64, n: usize) -> Res {
        if self.bufs.are_nowhere(self.done, n) {
            return Err(Errno(libc::EFAULT));
        }
        let mut at = pos;
        self.bufs.pieces(self.done, n, |p, len| {
            // SAFETY: the program's buffer, valid for reads as it promised the kernel.
            unsafe { ring.put(at, p, len) };
            at += len as u64;
        });
        self.done += n;
        Ok(n)
    }

    fn swallow(&mut self) -> Res {
        let n = self.left();
        self.done += n;
        Ok(n)
    }
}

/// Sends from a source until it is empty, the ring is full and the call may not wait, or the
/// direction moves to TCP. Returns what was sent and how it stopped.
#[inline]
pub fn send(s: &Sock, mut sock: i32, source: &mut impl Source, mut nonblock: bool, timer: &mut wait::Timer) -> (usize, Step) {
    crate::control::poll(); // as in `rx::receive`
    let mut done = 0;
    // Closed meanwhile, the call goes on to its end, as in the kernel.
    let visit = if nonblock { None } else { inside::visit(s, &timer) };
    let mut waits = false;
    let (record, connection) = (s.generation.load(Relaxed), s.disconnects.load(Relaxed));
    loop {
        let first = done == 0;
        if visit.is_some() || inside::has_moved(s) {
            let Some(now) = inside::descriptor_in(s, record, sock) else {
                return (done, end::closed(done).map_or_else(Step::Failed, Step::Moved));
            };
            sock = now;
        }
        match sys::caught(|| attempt(s, sock, source, first)).unwrap_or(Step::Failed(Errno(libc::EIO))) {
            Step::Moved(n) => {
                done += n;
                if source.left() == 0 {
                    return (done, Step::Moved(done));
                }
                // A file that ended: `left` stays, nothing more comes.
                if n == 0 {
                    return (done, Step::Moved(done));
                }
            }
            Step::Full if nonblock => {
                // In a set that is waited for itself by whom we don't see the kernel tells of room, which over a link knows of none.
                if !s.has(flag::SEEN | flag::UNSEEN) || s.is_linked() && s.has(flag::UNSEEN) {
                    if called::await_request(s) {
                        continue;
                    }
                    // Nobody that we see waits for room, so nobody could be woken (hazard 5). Also behind a part: the program may take a
                    // short count for a full queue (epoll(7)), so the call goes on until the kernel's is full.
                    switch::spill(s, sock, switch::Spill::UnseenWriter);
                    return (done, if s.tx_in_memory() { Step::Full } else { Step::Kernel });
                }
                if let Some(dir) = s.tx.dir().filter(|_| !s.is_linked())
                    && switch::leave_unread(s, sock, dir, true).is_none()
                {
                    return (done, Step::Kernel);
                }
                return (done, Step::Full);
            }
            Step::Full if !waits && shadow::is_nonblocking_by_others(s, sock) => nonblock = true,
            Step::Full => {
                waits = true;
                let waited = wait::for_space(s, sock, timer, done > 0);
                if s.is_another(connection) {
                    return (done, end::disconnected(done).map_or_else(Step::Failed, Step::Moved));
                }
                if let Err(e) = waited {
                    return (done, Step::Failed(e));
                }
            }
            other => return (done, other),
        }
    }
}

/// A send of nothing: asks whether the stream is over alone. True: sending is on TCP, which knows.
pub fn nothing(s: &Sock, sock: i32) -> bool {
    s.rx.dir().is_some_and(|back| has_gone(s, sock, back))
}

/// Whether the peer has ended, or wants what is sent through TCP; the direction is there now.
#[inline]
fn has_gone(s: &Sock, sock: i32, back: &Dir) -> bool {
    // These lines change rarely, so they are in the cache.
    if switch::is_called(s, back) && switch::attend(s, sock) {
        return true;
    }
    // A peer that died without a mark shows in the kernel only.
    if s.rx.end.load(Relaxed) == 0 && kernel::is_time_to_look(s) {
        kernel::look_at_kernel_for_sender(s, sock);
    }
    if s.rx.end.load(Relaxed) == 0 || s.is_linked() || s.has(flag::SHUT_WR) || called::is_kept(s) || behind::is_half(s, back) {
        return false; // the last: just attended to
    }
    switch::spill(s, sock, switch::Spill::HalfClosed);
    !s.tx_in_memory() // a handler above the sender finds it where it was
}

/// One pass under the lock: as much as fits. `first`: nothing of this call was moved before.
fn attempt(s: &Sock, sock: i32, source: &mut impl Source, first: bool) -> Step {
    let (Some(dir), Some(back)) = (s.tx.dir(), s.rx.dir()) else { return Step::Kernel };
    if has_gone(s, sock, back) {
        return Step::Kernel;
    }
    let marker = Marker::new();
    let Ok(held) = s.tx.lock.take(&marker) else {
        return Step::Failed(Errno(libc::EAGAIN)); // a handler interrupted the sender of this socket
    };
    if !s.tx_in_memory() {
        return Step::Kernel;
    }
    if s.has(flag::SHUT_WR) {
        return source.nothing().unwrap_or_else(|| Step::Failed(kernel::behind_own_end(s, sock, back)));
    }
    if s.is_linked()
        && let Some(step) = linked::answer_send(s, back, source)
    {
        return step;
    }
    let mut size = s.tx.size.load(Relaxed) as usize;
    let head = s.tx.cursor.load(Relaxed);
    let want = source.left();
    let used = head.wrapping_sub(s.tx.seen.load(Relaxed)) as usize;
    let mut free = size - used.min(size);
    let limited = s.buffer_limit.load(Relaxed) != 0;
    if free < want || limited || head.wrapping_add(want as u64) > s.tx.mark.load(Relaxed) {
        let Some((f, z)) = look_at_tail(s, dir, head, size, want) else {
            drop(held);
            return Step::Failed(resets::broken(s, sock));
        };
        (free, size) = (f, z);
    }
    free = free.min(limit(s, size));
    if free == 0 {
        if let Some(step) = source.nothing() {
            return step;
        }
        s.tx.wants_more.fetch_or(seldom::FULL, Relaxed);
        // Edge-triggered sets report writability once for each time the ring was found full.
        s.tx.looked.fetch_add(1, Relaxed);
        count(Counter::RingFull, 1);
        return Step::Full;
    }
    if source.is_urgent() && want <= free {
        urgent::mark(dir, head + want as u64);
    }
    let moved = fill(s, sock, dir, source, head, want.min(free), size);
    if first {
        s.count_size(0, want);
        if want > size {
            count(Counter::TooSmall, 1);
        }
    }
    drop(held);
    match moved {
        Ok(n) => {
            switch::flip_tx(s, sock, n);
            Step::Moved(n)
        }
        Err(e) => Step::Failed(e),
    }
}

/// Copies and publishes; large amounts in quarters of the ring, so that the consumer starts early, or in halves over a link, where
/// each part is a message.
#[inline]
fn fill(s: &Sock, sock: i32, dir: &Dir, source: &mut impl Source, head: u64, n: usize, size: usize) -> Res {
    let ring = bulk::tx_ring(s, size).ok_or(Errno(libc::ENOMEM))?;
    let most = if s.is_linked() { size / 2 } else { size / 4 };
    let mut done = 0;
    while done < n {
        let part = (n - done).min(most);
        let began = bulk::before_part(source.kind(), part);
        let got = match source.fill(&ring, head + done as u64, part) {
            Ok(got) => got,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        };
        bulk::after_part(s, source.kind(), began, got);
        done += got;
        publish(s, sock, dir, head + done as u64);
        if got < part {
            break;
        }
    }
    Ok(done)
}

/// Shows the consumer that the bytes below `now` are there. The lock is held.
#[inline(always)]
pub fn publish(s: &Sock, sock: i32, dir: &Dir, now: u64) {
    fault::pass(Fault::Copied);
    s.tx.cursor.store(now, Relaxed);
    dir.producer_cpu.store(spin::cpu(), Relaxed);
    // Publishes the bytes: pairs with the Acquire in `rx`.
    dir.head.store(now, Release);
    fault::pass(Fault::Published);
    bell::after_publish(s, dir, sock);
}

/// An answer is likely: its place in the ring comes from the cache of the consumer, which has read there before.
#[inline(always)]
pub fn fetch_next(s: &Sock) {
    let size = (s.tx.size.load(Relaxed) as usize).max(1);
    let off = cursor::offset(s.tx.cursor.load(Relaxed), s.tx.base.load(Relaxed), size);
    mem::fetch_to_write(s.tx.ring.load(Relaxed).wrapping_add(off));
    if let Some(dir) = s.tx.dir() {
        mem::fetch_to_write(std::ptr::from_ref(dir).cast::<u8>().cast_mut());
    }
}

/// Reads the consumer's cursor, for `want` bytes; an empty ring starts at its beginning again and may grow. None: the
/// claim can't be right.
#[inline(never)]
pub fn look_at_tail(s: &Sock, dir: &Dir, head: u64, mut size: usize, want: usize) -> Option<(usize, usize)> {
    let tail = dir.tail.load(Acquire); // pairs with the Release in `rx`: the bytes were copied out
    let free = cursor::writable(head, tail, size)?;
    s.tx.seen.store(tail, Relaxed);
    if s.is_linked() {
        // The link counts offsets from the start of the stream, and its ring is registered as it is.
        s.tx.mark.store(u64::MAX, Relaxed);
        return Some((free, size));
    }
    if tail == head {
        // A call that may not wait takes as much as TCP would, if the ring can: some programs end the stream behind it whatever it returned.
        if (s.tx.wants_more.load(Relaxed) & seldom::FULL != 0 || want > size) && size < RING_MAX {
            s.tx.wants_more.fetch_and(!seldom::FULL, Relaxed);
            near::resize(s, dir, RING_MAX);
        }
        bulk::choose(s, dir, want);
        size = s.tx.size.load(Relaxed) as usize; // perhaps all of the wide ring
        near::begin(s, dir, head, want, size.min(RING_MAX));
        return Some((size, size));
    }
    s.tx.mark.store(head + near::SOFT, Relaxed);
    Some((free, size))
}

/// What SO_SNDBUF and SO_RCVBUF leave, where the program set them.
#[inline]
fn limit(s: &Sock, size: usize) -> usize {
    match s.buffer_limit.load(Relaxed) as usize {
        0 => size,
        n => {
            let in_flight = s.tx.cursor.load(Relaxed).wrapping_sub(s.tx.seen.load(Relaxed));
            n.max(region::RING_MIN).saturating_sub(in_flight as usize).min(size)
        }
    }
}

/// Before a kernel send: what the ring still owes the stream goes first. Errors as send(2)'s; EAGAIN in a handler above who pays.
#[cold]
pub fn pay_first(s: &Sock, sock: i32, nonblock: bool, timer: &mut wait::Timer) -> Res<()> {
    loop {
        let sock = inside::descriptor(s, sock);
        let marker = Marker::new();
        let Ok(held) = s.tx.lock.take(&marker) else { return Err(Errno(libc::EAGAIN)) };
        let paid = debt::pay_locked(s, sock);
        drop(held);
        if paid {
            return Ok(());
        }
        if nonblock {
            return Err(Errno(libc::EAGAIN));
        }
        wait::for_kernel_room(s, sock, timer)?;
    }
}

/// Runs a kernel send for a direction on TCP and counts its bytes. None: it moved to memory
/// meanwhile.
#[inline(always)]
pub fn through_kernel(s: &Sock, sock: i32, real: impl FnOnce() -> isize) -> Option<isize> {
    let frame = 0u8;
    let within = Within::enter(s, &s.tx, &frame);
    if s.tx_medium.load(SeqCst) != 0 {
        return None;
    }
    let n = real();
    if n > 0 && within.is_of_record() {
        s.tx.tcp.fetch_add(n as u64, Relaxed);
        s.tx.kernel.fetch_add(n as u64, Relaxed);
        shadow::sent(s, sock);
    }
    Some(n)
}

/// Most of one call that goes to the kernel at once when it has left memory: in between the peer may ask for something.
pub const PART: usize = 1 << 20;

/// The most that one call may give to the kernel of `left` bytes: a [`PART`] where the direction may go to memory again.
pub fn most(s: &Sock, left: usize) -> usize {
    if s.tx.switches.load(Relaxed) == 0 || s.has(flag::PINNED) { left } else { left.min(PART) }
}

/// Sends the rest of the buffers, or a [`PART`] of it, through the kernel, blocking as the socket does: how much, and
/// whether the direction has moved to memory meanwhile.
pub fn rest_through_kernel(s: &Sock, sock: i32, bufs: Bufs, from: usize, flags: i32) -> Res<(usize, bool)> {
    let left = (bufs.len() - from).min(PART);
    let mut is_in_memory = false;
    let sent = bufs.with_parts(from, left, |part, before| {
        let moved = through_kernel(s, sock, || {
            // SAFETY: an all-zero msghdr is valid.
            let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
            msg.msg_iov = part.as_mut_ptr();
            msg.msg_iovlen = part.len();
            // libc's function, for it may block: a cancellation point.
            // SAFETY: the buffers are the program's, valid for reads.
            match unsafe { real::sendmsg(sock, &msg, flags | libc::MSG_NOSIGNAL) } {
                n if n >= 0 => n,
                _ => -(sys::errno().0 as isize),
            }
        });
        match moved {
            Some(n) if n >= 0 => Ok(n as usize),
            Some(e) => {
                let e = Errno(-e as i32);
                // Of one call the kernel would keep it.
                if before > 0 {
                    end::keep(s, sock, e);
                }
                Err(e)
            }
            None => {
                is_in_memory = true;
                Ok(0)
            }
        }
    })?;
    Ok((sent, is_in_memory))
}

/// Ends a call with EPIPE: the signal first, unless the program asked for none.
pub fn broken_pipe(flags: i32) -> Errno {
    end::pipe_signal(flags);
    Errno(libc::EPIPE)
}
