//! The service thread: handshakes, LLC and its deadlines, completions while nobody polls.
//!
//! Made by the first handshake or marked listener of the process, with all signals blocked; it sleeps in poll(2) and costs
//! nothing while its links are idle. A forked child has none until it begins a handshake itself.

use super::FOR_FIRST;
use super::backlog::{self, Listener};
use super::blocked::Blocked;
use super::desk;
use super::heir::Heir;
use super::relatives;
use super::shake::{self, Shake};
use super::way_back::Leaver;
use crate::family::sock::{Sock, flag};
use crate::link::cover::{self, rest::Rest};
use crate::link::leave::TcpEvent;
use crate::link::lock::{self, now};
use crate::link::slot::Id;
use crate::log;
use crate::sys::few::{self, Brief};
use crate::sys::{fd, held, net, proc, spare};
use crate::verbs::uevent;
use smcr_proto::smc::Time;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

/// Work for the thread, the last one first.
struct Node {
    job: Job,
    next: *mut Node,
}

// One at a time in a list of a few.
#[allow(clippy::large_enum_variant)]
enum Job {
    Shake(Shake),
    Later(Later),
    Leave(Leaver),
    Listen(Listener),
    Inherit(Heir),
}

/// An accepted connection that nobody has used yet.
struct Later {
    s: &'static Sock,
    generation: u32,
    cookie: u64,
    fd: i32,
    at: Time,
}

/// How long an accepted connection may wait for its first use.
const UNUSED: Time = Time::from_millis(300);
/// How long connections that nobody uses are begun in one round: who is refused is waited for ([`super::PATIENCE_OF_SERVICE`]).
const SLOW: Time = Time::from_millis(200);
/// When to look again where a fork is under way, or no descriptor is left.
const SOON: Time = Time::from_millis(10);

mod run {
    pub const NOT: u32 = 0;
    pub const BEGINS: u32 = 1;
    pub const IS: u32 = 2;
}

static SUBMITTED: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());
static RUNNING: AtomicU32 = AtomicU32::new(run::NOT);
/// epoll set of the TCP connections below links: their end may be the peer's death.
static WATCH: AtomicI32 = AtomicI32::new(-1);

/// Hands a handshake to the thread.
pub fn submit(shake: Shake) {
    enqueue(Job::Shake(shake));
}

/// A listener is marked: what waits there for too long is looked after ([`backlog`]).
pub fn watch_listener(s: &'static Sock, fd: i32) {
    enqueue(Job::Listen(Listener::new(s, fd)));
}

/// A connection goes back to TCP.
pub fn leave(leaver: Leaver) {
    enqueue(Job::Leave(leaver));
}

/// A forked child: where the handshake of a connection is its parent's, it goes on here when that ends.
pub fn inherit(held: impl Iterator<Item = &'static Sock>) {
    held.filter_map(Heir::new).for_each(|heir| enqueue(Job::Inherit(heir)));
}

/// The connection was accepted; if nobody uses it soon, its handshake begins all the same.
pub fn begin_later(s: &'static Sock, fd: i32) {
    let (generation, cookie) = (s.generation.load(Relaxed), s.cookie.load(Relaxed));
    enqueue(Job::Later(Later { s, generation, cookie, fd, at: now() + shake::patience(UNUSED) }));
}

/// Whether there is such a thread.
pub fn is_running() -> bool {
    RUNNING.load(Relaxed) == run::IS
}

/// The same, and makes it if there is none. False where the process may have no more threads or descriptors.
pub fn ensure() -> bool {
    // A handler that interrupted this would wait for itself.
    is_running()
        || proc::with_signals_blocked(|| {
            loop {
                match RUNNING.compare_exchange(run::NOT, run::BEGINS, AcqRel, Acquire) {
                    Err(run::IS) => return true,
                    Err(_) => drop(fd::poll(&mut [], 1)),
                    Ok(_) => {
                        let is = start();
                        RUNNING.store(if is { run::IS } else { run::NOT }, Release); // pairs with the Acquire above
                        return is;
                    }
                }
            }
        })
}

fn enqueue(job: Job) {
    let node = Box::into_raw(Box::new(Node { job, next: std::ptr::null_mut() }));
    let mut head = SUBMITTED.load(Relaxed);
    loop {
        // SAFETY: not yet seen by anybody else.
        unsafe { (*node).next = head };
        match SUBMITTED.compare_exchange_weak(head, node, Release, Relaxed) {
            Ok(_) => break,
            Err(now) => head = now,
        }
    }
    if ensure() {
        lock::call_service();
    }
}

fn start() -> bool {
    let Ok(event) = Brief::open(fd::eventfd) else { return false };
    if !few::are_left(event.fd(), FOR_FIRST) {
        return false;
    }
    let event = fd::park(event.keep());
    let watch = fd::epoll_create().map(fd::park).unwrap_or(-1);
    if watch >= 0 && held::can_hold(event) {
        WATCH.store(watch, Release);
        lock::set_service(event);
        spare::make();
        if std::thread::Builder::new().name("smcr-link".into()).stack_size(256 * 1024).spawn(serve).is_ok() {
            return true;
        }
        lock::set_service(-1);
        WATCH.store(-1, Release);
    }
    [event, watch].into_iter().filter(|own| *own >= 0).for_each(fd::close);
    false
}

/// What the thread has to do.
#[derive(Default)]
struct Work {
    shakes: Vec<Shake>,
    leavers: Vec<Leaver>,
    /// Connections that are to leave, and for which there was no descriptor.
    refused: Vec<u32>,
    later: Vec<Later>,
    listeners: Vec<Listener>,
    heirs: Vec<Heir>,
    blocked: Blocked,
    rest: Rest,
}

/// The thread.
fn serve() {
    let mut work = Work::default();
    loop {
        if crate::sys::caught(|| round(&mut work)).is_none() {
            log::warn!(target: "smcr::link", "the service thread failed; its handshakes are given up");
            work = Work::default();
        }
    }
}

fn round(work: &mut Work) {
    let Work { shakes, leavers, refused, later, listeners, heirs, blocked, rest } = work;
    let mut node = SUBMITTED.swap(std::ptr::null_mut(), Acquire);
    while !node.is_null() {
        // SAFETY: made by `submit`, taken off the list by this thread alone.
        let taken = unsafe { Box::from_raw(node) };
        node = taken.next;
        match taken.job {
            Job::Shake(shake) => shakes.push(shake),
            Job::Later(l) => later.push(l),
            Job::Leave(l) => leavers.push(l),
            Job::Inherit(heir) => heirs.push(heir),
            Job::Listen(l) => {
                hear(l.fd, libc::EPOLL_CTL_ADD);
                listeners.push(l);
            }
        }
    }
    let until = now() + SLOW;
    later.retain_mut(|l| {
        let waits = l.s.has(flag::UNASKED) && l.s.generation.load(Relaxed) == l.generation;
        // Each may be a peer that says nothing, and is refused: the links are looked at in between.
        if !waits || l.at > now() || now() >= until {
            return waits;
        }
        l.at = now() + SOON;
        net::cookie(l.fd) == Ok(l.cookie) && !super::begin_unused(l.s, l.fd)
    });
    heirs.retain_mut(|heir| !heir.look(|shake| shakes.push(shake)));
    let next = lock::with(|all| {
        all.poll();
        all.tick()
    });
    listeners.retain_mut(|l| {
        let there = l.timeout().is_none_or(|at| at > now()) || l.is_there();
        if there && l.look() {
            hear(l.fd, libc::EPOLL_CTL_MOD);
        }
        there
    });
    let first_later = later.iter().map(|l| l.at).chain(listeners.iter().filter_map(Listener::timeout)).chain(heirs.iter().map(|h| h.at)).min();
    let mut at = [next.flatten(), first_later].into_iter().flatten().min();
    let (mut i, time) = (0, now());
    while i < shakes.len() {
        if shakes[i].is_due(time) && shakes[i].step(blocked) {
            shakes.swap_remove(i).end();
        } else {
            i += 1;
        }
    }
    let wanted = lock::with(|all| std::mem::take(&mut all.leavers)).unwrap_or_default();
    for index in std::mem::take(refused).into_iter().chain(wanted) {
        match Leaver::find(index) {
            Ok(found) => leavers.extend(found),
            Err(_) => refused.push(index),
        }
    }
    leavers.retain_mut(|l| !l.step());
    let heard = uevent::descriptor().unwrap_or(-1);
    let own = [lock::service(), WATCH.load(Relaxed), heard, desk::descriptor()];
    let mut fds: Vec<libc::pollfd> = own.iter().map(|fd| entry(*fd, libc::POLLIN)).collect();
    let first = fds.len();
    for shake in shakes.iter() {
        let wants = shake.wants();
        at = [at, wants.at].into_iter().flatten().min();
        fds.push(entry(if wants.events == 0 { -1 } else { shake.fd }, wants.events));
    }
    for leaver in leavers.iter() {
        let wants = leaver.wants();
        at = [at, wants.at].into_iter().flatten().min();
        fds.push(entry(if wants.events == 0 { -1 } else { leaver.fd }, wants.events));
    }
    let rests = rest.look(now(), shakes.is_empty() && leavers.is_empty() && heirs.is_empty());
    let again = (!refused.is_empty()).then(|| now() + SOON);
    at = [at, rests, again].into_iter().flatten().min();
    // Armed before the last look: what comes afterwards makes an event.
    let busy = lock::with(|all| {
        if rests.is_some() {
            // Of one who was woken by it and did not come.
            cover::take_events(all);
        }
        for d in &all.devices {
            fds.push(entry(if rests.is_none() { d.event_fd() } else { -1 }, libc::POLLIN));
            fds.push(entry(d.async_fd(), libc::POLLIN));
        }
        cover::arm(all);
        all.poll() || !all.leavers.is_empty()
    });
    if busy == Some(true) || !SUBMITTED.load(Acquire).is_null() {
        return;
    }
    if fd::poll(&mut fds, at.map_or(-1, shake::until)).unwrap_or(0) == 0 {
        return;
    }
    if fds[0].revents != 0 {
        lock::was_called();
        cover::rest::end();
        relatives::watch(|child, place| listen(child, libc::EPOLLIN, CHILD | place as u64, libc::EPOLL_CTL_ADD));
        lock::with(|all| all.mark_all());
    }
    if fds[1].revents != 0 {
        tcp_events(listeners);
    }
    if fds[2].revents != 0 {
        let heard = uevent::take();
        lock::with(|all| all.devices_changed(heard));
    }
    if fds[3].revents != 0 {
        desk::answer();
    }
    for (shake, entry) in shakes.iter_mut().zip(&fds[first..]) {
        shake.is_signalled = entry.revents != 0;
    }
    lock::with(|all| {
        let number = |fd: i32| fds.iter().any(|f| f.fd == fd && f.revents != 0);
        let mut events = Vec::new();
        if all.devices.iter().any(|d| number(d.event_fd())) && cover::take_events(all) {
            all.poll(); // who sleeps now may have relied on the event
        }
        for (at, d) in all.devices.iter_mut().enumerate() {
            if number(d.async_fd())
                && let Some(event) = d.take_async()
            {
                log::info!(target: "smcr::verbs", event = ?event, "device event");
                events.push((at, event));
            }
        }
        for (at, event) in events {
            all.device_event(at, event);
        }
    });
}

fn entry(fd: i32, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Notes the TCP connection below a link, to hear of its end, and of what a peer with libsmcr (`speaks`) says there.
/// Once: afterwards the stream is the program's, or over.
pub fn watch(tcp: i32, id: Id, speaks: bool) {
    let said = if speaks { libc::EPOLLIN } else { 0 };
    let data = u64::from(id.serial & SERIAL) << 32 | u64::from(id.index);
    listen(tcp, libc::EPOLLRDHUP | said | libc::EPOLLET, data, libc::EPOLL_CTL_ADD);
}

/// Bits of a serial number that the data of [`WATCH`] has.
const SERIAL: u32 = u32::MAX >> 1;
/// Bit of the data of [`WATCH`] for a listener, beside its number; with the second one for a child, beside its place.
const LISTENER: u64 = 1 << 63;
const CHILD: u64 = LISTENER | 1 << 62;

/// Asks to hear of the next connection of a listener.
fn hear(listener: i32, op: i32) {
    listen(listener, libc::EPOLLIN, LISTENER | listener as u64, op);
}

/// Asks to hear of the end of a connection of our own that stands in a queue: under its number, as a listener.
pub(super) fn watch_stand_in(ours: i32, op: i32) {
    listen(ours, libc::EPOLLRDHUP, LISTENER | ours as u64, op);
}

/// Once.
fn listen(to: i32, events: i32, data: u64, op: i32) {
    let e = libc::epoll_event { events: (events | libc::EPOLLONESHOT) as u32, u64: data };
    let _ = fd::epoll_ctl(WATCH.load(Relaxed), op, to, Some(e));
}

/// Something happened on TCP connections below links, on listeners, or to children.
fn tcp_events(listeners: &mut [Listener]) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
    // SAFETY: the array has 32 entries.
    let n = unsafe { fd::epoll_wait(WATCH.load(Relaxed), events.as_mut_ptr(), 32, 0) }.unwrap_or(0);
    for e in events[..n.min(32)].iter().filter(|e| e.u64 & CHILD == CHILD) {
        relatives::ended((e.u64 & !CHILD) as usize);
    }
    for e in events[..n.min(32)].iter().filter(|e| e.u64 & CHILD == LISTENER) {
        let number = (e.u64 & !LISTENER) as i32;
        match listeners.iter_mut().find(|l| l.fd == number) {
            Some(listener) => listener.heard(),
            None => backlog::a_stand_in_ended(), // which may have moved since
        }
    }
    lock::with(|all| {
        for e in events[..n.min(32)].iter().filter(|e| e.u64 & LISTENER == 0) {
            let says = |bits: i32| e.events & bits as u32 != 0;
            let what = match () {
                () if says(libc::EPOLLERR) => TcpEvent::Reset,
                () if says(!libc::EPOLLIN) => TcpEvent::Ended,
                () => TcpEvent::Readable,
            };
            all.tcp_event(e.u64 as u32, (e.u64 >> 32) as u32, what);
        }
    });
}

/// A forked child has no service thread.
pub fn forget_in_child() {
    RUNNING.store(run::NOT, Relaxed);
    SUBMITTED.store(std::ptr::null_mut(), Relaxed);
    relatives::forget_in_child();
    spare::forget_in_child();
    let watch = WATCH.swap(-1, Relaxed);
    if watch >= 0 {
        fd::close(watch);
    }
}

/// Whether `fd` is one of our descriptors here.
pub fn owns(fd: i32) -> bool {
    let mut found = false;
    descriptors(&mut |own| found |= own == fd && fd >= 0);
    found
}

/// Names our descriptors here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    add(lock::parent());
    desk::descriptors(&mut *add);
    if RUNNING.load(Relaxed) == run::NOT {
        return;
    }
    add(lock::service());
    add(WATCH.load(Relaxed));
    backlog::descriptors(&mut *add);
    relatives::descriptors(&mut *add);
    cover::descriptor().into_iter().chain(uevent::descriptor()).chain(spare::descriptor()).for_each(&mut *add);
    lock::with(|all| {
        for d in &all.devices {
            d.descriptors().into_iter().for_each(&mut *add);
        }
    });
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    cover::moved(old, new)
        || lock::moved(old, new)
        || uevent::moved(old, new)
        || spare::moved(old, new)
        || WATCH.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
        || backlog::moved(old, new)
        || relatives::moved(old, new)
        || lock::with(|all| all.devices.iter_mut().any(|d| d.moved(old, new))) == Some(true)
}
