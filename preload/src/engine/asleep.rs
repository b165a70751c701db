//! The sleep of a blocking call: in the kernel, on the TCP connection and on what wakes this thread.
//!
//! It is libc's real ppoll: a cancellation point, ended by signals. Whether the call then goes on or ends with EINTR is decided as the
//! kernel would for recv and send (`signals`). No lock is held here. Called by [`super::wait`], and for a moment by [`super::rx`].

use super::timer::Timer;
use super::{ear, inside, kept, kernel, linked, signals, waiter};
use crate::control::wake;
use crate::family::process::count;
use crate::family::sock::Sock;
use crate::link::cover;
use crate::real;
use crate::sys::{Errno, Res, clock, fd, thread};
use crate::transport::idle;
use crate::transport::waiters::Waiter;
use smcr_proto::page::Counter;

/// What has ended a sleep.
pub enum Woke {
    /// The condition, or the eventfd.
    Event,
    /// The TCP connection.
    Kernel,
}

/// How long a thread sleeps that has nothing by which another one could tell it that the number is closed.
const UNHEARD_NS: u64 = 100_000_000;

/// Sleeps until `ready`, or until something comes for the call. `ready` is told whether the link's channel is listened to, which has
/// been looked at then. `at_most`: ns after which the caller looks again.
#[expect(clippy::too_many_arguments, reason = "one sleep for all that wait")]
pub fn sleep(
    s: &Sock,
    sock: i32,
    events: i16,
    me: Option<Waiter>,
    at_most: Option<u64>,
    timer: &mut Timer,
    begun: bool,
    ready: impl Fn(bool) -> bool,
) -> Res<Woke> {
    kept::give();
    crate::control::look();
    idle::look();
    let left = timer.left();
    if left == Some(0) {
        return Err(Errno(libc::EAGAIN));
    }
    // Who is not to be woken by name is told all the same when the number goes ([`super::rouse`]).
    let can_lose = !thread::is_only();
    let me = me.or_else(|| if can_lose { waiter::thread_waiter() } else { None });
    let unheard = (can_lose && me.is_none()).then_some(UNHEARD_NS);
    if let Some(w) = me {
        w.fall_asleep();
    }
    // What TCP shows of a connection over a link is not the program's; the link's own channel is heard.
    let linked = s.is_linked();
    let channel = if linked { cover::enter(me) } else { None };
    let leave = |heard| {
        if channel.is_some() {
            cover::leave(heard);
        }
    };
    if ready(channel.is_some()) || inside::is_gone(s) || inside::descriptor(s, sock) != sock {
        if let Some(w) = me {
            w.wake_up();
        }
        leave(false);
        return Ok(Woke::Event);
    }
    let mut fds = [
        match linked {
            true => libc::pollfd { fd: channel.unwrap_or(-1), events: libc::POLLIN, revents: 0 },
            false => libc::pollfd { fd: sock, events, revents: 0 },
        },
        libc::pollfd { fd: me.map_or(-1, Waiter::eventfd), events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: wake::descriptor(), events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: me.map_or(-1, |w| ear::of(s, w)), events: libc::POLLIN, revents: 0 },
    ];
    let listened = if fds[3].fd < 0 { 3 } else { 4 };
    count(Counter::Sleeps, 1);
    let (interrupt, since) = (signals::interrupt(), timer.when());
    inside::enter(s, &fds);
    let short = if linked { linked::longest_sleep(s, me) } else { None };
    let (limit, left) = (left, [left, short, at_most, unheard].into_iter().flatten().min());
    // A thread that is cancelled in here, or jumps out of a handler, never returns: `inside` notices.
    let slept = match sleep_on(&mut fds[..listened], left, timer) {
        // An error queue that the program does not read: the kernel says so again and again, and recv waits all the same.
        Ok(1) if is_of_queue(fds[0].revents) => {
            fds[0].fd = -1;
            sleep_on(&mut fds[..listened], Some(left.unwrap_or(MOMENT_NS).min(MOMENT_NS)), timer).map(|n| n.max(1))
        }
        slept => slept,
    };
    let (slept, is_refused) = match slept {
        Err(Errno(libc::EINVAL)) => (a_millisecond(timer), true),
        slept => (slept, false),
    };
    inside::leave(s);
    if let Some(w) = me {
        w.wake_up();
        if fds[1].revents != 0 {
            waiter::hear_later();
        }
        if fds[3].revents != 0 {
            ear::hear(s, w);
        }
    }
    if fds[2].revents != 0 {
        wake::take();
    }
    leave(linked && fds[0].revents != 0);
    if let Err(e) = slept {
        if e.0 == libc::EINTR && !begun && !timer.has_limit() && signals::restarts(interrupt, since) {
            return Ok(Woke::Event);
        }
        return Err(e);
    }
    if slept == Ok(0) {
        return if left == limit && !is_refused { Err(Errno(libc::EAGAIN)) } else { Ok(Woke::Event) };
    }
    if linked {
        return Ok(Woke::Event);
    }
    if fds[0].revents != 0 {
        return Ok(Woke::Kernel);
    }
    // The kernel has just said that its socket has nothing: the next send need not ask.
    kernel::looked_now(s);
    Ok(Woke::Event)
}

/// Whether the error queue is all that shows: an end, or an error of the connection, shows more.
fn is_of_queue(shows: i16) -> bool {
    shows == libc::POLLERR
}

/// As [`sleep`], on TCP alone.
pub fn plain(s: &Sock, sock: i32, events: i16, timer: &mut Timer) -> Res<()> {
    sleep(s, sock, events, None, None, timer, false, |_| false).map(|_| ())
}

/// A millisecond for a blocking call that is called back for nothing again and again. Errors as
/// [`super::wait::for_data`].
#[cold]
pub fn a_moment(sock: i32, timer: &mut Timer) -> Res<()> {
    if timer.left() == Some(0) {
        return Err(Errno(libc::EAGAIN));
    }
    let (interrupt, since) = (signals::interrupt(), timer.when());
    match plain_for(sock, libc::POLLPRI, timer) {
        Err(e) if e.0 == libc::EINTR && !signals::restarts(interrupt, since) => Err(e),
        _ => Ok(()),
    }
}

/// A millisecond, of which there will be more. What the socket shows.
pub fn plain_for(sock: i32, events: i16, timer: &mut Timer) -> Res<i16> {
    let mut fds = [libc::pollfd { fd: sock, events, revents: 0 }];
    match sleep_on(&mut fds, Some(MOMENT_NS), timer) {
        Err(Errno(libc::EINVAL)) => a_millisecond(timer).map(|_| fd::poll_now(sock, events)),
        Ok(_) if is_of_queue(fds[0].revents) => a_millisecond(timer).map(|_| fds[0].revents),
        slept => slept.map(|_| fds[0].revents),
    }
}

/// The kernel takes no more descriptors in a poll than RLIMIT_NOFILE says, which a sandbox sets to 0: there a wait looks again each
/// millisecond.
#[cold]
pub fn a_millisecond(timer: &mut Timer) -> Res<i32> {
    sleep_on(&mut [], Some(MOMENT_NS), timer)
}

const MOMENT_NS: u64 = 1_000_000;

/// Sleeps, unless a handler has run since the call began, which would have ended a sleep of all that time.
fn sleep_on(fds: &mut [libc::pollfd], ns: Option<u64>, timer: &mut Timer) -> Res<i32> {
    if timer.is_interrupted() {
        return Err(Errno(libc::EINTR));
    }
    let ts = ns.map(clock::timespec);
    let tsp = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: array and timespec live through the call; no mask.
    let n = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, tsp, std::ptr::null()) };
    if n >= 0 {
        return Ok(n);
    }
    let e = crate::sys::errno();
    timer.is_interrupted(); // told now
    Err(e)
}
