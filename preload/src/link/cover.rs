//! Who listens to the completion channel: threads of the program that wait, and the service thread while it does not rest.
//!
//! A thread that waits for a connection over a link and is woken by the network card itself saves the way
//! through the service thread. One in a blocking call does so at a time ([`enter`]), and every epoll set that has the channel;
//! the others, the *deaf*, are woken by whoever has polled.
//!
//! If the service thread listens beside them, each completion wakes two. So it rests while threads of the program look often:
//! it leaves the channel out of its sleep, comes by itself after 40 ms at most ([`rest`]), and takes what nobody has taken. What holds:
//! - It rests only where no deaf thread sleeps, nothing waits for a completion, and no handshake or way back is under way.
//! - Who wakes and leaves a deaf thread alone calls it ([`leave`]); so does a connection that begins to wait for a completion
//!   ([`call_up`]), and everybody who has something for it (a child that uses a connection). Then it listens at once.
//! - Nobody else waits: what comes while the program computes is for the program, or has time (LLC, whose deadlines are
//!   seconds; waiters that are not seen, which are looked for each 20 ms; a peer's credits, for which it comes sooner).
//!   It lies no longer than that, also where a thread was woken and never came back (a handler that computes, or jumps).
//! - Where nobody looks any more it listens again, so an idle connection costs nothing.
//!
//! *Armed* ([`ARMED`]): a completion makes an event, or an event lies unread in the channel. Who takes an event arms at once if
//! anybody else may sleep by it; else who next sleeps does.

mod armed;
pub mod rest;

use super::lock;
use super::lock::STALLED;
use super::state::State;
use crate::family::process;
use crate::sys::thread::{self, full_fence};
use crate::sys::{Errno, fd};
use crate::transport::waiters::{self, Waiter};
use crate::verbs::device::Device;
pub use armed::arm;
pub(super) use armed::{disarmed, wants_all};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// The thread that listens in a blocking call; 0 none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The channel; where there are several devices, an epoll set of their channels.
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
/// Changes with it.
static SERIAL: AtomicU32 = AtomicU32::new(1);
/// That set, once there is one.
static SEVERAL: AtomicI32 = AtomicI32::new(-1);

/// Whether it is the calling thread that is about to sleep by this waiter.
pub(super) fn is_about_to(w: Waiter) -> bool {
    thread::here().about.get() == w.word()
}

/// An event was left in the channel by a thread that found the lock taken: an epoll set does not tell of it again.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// The devices have changed.
pub fn note_devices(state: &State) {
    let open: Vec<&Device> = state.devices.iter().filter(|d| d.is_open()).collect();
    let channel = match &open[..] {
        [] => -1,
        // Who sleeps on the set may go on.
        [only] if SEVERAL.load(Relaxed) < 0 => only.event_fd(),
        several => set_of(several),
    };
    disarmed();
    if CHANNEL.swap(channel, AcqRel) != channel {
        SERIAL.fetch_add(1, Release); // pairs with the Acquire in `channel`
    }
    // Who sleeps on the one before does not hear.
    call_up();
}

/// The set of the channels of all devices; -1 if it can't be made: the service thread hears them all.
fn set_of(devices: &[&Device]) -> i32 {
    if SEVERAL.load(Relaxed) < 0
        && let Ok(set) = fd::epoll_create()
    {
        SEVERAL.store(fd::park(set), Relaxed);
    }
    let set = SEVERAL.load(Relaxed);
    for d in devices {
        let e = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        match fd::epoll_ctl(set, libc::EPOLL_CTL_ADD, d.event_fd(), Some(e)) {
            Ok(_) | Err(Errno(libc::EEXIST)) => {}
            Err(_) => return -1,
        }
    }
    set
}

/// The set, if there is one: a descriptor of the library's.
pub fn descriptor() -> Option<i32> {
    Some(SEVERAL.load(Relaxed)).filter(|set| *set >= 0)
}

/// The channel has another number now; true if it is the set of channels.
pub fn moved(old: i32, new: i32) -> bool {
    let _ = CHANNEL.compare_exchange(old, new, AcqRel, Relaxed);
    SEVERAL.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}

/// The channel, for an epoll set that wants to hear of it, and a number that is another one when it is another channel; not 0.
pub fn channel() -> Option<(i32, u32)> {
    let serial = SERIAL.load(Acquire);
    Some((CHANNEL.load(Acquire), serial)).filter(|(c, _)| *c >= 0)
}

/// Whether this is a channel, or the set of them.
pub fn is_channel(fd: i32) -> bool {
    descriptor() == Some(fd) || lock::with(|all| all.devices.iter().any(|d| d.event_fd() == fd)) == Some(true)
}

/// Begins to listen, as `me`, which says that it sleeps. None: another thread does. The caller looks at its connection once
/// more, sleeps with the channel among its descriptors, and calls [`leave`].
pub fn enter(me: Option<Waiter>) -> Option<i32> {
    let (channel, _) = channel().filter(|_| !process::is_new_child())?;
    // SeqCst: pairs with the fence in `leave`. Either this finds no owner, or who leaves finds a deaf sleeper.
    OWNER.compare_exchange(0, process::tid(), SeqCst, SeqCst).ok()?;
    hears(me);
    Some(channel)
}

/// The same for an epoll set that has the channel with this number: true if that is the one.
pub fn enter_set(me: Waiter, serial: u32) -> bool {
    let is_so = channel().is_some_and(|(_, now)| now == serial);
    if is_so {
        hears(Some(me));
    }
    is_so
}

/// The queues are armed before the caller's last look.
fn hears(me: Option<Waiter>) {
    if let Some(w) = me {
        w.hears();
        thread::here().about.set(w.word());
    }
    // Pairs with the fence in `take`: either this sees that nothing is armed, or that one sees a sleeper.
    full_fence();
    let left = LEFT.load(Relaxed) != 0;
    if left || !armed::is_armed() {
        lock::with(|all| {
            if LEFT.swap(0, Relaxed) != 0 {
                take_events(all);
            }
            if arm(all) {
                all.poll();
            }
        });
    }
}

/// Ends it, in the thread that has entered, when its waiter is awake again, or says "asleep" for others; `heard`: the channel was readable.
pub fn leave(heard: bool) {
    thread::here().about.set(0);
    let _ = OWNER.compare_exchange(process::tid(), 0, Release, Relaxed);
    rest::note_look();
    if heard {
        take();
    }
    if rest::is_on() {
        // As in `enter`, and as in `rest::begin`.
        full_fence();
        if rest::is_on() && is_anybody_alone() {
            call_up();
        }
    }
}

/// The service thread is to listen.
pub fn call_up() {
    // As in `Rest::look`.
    full_fence();
    if rest::end() {
        lock::call_service();
    }
}

/// Whether a thread sleeps that does not hear the channel.
fn is_anybody_deaf() -> bool {
    waiters::own_slots().any(|w| w.is_asleep() && !w.is_hearing())
}

/// The same, and none that does.
fn is_anybody_alone() -> bool {
    let mut deaf = false;
    for w in waiters::own_slots().filter(|w| w.is_asleep()) {
        if w.is_hearing() {
            return false;
        }
        deaf = true;
    }
    deaf
}

/// Takes an event off the channel, and what has arrived.
pub fn take() {
    let held = lock::try_with(|all| {
        let any = take_events(all);
        if all.poll() {
            rest::note_look();
        }
        // Pairs with the fence in `hears`.
        full_fence();
        let alone = rest::is_on() && !waiters::own_slots().any(|w| w.is_asleep());
        if any && !alone && arm(all) {
            all.poll();
        }
    });
    if !held {
        LEFT.store(1, Relaxed);
    }
}

/// Takes an event off each channel, if there is one.
pub fn take_events(all: &mut State) -> bool {
    let mut any = false;
    for d in &mut all.devices {
        any |= d.take_event();
    }
    if any {
        disarmed();
    }
    any
}

/// The calling thread ends, or jumps, perhaps while it listened.
pub fn thread_ends() {
    let _ = OWNER.compare_exchange(process::tid(), 0, AcqRel, Relaxed);
}

/// A forked child has neither links nor listeners.
pub fn forget_in_child() {
    OWNER.store(0, Relaxed);
    CHANNEL.store(-1, Relaxed);
    LEFT.store(0, Relaxed);
    disarmed();
    rest::forget_in_child();
    let set = SEVERAL.swap(-1, Relaxed);
    if set >= 0 {
        fd::close(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smcr_proto::smc::Time;

    /// The service thread finds two looks of the program's threads. Whether it rests.
    fn comes_after_two_looks(r: &mut rest::Rest, now: &mut Time) -> bool {
        *now += Time::from_secs(1);
        r.look(*now, true);
        rest::note_look();
        rest::note_look();
        *now += Time::from_millis(1);
        let until = r.look(*now, true);
        assert_eq!(until.is_some(), rest::is_on());
        until.is_some()
    }

    /// One test: what it looks at is the process's.
    #[test]
    fn it_rests_only_while_nobody_is_left_alone() {
        let [deaf, hearing] = [waiters::take().unwrap(), waiters::take().unwrap()];
        let (mut r, mut now) = (rest::Rest::default(), Time::from_secs(1));
        assert!(comes_after_two_looks(&mut r, &mut now));
        leave(false);
        assert!(rest::is_on(), "nobody sleeps");

        deaf.fall_asleep();
        leave(false);
        assert!(!rest::is_on(), "who leaves it alone calls");
        assert!(!comes_after_two_looks(&mut r, &mut now), "it does not rest beside one");
        deaf.wake_up();

        assert!(comes_after_two_looks(&mut r, &mut now));
        hearing.fall_asleep();
        disarmed();
        hears(Some(hearing));
        assert!(armed::is_armed(), "who sleeps by the channel has armed it");
        deaf.fall_asleep();
        leave(false);
        assert!(rest::is_on(), "another one hears");
        hearing.wake_up();
        leave(false);
        assert!(!rest::is_on(), "that was the last");
        deaf.wake_up();

        assert!(comes_after_two_looks(&mut r, &mut now));
        call_up();
        assert_eq!(r.look(now, true), None, "it was called");
        [deaf, hearing].into_iter().for_each(Waiter::release);
    }
}
