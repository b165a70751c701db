//! A connection whose other end is a link (RDMA): what is different from one in shared memory.
//!
//! Little: the rings belong to the link, nothing that TCP shows counts, there is no way back once the
//! handshake is over, and the end comes by marks that the link sets. [`begin`] puts a fresh connection
//! into memory before its handshake has told whether it stays there: what the program sends waits in the
//! ring meanwhile, and goes through TCP if the handshake ends there ([`return_sending`],
//! [`return_receiving`]).

use super::tx::{Source, Step};
use super::{bell, close, end, orphan, rouse, shadow};
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, flag, medium, step};
use crate::layout::word;
use crate::link::{cover, lock};
use crate::sys::{Errno, net, spare};
use crate::transport::changes;
use crate::transport::region::{Dir, RegionHeader, fin};
use crate::transport::waiters::Waiter;
use smcr_proto::page::{Counter, State};
use std::sync::atomic::{Ordering::*, fence};

/// Where a link's connection lies.
pub struct Rings {
    /// Its number.
    pub index: u32,
    /// The page with both directions.
    pub header: *mut RegionHeader,
    /// The sending ring, and its size.
    pub ring: (*mut u8, u32),
    /// Size of the receiving ring, which comes later.
    pub receive: u32,
}

/// Puts a connection that has carried nothing into memory, both ways. False: somebody is inside a
/// kernel call on it, or bytes have gone.
pub fn begin(s: &Sock, sock: i32, rings: &Rings) -> bool {
    shadow::learn(s, sock);
    // SAFETY: a header page is never unmapped; all fields are atomics.
    let header = unsafe { &*rings.header };
    let [out, back] = &header.dirs;
    for (dir, size) in [(out, rings.ring.1), (back, rings.receive)] {
        dir.size.store(size, Relaxed);
        dir.switch.store(1, Relaxed);
        dir.passed.store(1, Relaxed);
        dir.producer_cpu.store(u32::MAX, Relaxed);
        dir.consumer_cpu.store(u32::MAX, Relaxed);
    }
    header.server.store(process::pid(), Relaxed);
    out.bell.store(word::LINK, Relaxed);
    back.space.store(word::LINK, Relaxed);
    s.tx.ring.store(rings.ring.0, Relaxed);
    s.tx.size.store(rings.ring.1, Relaxed);
    s.tx_ring.store(rings.ring.1, Relaxed);
    s.rx_ring.store(rings.receive, Relaxed);
    for (half, dir) in [(&s.tx, out), (&s.rx, back)] {
        half.switches.store(1, Relaxed);
        half.dir.store(std::ptr::from_ref(dir).cast_mut(), Release);
    }
    s.tx_switches.store(1, Relaxed);
    s.rx_switches.store(1, Relaxed);
    s.tx.gate.store(bell::CLOSED, Relaxed);
    s.region.store(rings.header, Release);
    s.link.store(rings.index + 1, Release);
    s.flags.fetch_or(flag::LINKED | flag::CAREFUL, SeqCst);
    s.tx_medium.store(medium::RDMA, SeqCst);
    s.rx_medium.store(medium::RDMA, SeqCst);
    // SeqCst as in `switch::try_to_memory`: who is inside has seen TCP.
    let busy = s.tx.in_kernel.load(SeqCst) != 0 || s.rx.in_kernel.load(SeqCst) != 0;
    if busy || s.tx.kernel.load(Relaxed) != 0 || s.rx.kernel.load(Relaxed) != 0 {
        forget(s);
        s.link.store(0, Release);
        return false;
    }
    bell::arm(s, back);
    s.set_state(State::Negotiating);
    changes::note(s);
    true
}

/// Whether the handshake is still on its way.
pub fn is_pending(s: &Sock) -> bool {
    s.is_linked() && s.step.load(Acquire) != step::PROVED
}

/// The same, and its receiving ring is not there yet.
pub fn is_bare(s: &Sock) -> bool {
    is_pending(s) && s.rx.ring.load(Acquire).is_null()
}

/// Where that is so it gets none: a forked child would not have it. The handshake goes on, and ends on TCP. False: it has one.
pub fn keep_on_tcp(s: &Sock) -> bool {
    let index = s.link.load(Relaxed).checked_sub(1).filter(|_| is_owner(s));
    let kept = index.and_then(|index| {
        lock::with(|all| {
            let slot = all.slot(index).filter(|slot| slot.rx.is_none())?;
            slot.for_tcp = true;
            Some(())
        })
    });
    kept.flatten().is_some()
}

/// The handshake has agreed: the connection stays in memory.
pub fn agreed(s: &Sock) {
    s.step.store(step::PROVED, Release);
    s.note(smcr_proto::reason::Reason::None);
    s.set_state(State::Accelerated);
    s.carried.store(medium::RDMA, Relaxed);
    process::count(Counter::Rdma, 1);
    process::count(Counter::Accelerated, 1);
    process::count(Counter::SwitchTxMem, 1);
    process::count(Counter::SwitchRxMem, 1);
}

/// All that the program has sent so far has gone through TCP: sending goes on there, unless more has
/// come meanwhile. `sent` is the position up to which it has gone, `kernel` the bytes of the handshake. `is_still`: whether the record is
/// the connection's, asked with the lock held, for `unmap::unmap` gives it up with both.
pub fn return_sending(s: &Sock, sock: i32, (sent, kernel): (u64, u64), is_still: impl Fn() -> bool) -> bool {
    let Some(dir) = s.tx.dir() else { return true };
    let marker = Marker::new();
    let Some(_held) = s.tx.lock.try_take(&marker) else { return false };
    if !is_still() || dir.head.load(Acquire) != sent {
        return false;
    }
    s.tx.kernel.store(sent + kernel, Relaxed);
    s.tx.tcp.store(sent, Relaxed);
    s.tx.cursor.store(0, Relaxed);
    s.tx.seen.store(0, Relaxed);
    dir.switch.store(2, Release);
    s.tx.switches.store(2, Relaxed);
    s.tx_switches.store(0, Relaxed);
    s.tx_medium.store(medium::TCP, SeqCst);
    shadow::restore_sending(s, sock);
    changes::note(s);
    true
}

/// Receiving goes on through TCP. `is_still` as above.
pub fn return_receiving(s: &Sock, kernel: u64, is_still: impl Fn() -> bool) -> bool {
    let Some(dir) = s.rx.dir() else { return true };
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker).filter(|_| is_still()) else { return false };
    s.rx.kernel.store(kernel, Relaxed);
    dir.switch.store(2, Release);
    s.rx.switches.store(2, Relaxed);
    s.rx_switches.store(0, Relaxed);
    s.rx_medium.store(medium::TCP, SeqCst);
    changes::note(s);
    true
}

/// The program has shut down a direction: the link tells the peer, and who waits for the connection looks again, as the kernel
/// wakes who waits for a TCP socket.
pub fn after_own_shutdown(s: &Sock) {
    kick(s);
    changes::note(s);
    rouse::all();
}

/// Whether the kernel says that nobody is connected any more: the connection has ended both ways, and TCP below as well (`link::below`).
pub fn is_over(s: &Sock, sock: i32) -> bool {
    let marks = s.rx.dir().map_or(0, |back| back.fin.load(Acquire));
    let ended = marks & fin::RESET != 0 || marks & fin::WRITE != 0 && (s.has(flag::SHUT_WR) || s.has(flag::SWALLOWED));
    ended && net::peer_addr(sock).is_err_and(|e| e.0 == libc::ENOTCONN)
}

/// The peer has closed, and all that it sent was read: TCP below shows the same to whoever gets it.
pub fn has_nothing_left(s: &Sock) -> bool {
    s.rx.dir().is_some_and(|back| {
        let marks = back.fin.load(Acquire);
        let is_told = marks & fin::RESET == 0 || end::is_death_told(s);
        marks & fin::CLOSED != 0 && is_told && back.head.load(Acquire) == s.rx.cursor.load(Relaxed)
    })
}

/// Whether the peer has closed in order: nothing of its stream is to come, and it takes nothing.
pub fn has_closed(s: &Sock) -> bool {
    s.is_linked() && s.rx.dir().is_some_and(|back| back.fin.load(Acquire) & (fin::CLOSED | fin::RESET) == fin::CLOSED)
}

/// Whether the peer has closed, or reset it: it takes nothing.
pub fn reads_no_more(s: &Sock) -> bool {
    s.is_linked() && s.rx.dir().is_some_and(|back| back.fin.load(Acquire) & fin::CLOSED != 0)
}

/// The program has shut down a direction while the handshake was on its way: now TCP is told.
pub fn after_shutdown(s: &Sock, sock: i32) {
    let how = match (s.has(flag::SHUT_RD), s.has(flag::SHUT_WR)) {
        (true, true) => libc::SHUT_RDWR,
        (true, false) => libc::SHUT_RD,
        (false, true) => libc::SHUT_WR,
        (false, false) => return,
    };
    let _ = net::shutdown(sock, how);
}

/// Both directions are on TCP: [`forget`], and what the program has shut down meanwhile is told. False: somebody is in a call, or has
/// just closed it.
pub fn return_whole(s: &Sock, sock: i32, is_still: impl Fn() -> bool, note: impl FnOnce()) -> bool {
    let (m1, m2) = (Marker::new(), Marker::new());
    let Some(_tx) = s.tx.lock.try_take(&m1) else { return false };
    let Some(_rx) = s.rx.lock.try_take(&m2).filter(|_| is_still()) else { return false };
    note();
    forget(s);
    after_shutdown(s, sock);
    true
}

/// Both directions are on TCP: an ordinary connection again.
pub fn forget(s: &Sock) {
    s.tx_medium.store(medium::TCP, SeqCst);
    s.rx_medium.store(medium::TCP, SeqCst);
    s.tx.dir.store(std::ptr::null_mut(), Release);
    s.rx.dir.store(std::ptr::null_mut(), Release);
    s.region.store(std::ptr::null_mut(), Release);
    s.step.store(step::FAILED, Release);
    s.flags.fetch_and(!(flag::LINKED | flag::CAREFUL), SeqCst);
    s.set_state(State::Tcp);
    changes::note(s);
}

/// Whether the link is this process's: a forked child has the rings, not the queue pair.
pub fn is_owner(s: &Sock) -> bool {
    s.region().is_none_or(|h| h.server.load(Relaxed) == process::pid())
}

/// Whether connections over links of the parent may be used here.
pub fn is_foreign() -> bool {
    lock::is_inherited()
}

/// This process has nothing to do with its parent's links any more.
pub fn leave_to_parent() {
    lock::leave_to_parent();
}

/// The program has put bytes into its ring, has taken some out, or has closed.
#[cold]
pub fn kick(s: &Sock) {
    if !is_owner(s) {
        return lock::kick_parent();
    }
    if let Some(index) = s.link.load(Relaxed).checked_sub(1) {
        lock::kick(index);
    }
}

/// A forked child has introduced itself to the family.
pub fn introduce() {
    lock::kick_parent();
}

/// A read of a program that was not seen to wait has found nothing.
pub fn read_in_vain(s: &Sock) {
    s.rate_nonce.fetch_add(1, Relaxed);
}

/// How often that was.
pub fn vain_reads(s: &Sock) -> u64 {
    s.rate_nonce.load(Relaxed)
}

/// A send found no room and does not wait, and nobody that we see waits for it.
#[cold]
pub fn no_room(s: &Sock) {
    if let Some(index) = s.link.load(Relaxed).checked_sub(1)
        && s.can_return()
        && is_owner(s)
    {
        lock::with(|all| all.note_unseen(index, true));
    }
}

/// A waiter that we never see may have come after what lies unread.
pub fn unread(s: &Sock) {
    if s.can_return()
        && is_owner(s)
        && let Some(index) = s.link.load(Relaxed).checked_sub(1)
    {
        lock::with(|all| all.note_unseen(index, false));
    }
}

/// Looks whether something has arrived, if nobody else does.
#[inline]
pub fn poll() {
    if lock::is_used() {
        lock::try_with(|all| {
            if all.poll() {
                cover::rest::note_look();
            }
        });
    }
}

/// Before a sleep: listens to the link's channel, if nobody else does. The caller looks once more, sleeps
/// with it among its descriptors, and says when it has woken.
pub fn listen(me: Option<Waiter>) -> Option<i32> {
    if lock::is_used() { cover::enter(me) } else { None }
}

/// The same for an epoll set that has the channel with this number.
pub fn listens(me: Waiter, channel: u32) -> bool {
    channel != 0 && lock::is_used() && cover::enter_set(me, channel)
}

/// After such a sleep, when it does not say "asleep" any more; `heard`: the channel was readable.
pub fn listen_no_more(heard: bool) {
    cover::leave(heard);
}

/// The calling thread has left its wait by a jump. Where it has not, two listen.
pub fn listener_leaves() {
    if lock::is_used() {
        cover::thread_ends();
    }
}

/// The channel, for an epoll set, and a number that changes with it.
pub fn channel() -> Option<(i32, u32)> {
    if lock::is_used() { cover::channel() } else { None }
}

/// Whether this number is a channel's: the program may have taken one that was.
pub fn is_channel(fd: i32) -> bool {
    fd >= 0 && cover::is_channel(fd)
}

/// An epoll set was told of the channel.
pub fn heard() {
    cover::take();
}

/// How long a wait for a link may sleep without looking again. None: it will be woken.
pub fn longest_sleep(s: &Sock, me: Option<Waiter>) -> Option<u64> {
    let foreign = !is_owner(s);
    if foreign && orphan::is_due() {
        orphan::look(s);
    }
    (me.is_none() || foreign).then_some(2_000_000)
}

/// What a send gets when the peer reads no more. None: it does.
pub fn answer_send(s: &Sock, back: &Dir, source: &mut impl Source) -> Option<Step> {
    let marks = back.fin.load(Acquire);
    if marks & fin::CLOSED == 0 {
        return None;
    }
    match s.error.swap(0, Relaxed) {
        0 => {}
        e => return Some(Step::Failed(Errno(e as i32))),
    }
    if marks & fin::RESET != 0 {
        let e = if end::take_death(s) { libc::ECONNRESET } else { libc::EPIPE };
        return Some(Step::Failed(Errno(e)));
    }
    if s.has(flag::SWALLOWED) {
        return Some(Step::Failed(Errno(libc::EPIPE)));
    }
    // TCP takes what comes first after the peer has closed; the answer to it is the reset.
    let taken = source.swallow();
    if taken.is_ok_and(|n| n > 0) {
        s.set(flag::SWALLOWED);
        after_own_shutdown(s); // as that changes what the connection shows
    }
    Some(taken.map_or_else(Step::Failed, Step::Moved))
}

/// Before the last descriptor is closed: what the peer is to see.
pub fn before_close(s: &Sock, sock: i32) {
    let (Some(dir), Some(back)) = (s.tx.dir(), s.rx.dir()) else { return };
    let mut marks = fin::WRITE | fin::CLOSED | close::on_unread(s, back);
    if s.has(flag::LINGER0) {
        marks |= fin::RESET;
    }
    dir.fin.fetch_or(marks, Release);
    // Pairs with the one at the end of a handshake (`Shake::link`).
    fence(SeqCst);
    if s.can_return() && is_owner(s) {
        keep_tcp(s, sock);
    }
    kick(s);
}

/// The program closes its descriptor: the link keeps one until the peer has everything, for the way back.
pub fn keep_tcp(s: &Sock, sock: i32) {
    let Some(index) = s.link.load(Relaxed).checked_sub(1) else { return };
    let Ok(own) = spare::duplicate(sock) else { return };
    let kept = lock::with(|all| match all.slot(index) {
        Some(slot) if slot.tcp.is_none() => {
            slot.tcp = Some(own);
            true
        }
        _ => false,
    });
    if kept != Some(true) {
        spare::give_back(own, lock::service());
    }
}

/// Nobody of this family uses the connection any more: the link ends it when the peer has everything.
pub fn leave(s: &Sock) {
    if let Some(dir) = s.tx.dir() {
        dir.fin.fetch_or(fin::WRITE | fin::CLOSED | fin::LEFT, Release);
        kick(s);
    } else if let Some(index) = s.link.load(Relaxed).checked_sub(1) {
        // On TCP since its handshake; the link keeps the page until now.
        s.link.store(0, Release);
        let own = lock::with(|all| {
            let own = all.slot(index).is_some_and(|slot| slot.is_of(s));
            if own {
                all.release(index);
            }
            own
        });
        if own != Some(true) && lock::is_inherited() {
            lock::kick_parent();
        }
    }
    s.link.store(0, Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::file::FromFile;
    use crate::family;
    use crate::sys::fd;

    #[test]
    fn what_is_sent_first_to_a_peer_that_has_closed_is_taken_from_its_pipe() {
        let s = family::take_sock().expect("a record");
        // SAFETY: all zero is a fresh direction.
        let back: Dir = unsafe { std::mem::zeroed() };
        back.fin.store(fin::CLOSED, Relaxed);
        let [from, to] = fd::pipe().expect("a pipe");
        let answer = || match answer_send(s, &back, &mut FromFile::pipe(from, 10)) {
            Some(Step::Moved(n)) => Ok(n),
            Some(Step::Failed(e)) => Err(e.0),
            _ => panic!("an open peer"),
        };
        assert_eq!(answer(), Err(libc::EAGAIN), "nothing there, and nothing sent");
        assert_eq!(fd::write_all(to, b"abc"), Ok(3));
        assert_eq!((answer(), fd::unread(from)), (Ok(3), Ok(0)));
        assert_eq!(fd::write_all(to, b"d"), Ok(1));
        assert_eq!((answer(), fd::unread(from)), (Err(libc::EPIPE), Ok(1)));
    }
}
