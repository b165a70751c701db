//! Porters: processes of a few instructions that touch what a process of another user has passed, so that no thread of the
//! program has to.
//!
//! A descriptor takes whoever closes it into the hands of who made it: a TCP socket with SO_LINGER waits for a reader, a file
//! of a FUSE mount for the daemon, and that wait no signal ends. A socket drops what lies in its queue with it. Once such a
//! descriptor stands in our table, each way to be rid of it is such a close: by a thread, which exec and exit wait for; by the
//! exit itself. So a message with descriptors is looked at first by a porter, which shares our memory and has a *copy* of our
//! table. If it is what it should be, the porter ends, and we take it. If not, the porter takes it out of the channel, lets
//! go of all else, and ends with it, however long that takes: it has no memory of ours by then, is no thread of ours, and
//! sends no signal when it ends. What sockets we let go of is closed in the same way: not the last reference to them.
//!
//! Between processes of one user there are no porters (`transport::peers`).

mod work;

use super::{Errno, Sysno, call, clock, fd, left, mem, proc, start};
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// At a time. Each may wait for long: who holds them all has strangers stay on TCP.
const MOST: usize = 8;
const STACK: usize = 64 << 10;
/// Descriptors that one takes along.
const LOAD: usize = 260;
/// How long the program's thread may take to close its copies.
const PATIENCE_S: i64 = 5;

/// What a look at a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It has what it should have.
    Good,
    /// It had something else; the channel is at its end.
    Hostile,
    /// Not to be had now.
    Unknown,
}

const PENDING: u32 = 0;
const GOOD: u32 = 1;
const HOSTILE: u32 = 2;
const UNKNOWN: u32 = 3;

/// Whether descriptors are what a message should have. Runs in a porter: nothing that waits, no memory of the thread's.
pub type Fits = fn(&[u8], &[c_int]) -> bool;

/// What a porter has to do; at the foot of its stack.
struct Errand {
    /// 1 until it is out of our memory: the kernel clears it.
    inside: AtomicU32,
    /// The number of a verdict.
    verdict: AtomicU32,
    /// The thread has closed its copies.
    closed: AtomicU32,
    /// It has nothing of our table but its load.
    apart: AtomicU32,
    fits: Option<Fits>,
    /// The channel, or what is let go of; sorted.
    load: [c_int; LOAD],
    count: usize,
}

struct Place {
    /// A thread sends its porter, or reads what it says.
    is_held: AtomicBool,
    /// The porter; 0 none. Goes back to 0 when it has ended, whoever finds that.
    pid: AtomicU32,
    stack: AtomicPtr<u8>,
}

static PLACES: [Place; MOST] =
    [const { Place { is_held: AtomicBool::new(false), pid: AtomicU32::new(0), stack: AtomicPtr::new(std::ptr::null_mut()) } }; MOST];

/// A porter that was sent. Until this goes, the place and the errand are nobody else's.
struct Hired {
    place: &'static Place,
    errand: &'static Errand,
}

impl Hired {
    /// Until it has ended, or nothing of our table but its load. What it has, too, a close() of ours does not end: its peer is
    /// not told, and epoll sets go on telling of it. Bounded, for something may hold it.
    fn await_apart(&self) {
        const YIELDS: u32 = 50;
        const TRIES: u32 = 1000;
        for n in 0..TRIES {
            match n {
                _ if self.errand.apart.load(Acquire) != 0 || self.place.is_over() => return,
                ..YIELDS => proc::yield_now(),
                _ => wait_while(&self.errand.apart, 0, 0, 1_000_000),
            }
        }
    }
}

impl Drop for Hired {
    fn drop(&mut self) {
        ABOUT.fetch_sub(1, Release);
        self.place.is_held.store(false, Release); // pairs with the Acquire in `Place::hold`
    }
}

/// How often they are sent for what strangers do. One takes as long as a copy of our table, where who makes it necessary spends a
/// system call.
struct Pace(AtomicU64);

impl Pace {
    /// At once, and then one in so many ns.
    const BURST: u64 = 256;
    const GAP_NS: u64 = 2_000_000;

    /// Whether one more is too many at `now`.
    fn is_exceeded(&self, now: u64) -> bool {
        self.0.load(Relaxed) > now + (Self::BURST - 1) * Self::GAP_NS
    }

    /// One was sent.
    fn took_one(&self, now: u64) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |paid| Some(paid.max(now) + Self::GAP_NS));
    }
}

static PACE: Pace = Pace(AtomicU64::new(0));

/// Whether strangers are to wait: so many porters were sent of late. What was let go of is closed all the same.
pub fn is_hurried() -> bool {
    PACE.is_exceeded(clock::now_ns())
}

/// Threads that have sent one which may have a copy of our table.
static ABOUT: AtomicU32 = AtomicU32::new(0);

/// The program may be permitted none.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Looks at the first message of a channel, which has descriptors.
pub fn weigh(channel: c_int, fits: Fits) -> Verdict {
    if is_hurried() {
        return Verdict::Unknown;
    }
    proc::with_signals_blocked(|| {
        let Some(hired) = hire(Some(fits), &[channel]) else { return Verdict::Unknown };
        let e = hired.errand;
        let verdict = loop {
            match e.verdict.load(Acquire) {
                PENDING if e.inside.load(Acquire) == 0 => break e.verdict.load(Acquire), // killed, or through
                PENDING => wait_while(&e.verdict, PENDING, 0, 20_000_000),
                v => break v,
            }
        };
        match verdict {
            GOOD => {
                hired.await_apart();
                Verdict::Good
            }
            HOSTILE => Verdict::Hostile,
            _ => Verdict::Unknown,
        }
    })
}

/// Closes sockets that strangers have given or can put something into. Where no porter is to be had they stay open until
/// there is one.
pub fn let_go(fds: &[c_int]) {
    for some in fds.chunks(LOAD) {
        if !carry(some) {
            some.iter().for_each(|fd| left::leave(*fd));
        }
    }
}

/// Before a descriptor is closed: a porter that has it, too, would keep it open. In other threads than its own, which waits for it.
#[inline]
pub fn await_none() {
    if ABOUT.load(Acquire) != 0 {
        await_each();
    }
}

#[cold]
fn await_each() {
    const TRIES: u32 = 1000;
    for n in 0..TRIES {
        match n {
            _ if ABOUT.load(Acquire) == 0 => return,
            ..50 => proc::yield_now(),
            _ => drop(fd::poll(&mut [], 1)),
        }
    }
}

/// Whether no porter is to be had: all wait.
pub fn are_all_away() -> bool {
    look_after();
    PLACES.iter().all(|p| p.pid.load(Relaxed) != 0)
}

/// Frees the places of those that have ended, and lets go of what was left.
pub fn look_after() {
    look_after_places();
    let mut some = [-1; LOAD];
    let n = left::take(&mut some);
    let_go(&some[..n]);
}

/// No more of them: the program restricts its system calls.
pub fn stop() {
    STOPPED.store(true, Relaxed);
}

/// A forked child has no porters.
pub fn forget_in_child() {
    for p in &PLACES {
        p.pid.store(0, Relaxed);
        p.is_held.store(false, Relaxed);
    }
    ABOUT.store(0, Relaxed);
}

fn carry(fds: &[c_int]) -> bool {
    proc::with_signals_blocked(|| {
        let Some(hired) = hire(None, fds) else { return false };
        let e = hired.errand;
        // The porter has each of them too: none of these is the last, and a socket's close alone does not wait.
        fds.iter().for_each(|f| fd::close(*f));
        e.closed.store(1, Release);
        wake(&e.closed);
        hired.await_apart();
        hired.place.await_end();
        true
    })
}

impl Place {
    /// Takes a free place.
    fn hold(&self) -> bool {
        if self.is_held.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            return false;
        }
        let is_free = self.pid.load(Acquire) == 0;
        if !is_free {
            self.is_held.store(false, Release);
        }
        is_free
    }

    /// Whether its porter has ended.
    fn is_over(&self) -> bool {
        let pid = self.pid.load(Acquire);
        if pid == 0 {
            return true;
        }
        const WCLONE: usize = libc::__WCLONE as usize;
        // SAFETY: nothing is written.
        let waited = unsafe { call(Sysno::wait4, [pid as usize, 0, WCLONE | libc::WNOHANG as usize, 0, 0, 0]) };
        let is_out = match waited {
            Ok(n) => n == pid as usize,
            Err(Errno(libc::ECHILD)) => self.errand().is_none_or(|e| e.inside.load(Acquire) == 0),
            Err(_) => false,
        };
        is_out && self.pid.compare_exchange(pid, 0, AcqRel, Relaxed).is_ok()
    }

    /// It has our descriptors as well until it has ended, and nobody but us takes its status. That takes no time, unless
    /// something holds it: then the next one who looks finds it.
    fn await_end(&self) {
        const YIELDS: u32 = 50;
        const TRIES: u32 = 60;
        for n in 0..TRIES {
            match n {
                _ if self.is_over() => return,
                ..YIELDS => proc::yield_now(),
                _ => {
                    let _ = fd::poll(&mut [], 1);
                }
            }
        }
    }

    fn errand(&self) -> Option<&Errand> {
        let p = self.stack.load(Acquire).cast::<Errand>();
        // SAFETY: null, or a mapping of ours that stays and begins with an errand.
        unsafe { p.as_ref() }
    }
}

/// Sends a porter with `load`; None if there can be none.
fn hire(fits: Option<Fits>, load: &[c_int]) -> Option<Hired> {
    look_after_places();
    if STOPPED.load(Relaxed) {
        return None;
    }
    let place = PLACES.iter().find(|p| p.hold())?;
    let sent = (|| {
        let mut stack = place.stack.load(Acquire);
        if stack.is_null() {
            stack = mem::map_private(STACK).ok()?;
            place.stack.store(stack, Release);
        }
        let mut all = [c_int::MAX; LOAD];
        all[..load.len()].copy_from_slice(load);
        all[..load.len()].sort_unstable();
        let e = stack.cast::<Errand>();
        // SAFETY: a mapping of ours of STACK bytes that no porter and no thread uses: its place is held, and was free.
        let e: &'static Errand = unsafe {
            e.write(Errand {
                inside: AtomicU32::new(1),
                verdict: AtomicU32::new(PENDING),
                closed: AtomicU32::new(0),
                apart: AtomicU32::new(0),
                fits,
                load: all,
                count: load.len(),
            });
            &*e
        };
        ABOUT.fetch_add(1, AcqRel);
        // SAFETY: the stack is the porter's alone, and `work` returns nowhere.
        let started = unsafe { start::start(stack.add(STACK), work::work, e, &e.inside) };
        if started.is_err() {
            ABOUT.fetch_sub(1, Release);
        }
        Some((e, started.ok()?))
    })();
    let Some((errand, pid)) = sent else {
        place.is_held.store(false, Release);
        return None;
    };
    PACE.took_one(clock::now_ns());
    place.pid.store(pid, Release);
    Some(Hired { place, errand })
}

fn look_after_places() {
    PLACES.iter().filter(|p| p.pid.load(Relaxed) != 0).for_each(|p| {
        p.is_over();
    });
}

fn wait_while(word: &AtomicU32, value: u32, s: i64, ns: i64) {
    let ts = libc::timespec { tv_sec: s, tv_nsec: ns };
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [word.as_ptr() as usize, op, value as usize, &raw const ts as usize, 0, 0];
    // SAFETY: a live word and a timespec.
    let _ = unsafe { call(Sysno::futex, args) };
}

fn wake(word: &AtomicU32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: a live word.
    let _ = unsafe { call(Sysno::futex, [word.as_ptr() as usize, op, 1, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::rights;

    fn channel() -> [c_int; 2] {
        let mut ends = [-1; 2];
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
        // SAFETY: the kernel writes two ints.
        unsafe { call(Sysno::socketpair, [libc::AF_UNIX as usize, kind, 0, ends.as_mut_ptr() as usize, 0, 0]) }.expect("a pair");
        ends
    }

    fn is_event(raw: &[u8], fds: &[c_int]) -> bool {
        raw == b"event" && matches!(fds, [fd] if fd::event_set(*fd).is_ok())
    }

    #[test]
    fn what_fits_stays_and_what_does_not_is_taken_away() {
        let [ours, theirs] = channel();
        let event = fd::eventfd().expect("an eventfd");
        assert_eq!(weigh(ours, is_event), Verdict::Unknown);
        rights::send_with_fds(theirs, b"event", &[event]).expect("sent");
        assert_eq!(weigh(ours, is_event), Verdict::Good);
        let mut fds = [-1; rights::MAX_FDS];
        let (n, count) = rights::recv_with_fds(ours, &mut [0; 64], &mut fds).expect("a message");
        assert_eq!((n, count), (5, 1));
        rights::send_with_fds(theirs, b"other", &[event]).expect("sent");
        rights::send_with_fds(theirs, b"event", &[event]).expect("sent");
        assert_eq!(weigh(ours, is_event), Verdict::Hostile);
        [event, ours, theirs, fds[0]].into_iter().for_each(fd::close);
    }

    #[test]
    fn many_at_once_are_followed_by_few() {
        let pace = Pace(AtomicU64::new(0));
        let sent = |from: u64, to: u64| {
            let mut n = 0;
            for now in from..to {
                while !pace.is_exceeded(now) {
                    pace.took_one(now);
                    n += 1;
                }
            }
            n
        };
        let begin = 1_000_000_000;
        assert_eq!(sent(begin, begin + 1), Pace::BURST);
        assert_eq!(sent(begin + 1, begin + Pace::GAP_NS), 0);
        assert_eq!((1..=10).map(|n| sent(begin + n * Pace::GAP_NS, begin + n * Pace::GAP_NS + 1)).sum::<u64>(), 10);
        assert_eq!(sent(9 * begin, 9 * begin + 1), Pace::BURST, "after a rest");
    }

    #[test]
    fn what_is_let_go_of_is_closed() {
        let [ours, theirs] = channel();
        let_go(&[ours]);
        let mut p = [libc::pollfd { fd: theirs, events: libc::POLLIN, revents: 0 }];
        assert_eq!(fd::poll(&mut p, 20_000), Ok(1));
        fd::close(theirs);
        for _ in 0..20_000 {
            look_after();
            if !are_all_away() && PLACES.iter().all(|p| p.pid.load(Relaxed) == 0) {
                return;
            }
            let _ = fd::poll(&mut [], 1);
        }
        panic!("a porter is left");
    }
}
