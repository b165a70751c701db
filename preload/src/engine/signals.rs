//! EINTR or restart: what a signal does to a wait that is recv or send for the program.
//!
//! ppoll is never restarted, recv and send are when the handler has SA_RESTART. It may be gone by then (SA_RESETHAND, or it took
//! itself away), so which signals have one that interrupts is known before each wait: the hooks of sigaction and its relatives note it, and
//! who counts the handlers ([`super::handlers`]) asks for each. Of handlers that were set by raw system calls is not known which one ran: where
//! some interrupt, an EINTR is returned.
//!
//! And pieces of work that no handler may leave in the middle ([`quietly`]).

use super::handlers::Since;
use crate::family::process::is_vfork_child;
use crate::real;
use crate::sys::{clock, proc, thread};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Signals whose handlers interrupt, a bit each.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);
/// The kernel has been asked for all of them.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// The program has set an action of some signal, or lets a thread be cancelled at any instruction.
static ANY: AtomicBool = AtomicBool::new(false);

/// Runs `f`, which makes system calls anyhow; no handler comes meanwhile, nor a cancellation, which is one of libc's.
pub fn quietly<T>(f: impl FnOnce() -> T) -> T {
    if ANY.load(Relaxed) { proc::with_signals_blocked(f) } else { f() }
}

/// A thread may be cancelled at any instruction from now on.
pub fn may_cancel() {
    ANY.store(true, Relaxed);
}

/// A handler may have been set; called by the hooks afterwards.
pub fn changed(signal: i32) {
    ANY.store(true, Relaxed);
    // A child of vfork has handlers of its own and its parent's memory.
    if (1..=64).contains(&signal) && !is_vfork_child() {
        look(signal);
    }
}

/// Whether a signal may end a wait that begins now with EINTR.
pub fn interrupt() -> bool {
    if !KNOWN.load(Relaxed) {
        // Stored first: what is set meanwhile is noted by its hook.
        KNOWN.store(true, Relaxed);
        (1..=64).for_each(look);
    }
    INTERRUPTING.load(Relaxed) != 0
}

/// A wait with a mask that does not come to sleep lets in the signals that the mask lets in, as the kernel's would. True: a handler has run.
///
/// # Safety
/// `mask` must be valid.
pub unsafe fn let_in(mask: *const libc::sigset_t) -> bool {
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: no descriptors; the mask by the contract.
    let r = unsafe { real::ppoll(std::ptr::null_mut(), 0, std::ptr::from_ref(&none), mask) };
    r < 0 && crate::sys::errno().0 == libc::EINTR
}

/// The same once in a millisecond, before a wait polls: one that always finds something would never let any in. False for no mask.
///
/// # Safety
/// `mask` must be null or valid.
#[inline]
pub unsafe fn let_in_now_and_then(mask: *const libc::sigset_t) -> bool {
    !mask.is_null()
        && thread::with(|t| {
            let now = clock::ticks();
            let is_due = now.wrapping_sub(t.let_in.get()) > clock::ticks_of_us(1000);
            if is_due {
                t.let_in.set(now);
            }
            // SAFETY: by the contract.
            is_due && unsafe { let_in(mask) }
        })
}

/// Whether the handler of a signal, which runs now, ends the call that it came into.
pub fn ends_calls(signal: i32) -> bool {
    (1..=64).contains(&signal) && INTERRUPTING.load(Relaxed) & 1 << (signal - 1) != 0
}

/// Whether a recv or send that was interrupted goes on; `before` is what [`interrupt`] said when it began to wait, and `since` when that was.
pub fn restarts(before: bool, since: Since) -> bool {
    let restarts = if since.has_one_run() { !since.is_interrupted() } else { !before && !interrupt() };
    // One that was for once is gone.
    let mut known = INTERRUPTING.load(Relaxed);
    while known != 0 {
        look(known.trailing_zeros() as i32 + 1);
        known &= known - 1;
    }
    restarts
}

fn look(signal: i32) {
    // Faults of the program itself never interrupt a wait; their handlers (Rust's, the JVM's) say
    // nothing.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    let interrupts = !faults.contains(&signal)
        && proc::signal_action(signal)
            .is_some_and(|(handler, flags)| handler != libc::SIG_DFL && handler != libc::SIG_IGN && flags & libc::SA_RESTART as u64 == 0);
    let bit = 1 << (signal - 1);
    if interrupts {
        INTERRUPTING.fetch_or(bit, Relaxed);
    } else {
        INTERRUPTING.fetch_and(!bit, Relaxed);
    }
}
