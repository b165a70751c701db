//! Waiting in a blocking call: poll, arm, look again, and [`sleep`]. Called by `rx` and `tx`, and by the socket table.

pub use super::timer::{AT_ONCE, Timer};

use super::asleep::{Woke, a_millisecond, a_moment, plain, plain_for, sleep};
use super::bell::{self, Kind};
use super::room::Named;
use super::{behind, budget, called, counted, debt, end, follow, here, inside, kernel, known, linked, room, rouse, rx, spin, switch, waiter};
use crate::family::sock::{Sock, flag};
use crate::family::{self, lock::Marker};
use crate::fault::{self, Step as Fault};
use crate::sys::{Errno, Res, clock, fd, mem};
use crate::transport::region::{Dir, fin};
use std::sync::atomic::{Ordering::*, fence};

/// Whether polling before anything else was in vain for a reader that waits.
pub fn has_polled(s: &Sock) -> bool {
    s.rx.dir().is_some_and(|dir| s.rx_in_memory() && !s.is_linked() && !poll_first(s, dir))
}

/// Polls before anything else, as [`for_data`] does; true if something came. The line where the next bytes
/// will stand is asked for together with the producer's cursor: when they come, both are on their way.
#[inline(always)]
pub fn poll_first(s: &Sock, dir: &Dir) -> bool {
    if s.rx.waiter.load(Relaxed) == bell::EACH && !s.is_public() {
        ring_no_more(s, dir);
    }
    let next = rx::next_byte(s, dir);
    let ready = || {
        // Acquire as in `follow::in_ring`.
        let came = dir.head.load(Acquire) != s.rx.cursor.load(Relaxed);
        mem::fetch(next);
        came || follow::pending(s, dir)
    };
    spin::spin(&s.rx.spin, dir.producer_cpu.load(Relaxed), ready)
}

/// While it polls, a byte for each arrival is of no use to anybody.
#[cold]
fn ring_no_more(s: &Sock, dir: &Dir) {
    let marker = Marker::new();
    if let Some(_held) = s.rx.lock.try_take(&marker) {
        kernel::reads_blocking(s, dir);
    }
}

/// What a read of a reader that is not known yet costs if something called it for nothing, where one that found bytes pays one back.
const CALLED: u32 = 16;
/// So much is owed by a reader that nothing calls: it reads what it waits for before the doorbell comes.
const OFTEN: u32 = 256;

/// A reader that is not known yet (`kernel::is_unknown`) is about to wait. Where it came upon a doorbell or a proof, a waiter of its
/// own may have sent it here, and will do so again; else it waits in blocking calls. `came`: what the kernel's stream had brought
/// when the call began.
#[cold]
pub fn may_have_been_called(s: &Sock, sock: i32, came: u64) {
    let marker = Marker::new();
    let (Some(dir), Some(_held)) = (s.rx.dir(), s.rx.lock.try_take(&marker)) else { return };
    if s.rx.kernel.load(Relaxed) != came || fd::unread(sock) != Ok(0) {
        let owed = s.rx.wants_more.load(Relaxed) + CALLED;
        s.rx.wants_more.store(owed, Relaxed);
        if owed < OFTEN {
            return;
        }
    }
    kernel::reads_blocking(s, dir);
}

/// A reader that is not known yet has found bytes.
pub fn was_called_rightly(s: &Sock) {
    let owed = s.rx.wants_more.load(Relaxed);
    if owed != 0 {
        s.rx.wants_more.store(owed - 1, Relaxed);
    }
}

/// What a receive wants of a wait.
#[derive(Clone, Copy)]
pub struct Asks {
    /// Bytes were moved already, so a signal ends the call whatever its handler says.
    pub begun: bool,
    /// It has polled.
    pub polled: bool,
}

/// Waits until something may be received. Errors: EAGAIN (SO_RCVTIMEO), EINTR.
pub fn for_data(s: &Sock, sock: i32, timer: &mut Timer, asks: Asks) -> Res<()> {
    let Asks { begun, polled } = asks;
    let Some(dir) = s.rx.dir() else { return outside(s, sock, timer) };
    if !s.has(flag::BLOCKS) && !s.is_public() && !kernel::is_unknown(s) {
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.try_take(&marker) {
            kernel::reads_blocking(s, dir);
        }
    }
    let linked = s.is_linked();
    let ready = |listens: bool| {
        if linked && !listens {
            linked::poll();
        }
        // Of TCP's own end the kernel's socket tells, which is not listened to over a link.
        follow::pending(s, dir) || linked && is_over(s)
    };
    if s.rx_in_memory() && !polled && spin::spin(&s.rx.spin, dir.producer_cpu.load(Relaxed), || ready(false)) {
        return Ok(());
    }
    dir.consumer_cpu.store(spin::cpu(), Relaxed);
    let me = if s.is_public() && !linked { None } else { waiter::thread_waiter() };
    let record = family::record(s);
    let at = std::ptr::from_ref(&me) as usize;
    let (named, counted_since) = {
        let marker = Marker::new();
        let Ok(_held) = s.rx.lock.take(&marker) else { return Ok(()) };
        let counted_since = counted::enter(&record.readers, &record.generation, at);
        (kernel::arm_for(s, dir, sock, me, Kind::Thread), counted_since)
    };
    if let Some(w) = me {
        room::forget(s, w);
    }
    let since = clock::ticks();
    // A link tells every waiter that sleeps where it finds none named.
    let me = me.filter(|w| named || linked || room::be_callable(s, *w));
    let events = libc::POLLIN | if debt::owes(s) { libc::POLLOUT } else { 0 };
    let result = sleep(s, sock, events, me, looks_again(s, begun), timer, begun, ready);
    let sock = inside::descriptor(s, sock);
    counted::leave(&record.readers, &record.generation, at, counted_since);
    debt::pay(s, sock);
    bell::time_wake(dir, since);
    budget::slept(&s.rx.spin, since);
    if inside::is_gone(s) {
        return Ok(()); // which the call sees; the number may be another file's
    }
    if matches!(result, Ok(Woke::Kernel)) && s.rx_in_memory() {
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.try_take(&marker) {
            kernel::look_at_kernel(s, sock, dir);
        }
    }
    result.map(|_| ())
}

/// After how many ns a receive looks again whatever wakes it. One that has moved a part below the program's low-water mark, and is on TCP by now,
/// wants less than the kernel's mark, below which that tells of nothing.
fn looks_again(s: &Sock, begun: bool) -> Option<u64> {
    const BELOW_MARK_NS: u64 = 10_000_000;
    let is_below = begun && !s.rx_in_memory() && s.low_water.load(Relaxed) > 1;
    here::looks_again(s).or(is_below.then_some(BELOW_MARK_NS))
}

/// As [`for_data`] before there is memory, which another thread may bring meanwhile: it finds this one counted, so that what comes calls it
/// by the doorbell byte.
#[cold]
fn outside(s: &Sock, sock: i32, timer: &mut Timer) -> Res<()> {
    let record = family::record(s);
    let at = std::ptr::from_ref(&record) as usize;
    let counted_since = counted::enter(&record.readers, &record.generation, at);
    // Pairs with `offer::become_careful`: who counts the readers behind that finds this one, or it is seen here.
    fence(SeqCst);
    fault::pass(Fault::Outside);
    let waited = if s.rx.dir().is_some() { Ok(()) } else { plain(s, sock, libc::POLLIN, timer) };
    counted::leave(&record.readers, &record.generation, at, counted_since);
    waited
}

/// Waits for more than what is there (PEEK with WAITALL); true: nothing more comes behind what the next look finds, or an urgent byte
/// stands there. Rare: the stream has data already, so no word would ring for it again; looks every ms. Errors as [`for_data`].
#[cold]
pub fn for_more(s: &Sock, sock: i32, timer: &mut Timer) -> Res<bool> {
    let head = || s.rx.dir().map_or(0, |dir| dir.head.load(Acquire));
    let (mark, linked) = (head(), s.is_linked());
    let ready = || {
        if linked {
            linked::poll();
        }
        head() != mark || s.rx.end.load(Relaxed) != 0
    };
    let peer = s.rx.dir().map_or(u32::MAX, |dir| dir.producer_cpu.load(Relaxed));
    if s.rx_in_memory() && spin::spin(&s.rx.spin, peer, ready) {
        return Ok(s.rx.end.load(Relaxed) != 0);
    }
    if timer.left() == Some(0) {
        return Err(Errno(libc::EAGAIN));
    }
    if linked {
        return a_millisecond(timer).map(|_| s.rx.end.load(Relaxed) != 0);
    }
    let shows = plain_for(sock, libc::POLLRDHUP | libc::POLLPRI, timer)?;
    Ok(shows & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLPRI) != 0)
}

/// Waits until the ring has room, or the direction has moved to TCP.
pub fn for_space(s: &Sock, sock: i32, timer: &mut Timer, begun: bool) -> Res<()> {
    let (Some(dir), Some(back)) = (s.tx.dir(), s.rx.dir()) else { return Ok(()) };
    let (linked, connection) = (s.is_linked(), s.disconnects.load(Relaxed));
    // Over a link the peer's half-close leaves its own reading as it is.
    let ends = if linked { fin::CLOSED } else { fin::ENDS };
    // A sender that stays for a peer that has ended would be called back at once.
    if !linked && switch::is_ended(s, back) && called::is_kept(s) {
        let stays = switch::leave_unread(s, sock, dir, false).is_some();
        return if stays { a_moment(sock, timer) } else { Ok(()) };
    }
    // Behind its half-close the peer may read on.
    let known = if behind::is_half(s, back) { fin::WRITE } else { 0 };
    let room = |listens: bool| {
        if linked && !listens {
            linked::poll();
        }
        room::has_room(s, dir) || back.fin.load(Relaxed) & ends & !known != 0 || !s.tx_in_memory() || s.has(flag::SHUT_WR) || follow::is_asked(s)
    };
    if spin::spin(&s.tx.spin, dir.consumer_cpu.load(Relaxed), || room(false)) {
        return Ok(());
    }
    dir.producer_cpu.store(spin::cpu(), Relaxed);
    let me = waiter::thread_waiter();
    let named = me.map_or(Named::No, |w| room::name_writer(s, dir, w));
    let me = me.filter(|_| named != Named::No);
    if me.is_none() && linked {
        return a_moment(sock, timer);
    }
    let at_most = match linked {
        true => None,
        false => match switch::leave_unread(s, sock, dir, false) {
            None => return Ok(()),
            at_most => at_most.map(|ns| ns.min(me.map_or(room::UNNAMED_NS, |me| known::trust(s, me)))),
        },
    };
    let record = family::record(s);
    let at = std::ptr::from_ref(&me) as usize;
    let counted_since = counted::enter(&record.writers, &record.generation, at);
    let since = clock::ticks();
    // Another writer may be named in the word; when it is awake, the word must name us.
    let on = |listens| room(listens) || me.is_some_and(|me| !room::is_named(s, dir, me, 1));
    // Never POLLIN here: unread data or a doorbell would make it a busy loop. So would RDHUP behind our own SHUT_RD.
    // And behind the peer's end.
    let events = if s.has(flag::SHUT_RD) || s.rx.end.load(Relaxed) != 0 { 0 } else { libc::POLLRDHUP };
    let result = sleep(s, sock, events, me, at_most, timer, begun, on);
    let sock = inside::descriptor(s, sock);
    budget::slept(&s.tx.spin, since);
    let is_one_of_many = counted::leave(&record.writers, &record.generation, at, counted_since) > 1;
    if inside::is_gone(s) {
        return Ok(());
    }
    if let Some(me) = me {
        room::unname(dir, me);
        if is_one_of_many || named == Named::InPlaceOf {
            rouse::all_but(me);
        }
    }
    // The limit is over: TCP's own buffers, which hold megabytes more, would have had room from the first.
    if matches!(result, Err(Errno(libc::EAGAIN))) && !linked && !called::keeps_full(s) && !s.is_another(connection) {
        switch::spill(s, sock, switch::Spill::Unread);
        return if s.tx_in_memory() { Err(Errno(libc::EAGAIN)) } else { Ok(()) };
    }
    if matches!(result, Ok(Woke::Kernel)) && !s.is_another(connection) {
        // Whether it was its death is asked first.
        kernel::look_at_kernel_for_sender(s, sock);
        if kernel::has_peer_ended(s, sock) {
            switch::behind_end(s, sock);
        }
    }
    result.map(|_| ())
}

/// Waits until the kernel takes more of what the ring owes it.
pub fn for_kernel_room(s: &Sock, sock: i32, timer: &mut Timer) -> Res<()> {
    plain(s, sock, libc::POLLOUT, timer)
}

/// As [`for_kernel_room`], for `ns` at most.
pub fn a_while_for_kernel_room(s: &Sock, sock: i32, ns: u64) -> Res<()> {
    let timer = &mut Timer::lazy(0);
    sleep(s, sock, libc::POLLOUT, None, Some(ns), timer, false, |_| false).map(|_| ())
}

/// For readers of a socket that ended: nothing to wait for.
pub fn is_over(s: &Sock) -> bool {
    s.rx.end.load(Relaxed) >= end::FIN || s.has(flag::SHUT_RD)
}
