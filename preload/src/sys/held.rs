//! Numbers of descriptors that threads of this process are using, so that one that is given up is not closed under them.
//!
//! A thread loads a number, and is stopped before its system call. Were the descriptor closed meanwhile, the program could have
//! opened a file of its own under that number, and our bytes would stand in it. So who uses such a number [`hold`]s it, and
//! looks once more where it found it; who has taken it out of there [`give_up`]s: with nobody in between it is closed, else by the
//! last who lets go. Nobody waits for that, and there is no lock: a holder may be stopped for long, or lie below a handler. Who has to wait is who gives the number
//! itself to the program ([`await_users`]), for that is about to use it. Modelled in tests/model/tests/models/held.rs.
//!
//! A handler can't wait for what it lies on. So each thread notes what it holds; the handler takes that away from below itself, and who
//! finds that its number was taken looks for the one that stands there now. (A handler that comes when it has found that it was not, in
//! the few instructions before the system call, is too late.)
//!
//! Used by `transport` for all that wakes, by what else rings an eventfd of ours or takes what came for us, and by `table::own`.

use super::thread::{self, Thread};
use super::{fd, porter, proc};
use libc::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*, compiler_fence};

/// Numbers that can be held: all that there are, unless fs.nr_open was raised.
const CAP: usize = 1 << 20;
/// The last user closes it.
const GIVEN_UP: u32 = 1 << 31;
/// By a porter.
const BY_PORTER: u32 = 1 << 30;
const USERS: u32 = BY_PORTER - 1;

/// Users and marks of each number. Pages that are never touched cost nothing.
static WORDS: [AtomicU32; CAP] = [const { AtomicU32::new(0) }; CAP];
/// No number at or above this was ever held.
static HIGH: AtomicU32 = AtomicU32::new(0);
/// Numbers that are given up and not closed, or are about to be.
static GIVEN: AtomicU32 = AtomicU32::new(0);

/// Neighbours lie on different lines: threads that ring different peers do not share one.
fn word_of(fd: c_int) -> Option<&'static AtomicU32> {
    let n = usize::try_from(fd).ok()?;
    WORDS.get(n & !0x3ff | (n & 0xf) << 6 | (n >> 4 & 0x3f))
}

/// In [`Thread::held`]: a handler has given the number to the program. Else the number + 1, or 0.
const TAKEN: c_int = -1;

/// A number that stays what it is until this goes.
pub struct Held {
    fd: c_int,
    /// Where its thread notes it; past the end: nowhere, for this is a handler on top of too many others.
    at: usize,
    _stays_in_its_thread: PhantomData<*const ()>,
}

impl Held {
    /// The number; -1 if it was taken by a handler on top of this.
    pub fn fd(&self) -> c_int {
        if self.is_taken() { -1 } else { self.fd }
    }

    /// Whether a handler on top of this has given it to the program.
    pub fn is_taken(&self) -> bool {
        compiler_fence(SeqCst); // what a handler stores
        notes().get(self.at).is_some_and(|note| note.load(Relaxed) == TAKEN)
    }
}

fn notes() -> &'static [AtomicI32] {
    let thread: &'static Thread = thread::here();
    &thread.held
}

/// Whether a number can be held.
pub fn can_hold(fd: c_int) -> bool {
    word_of(fd).is_some()
}

/// Does something with the descriptor whose number stands there, and once more if a handler has given the number away meanwhile.
/// None: there is none.
pub fn with<T>(place: &AtomicI32, act: impl Fn(&Held) -> T) -> Option<T> {
    loop {
        let fd = place.load(Acquire);
        if !can_hold(fd) {
            return None;
        }
        let Some(held) = hold(fd, || place.load(Acquire) == fd) else { continue };
        let result = act(&held);
        if !held.is_taken() {
            return Some(result);
        }
    }
}

/// Rings the eventfd whose number stands there.
pub fn ring(place: &AtomicI32) {
    with(place, |held| fd::event_set(held.fd()));
}

/// Clears the eventfd whose number stands there.
pub fn clear(place: &AtomicI32) {
    with(place, |held| fd::event_clear(held.fd()));
}

/// Closes the descriptor whose number stood there, or leaves that to its last user.
pub fn close(place: &AtomicI32) {
    let fd = place.swap(-1, AcqRel);
    if fd >= 0 && give_up(fd, false) {
        fd::close_own(fd);
    }
}

/// Holds a number, if it still is where it was found.
#[inline]
pub fn hold(fd: c_int, is_still: impl FnOnce() -> bool) -> Option<Held> {
    let word = word_of(fd)?;
    if HIGH.load(Relaxed) <= fd as u32 {
        HIGH.fetch_max(fd as u32 + 1, Relaxed);
    }
    // Pairs with the exchange of `give_up` and of `await_users`: either they come later and see this user, or this reads
    // what they wrote, and the look behind it finds that the number has gone.
    word.fetch_add(1, AcqRel);
    // Noted once it is counted, and no longer than it is: a handler in between waits, and counts nobody out who is not its own.
    let notes = notes();
    let at = notes.iter().position(|note| note.load(Relaxed) == 0).unwrap_or(notes.len());
    if let Some(note) = notes.get(at) {
        note.store(fd + 1, Relaxed);
    }
    compiler_fence(SeqCst);
    let held = Held { fd, at, _stays_in_its_thread: PhantomData };
    is_still().then_some(held)
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(word) = word_of(self.fd) else { return };
        compiler_fence(SeqCst);
        if let Some(note) = notes().get(self.at) {
            note.store(0, Relaxed);
        }
        compiler_fence(SeqCst);
        // Nothing is counted in a child that was forked from a handler above this: it has forgotten all users.
        // Release: what was done with the number is done; it pairs with the Acquire of `await_users`, and here with who closes.
        let left = |v: u32| match v & USERS {
            0 => None,
            1 if v & GIVEN_UP != 0 => Some(0),
            _ => Some(v - 1),
        };
        if let Ok(before) = word.fetch_update(AcqRel, Relaxed, left)
            && before & (USERS | GIVEN_UP) == GIVEN_UP | 1
        {
            end(self.fd, before);
        }
    }
}

#[cold]
fn end(fd: c_int, word: u32) {
    match word & BY_PORTER {
        0 => fd::close_own(fd),
        _ => porter::let_go(&[fd]),
    }
    GIVEN.fetch_sub(1, Relaxed);
}

/// The caller has taken the number out of where it is looked for. True: nobody uses it, and the caller closes it. False: the last
/// user does, itself or by a porter.
#[must_use]
pub fn give_up(fd: c_int, by_porter: bool) -> bool {
    let Some(word) = word_of(fd) else { return true };
    let mark = if by_porter { GIVEN_UP | BY_PORTER } else { GIVEN_UP };
    GIVEN.fetch_add(1, Relaxed);
    // An exchange also where nothing changes: pairs with the one in `hold`.
    let before = word.fetch_update(AcqRel, Relaxed, |v| Some(if v & USERS == 0 { v } else { v | mark }));
    let is_free = before.is_ok_and(|v| v & USERS == 0);
    if is_free {
        GIVEN.fetch_sub(1, Relaxed);
    }
    is_free
}

/// The caller has taken the number out of where it is looked for, and the program gets it now: takes it from what lies below this
/// thread's handler, and waits until nobody else uses it. Only a thread that does not run holds it for longer than a moment, and one that
/// was cancelled never lets go: there is an end to waiting.
pub fn await_users(fd: c_int) {
    const YIELDS: u32 = 50;
    const TRIES: u32 = 2050;
    let Some(word) = word_of(fd) else { return };
    let below = notes().iter().filter(|note| note.load(Relaxed) == fd + 1);
    let below = below.inspect(|note| note.store(TAKEN, Relaxed)).count() as u32;
    compiler_fence(SeqCst); // as in `is_taken`
    for n in 0..TRIES {
        // An exchange, for the first look: pairs with the one in `hold`. Acquire: pairs with the Release of who lets go.
        match word.fetch_or(0, AcqRel) & USERS {
            users if users <= below => return,
            _ if n < YIELDS => proc::yield_now(),
            _ => drop(fd::poll(&mut [], 1)),
        }
    }
}

/// Whether `fd` was given up and is not closed yet.
pub fn owns(fd: c_int) -> bool {
    word_of(fd).is_some_and(|w| w.load(Relaxed) & GIVEN_UP != 0)
}

/// Names those that were given up and are not closed yet.
pub fn descriptors(add: &mut impl FnMut(c_int)) {
    if GIVEN.load(Relaxed) != 0 {
        (0..HIGH.load(Relaxed) as c_int).filter(|fd| owns(*fd)).for_each(add);
    }
}

/// One that was given up has another number now, under which nobody uses it; false if it is none.
pub fn moved(old: c_int, new: c_int) -> bool {
    let marked = |v: u32| (v & GIVEN_UP != 0).then_some(v & USERS);
    let before = word_of(old).and_then(|w| w.fetch_update(AcqRel, Relaxed, marked).ok());
    before.is_some_and(|v| {
        end(new, v);
        true
    })
}

/// The threads of the parent are not here.
pub fn forget_in_child() {
    for fd in 0..HIGH.load(Relaxed) as c_int {
        let before = word_of(fd).map_or(0, |w| if w.load(Relaxed) == 0 { 0 } else { w.swap(0, Relaxed) });
        if before & GIVEN_UP != 0 {
            end(fd, before);
        }
    }
    GIVEN.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_used_is_closed_by_the_last_user() {
        let fd = fd::eventfd().expect("an eventfd");
        let one = hold(fd, || true).expect("held");
        let other = hold(fd, || true).expect("held");
        assert!(hold(fd, || false).is_none());
        assert!(!give_up(fd, false) && owns(fd));
        drop(one);
        assert!(fd::is_open(fd) && owns(other.fd()));
        drop(other);
        // Other tests open files too: this one may have the number already, but not as ours.
        assert!(!owns(fd));
        await_users(fd);
    }

    #[test]
    fn one_that_nobody_uses_is_for_the_caller_to_close() {
        let fd = fd::eventfd().expect("an eventfd");
        drop(hold(fd, || true));
        assert!(give_up(fd, false) && !owns(fd) && fd::is_open(fd));
        fd::close_own(fd);
    }

    #[test]
    fn one_that_moves_is_closed_where_it_is_now() {
        let [fd, fresh] = [(); 2].map(|_| fd::eventfd().expect("an eventfd"));
        let user = hold(fd, || true);
        assert!(!moved(fd, fresh) && !give_up(fd, false) && moved(fd, fresh));
        assert!(!owns(fd));
        drop(user);
        assert!(fd::is_open(fd)); // it is the program's now
        fd::close_own(fd);
    }

    #[test]
    fn one_that_its_own_thread_gives_away_is_used_no_more() {
        let [fd, fresh] = [(); 2].map(|_| fd::eventfd().expect("an eventfd"));
        let place = AtomicI32::new(fd);
        let mut used = Vec::new();
        let seen = std::cell::RefCell::new(&mut used);
        with(&place, |held| {
            if held.fd() == fd {
                place.store(fresh, Release);
                await_users(fd); // what a handler does here
            }
            seen.borrow_mut().push(held.fd());
        });
        assert_eq!(used, [-1, fresh]);
        assert!(notes().iter().all(|note| note.load(Relaxed) == 0));
        close(&place);
        assert!(with(&place, |_| ()).is_none());
        fd::close_own(fd);
    }

    #[test]
    fn no_two_numbers_share_a_word() {
        let place = |fd| std::ptr::from_ref(word_of(fd).expect("a word")).addr();
        let places: std::collections::HashSet<_> = (0..5000).map(place).collect();
        assert_eq!(places.len(), 5000);
        assert!(word_of(-1).is_none() && word_of(CAP as c_int).is_none());
        assert!(word_of(CAP as c_int - 1).is_some());
    }
}
