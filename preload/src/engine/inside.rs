//! Which threads of this process are in a call on a connection, polling or asleep and without a lock: while one is,
//! the region stays mapped, and close() leaves the socket open for it, as the kernel does; and by which number of it such a call goes
//! on where that by which it began was closed.
//!
//! A thread may leave such a call without returning: cancelled, or by siglongjmp out of a handler. So
//! each thread remembers where on its stack its calls are. Who sees it leave says so ([`leave_below`]); of other jumps what lies below
//! the stack pointer of its next call is over; on an alternate signal stack nobody can tell, and it is looked at again then. The
//! end of the thread ends them all.

use crate::family::sock::Sock;
use crate::family::{self, SOCK_CAP, lock};
use crate::sys::fd;
use crate::sys::thread::{self, CALLS, Call, Thread, full_fence};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::*, compiler_fence};

/// Of a record in this process.
struct Place {
    /// Threads in calls on it.
    users: AtomicU32,
    /// By which number those go on that began by another one: descriptor + 1, [`OWN`] or [`GONE`].
    number: AtomicI32,
}

static PLACES: [Place; SOCK_CAP] = [const { Place { users: AtomicU32::new(0), number: AtomicI32::new(OWN) } }; SOCK_CAP];

/// No number of it was closed while it had others, or a thread was in it.
const OWN: i32 = 0;
/// None is left, nor a socket for a call that comes late.
const GONE: i32 = -1;

/// A record is this process's from now on.
pub fn begin(s: &Sock) {
    place(s).number.store(OWN, Release);
}

/// A number of it is about to be closed: calls go on by this one.
pub fn go_on_by(s: &Sock, fd: i32) {
    place(s).number.store(fd + 1, Release);
}

/// The last one is, and nobody goes on.
pub fn end(s: &Sock) {
    place(s).number.store(GONE, Release);
}

/// The number by which a call goes on, if another one than that by which it began.
#[inline]
pub fn number(s: &Sock) -> Option<i32> {
    let n = place(s).number.load(Acquire);
    (n > 0).then_some(n - 1)
}

/// The descriptor that a call goes on with: another thread may have closed the program's.
#[inline]
pub fn descriptor(s: &Sock, sock: i32) -> i32 {
    number(s).unwrap_or(sock)
}

/// As [`descriptor`], for a call that began in this `record` (its generation). None: another thread closed the socket before this one had
/// said that it is in there, and nothing is left of it.
#[inline]
pub fn descriptor_in(s: &Sock, record: u32, sock: i32) -> Option<i32> {
    (!is_gone(s) && s.generation.load(Relaxed) == record).then(|| descriptor(s, sock))
}

/// Whether nothing is left of the socket for a call on it: another thread closed it before this one had said that it is in here.
#[inline]
pub fn is_gone(s: &Sock) -> bool {
    place(s).number.load(Acquire) == GONE
}

/// Whether one was closed before the last one was, or before all calls had ended (where [`crate::family::sock::flag::ENDED`] is set as well).
#[inline]
pub fn has_moved(s: &Sock) -> bool {
    place(s).number.load(Relaxed) != OWN
}

fn place(s: &Sock) -> &'static Place {
    &PLACES[family::index_of(s) as usize]
}

/// A call that waits: the socket is not taken away from under it. When it is over, and the socket was closed
/// meanwhile, its end comes.
pub struct Visit<'a>(&'a Sock);

/// Before the calling thread looks for something without a lock. None where no other thread can close the socket.
/// `frame`: something on its stack that lives as long as the call.
#[inline]
pub fn visit<'a, T>(s: &'a Sock, frame: &T) -> Option<Visit<'a>> {
    (!thread::is_only()).then(|| {
        enter(s, frame);
        Visit(s)
    })
}

impl Visit<'_> {
    /// The call goes on elsewhere, which sees to it that the socket ends.
    pub fn is_continued(self) {
        leave(self.0);
        std::mem::forget(self);
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        leave(self.0);
        if has_moved(self.0) {
            tell_left(self.0);
        }
    }
}

/// Does something with a connection that another thread may close meanwhile, when number and record may be those of two others at once: what is
/// done to a record would be done with the bytes of a stranger. So the record is visited first, which keeps it, and its socket has a number of
/// ours for as long. `is_there`: whether the number still stood for it then.
pub fn by_own_number(s: &Sock, number: i32, is_there: impl Fn() -> bool, act: impl FnOnce(i32)) {
    let Some(_visit) = visit(s, &number) else { return act(number) }; // there is no other thread
    full_fence(); // either who closes it finds the visit, or we find the number taken away
    match fd::another(number) {
        Ok(own) => {
            if is_there() {
                act(own);
            }
            fd::close(own);
        }
        Err(_) if is_there() => act(number), // no number is left
        Err(_) => {}
    }
}

/// The calling thread is about to sleep on a connection. `frame`: something on its stack that lives as
/// long as the call.
pub fn enter<T>(s: &Sock, frame: &T) {
    forget_abandoned();
    let (index, here) = (family::index_of(s), thread::here());
    PLACES[index as usize].users.fetch_add(1, AcqRel);
    let place = here.in_calls.get().trailing_ones() as usize;
    if let Some(c) = here.calls.get(place) {
        // A handler that comes in here uses the place as well, or finds a call that is not over.
        c.at.set(usize::MAX);
        c.sock.set(index);
        compiler_fence(SeqCst);
        here.in_calls.set(here.in_calls.get() | 1 << place);
        compiler_fence(SeqCst);
        c.sock.set(index);
        c.generation.set(s.generation.load(Relaxed));
        compiler_fence(SeqCst);
        c.at.set(std::ptr::from_ref(frame) as usize);
    }
}

/// It is awake again.
pub fn leave(s: &Sock) {
    let index = family::index_of(s);
    if let Some((place, _)) = calls(thread::here()).find(|(_, c)| c.sock.get() == index) {
        is_over(place);
    }
    one_less(index);
}

/// The calls that a thread is in, and their places: the last one first.
#[inline]
fn calls(here: &Thread) -> impl Iterator<Item = (usize, &Call)> {
    let mut left = here.in_calls.get();
    std::iter::from_fn(move || {
        let place = left.checked_ilog2()? as usize;
        left &= !(1 << place);
        Some((place, &here.calls[place % CALLS]))
    })
}

/// The calling thread is not in the call at this place any more.
#[inline]
fn is_over(place: usize) {
    let here = thread::here();
    here.in_calls.set(here.in_calls.get() & !(1 << place));
}

/// Threads of this process in calls on it.
pub fn count(s: &Sock) -> u32 {
    let users = &place(s).users;
    if users.load(Acquire) == 0 {
        return 0;
    }
    forget_abandoned();
    users.load(Acquire)
}

/// Calls of this thread that siglongjmp has left.
#[inline]
fn forget_abandoned() {
    if thread::here().in_calls.get() != 0 {
        forget_those_below();
    }
}

#[inline(never)]
fn forget_those_below() {
    let here = 0u8;
    let here = std::ptr::from_ref(&here) as usize;
    let is_below = |c: &Call| c.at.get() < here;
    if !calls(thread::here()).any(|(_, c)| is_below(c)) || thread::is_on_alternate_stack() {
        return;
    }
    calls(thread::here()).filter(|(_, c)| is_below(c)).for_each(forget);
}

/// The calling thread goes on at `target` of its stack.
pub fn leave_below(target: usize) {
    if thread::here().in_calls.get() == 0 {
        return;
    }
    let is_left = lock::is_left(target);
    calls(thread::here()).filter(|(_, c)| is_left(c.at.get())).for_each(forget);
}

/// The calling thread ends.
pub fn thread_ends() {
    calls(thread::here()).for_each(forget);
}

fn forget((place, c): (usize, &Call)) {
    let index = c.sock.get();
    is_over(place);
    one_less(index);
    let Some(base) = family::base() else { return };
    let s = family::sock(base, index);
    if s.generation.load(Relaxed) == c.generation.get() {
        tell_left(s);
    }
}

#[cold]
fn tell_left(s: &Sock) {
    let f = LEFT.load(Acquire);
    if !f.is_null() {
        // SAFETY: only `on_left` stores here, and only functions of this type.
        let f = unsafe { std::mem::transmute::<*mut (), fn(&Sock)>(f) };
        f(s);
    }
}

fn one_less(index: u32) {
    let _ = PLACES[index as usize].users.fetch_update(AcqRel, Relaxed, |n| n.checked_sub(1));
    // Pairs with the fence in `table::late`: either we see that the socket was closed, or who closed it sees that
    // nobody is in it.
    full_fence();
}

static LEFT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Who is told that a call was left that way. Called by the constructor.
pub fn on_left(f: fn(&Sock)) {
    LEFT.store(f as *mut (), Release);
}

/// A forked child has one thread, whose own calls alone go on.
pub fn forget_in_child() {
    for Place { users, .. } in &PLACES[..family::high() as usize] {
        if users.load(Relaxed) != 0 {
            users.store(0, Relaxed);
        }
    }
    for (_, c) in calls(thread::here()) {
        PLACES[c.sock.get() as usize].users.fetch_add(1, Relaxed);
    }
}
