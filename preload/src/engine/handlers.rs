//! The program's signal handlers: the kernel is given one of ours in their place, which counts them for its thread and goes on to them.
//!
//! A wait polls before it sleeps, and a handler that runs meanwhile ends nothing: the thread would sleep on, where the kernel, in
//! which a thread waits all the time, ends its call (EINTR) or begins it anew. So each wait looks at the count before it sleeps
//! ([`Since`]). What the program asks of its handlers is answered with its own. Called by the hooks of sigaction and its relatives;
//! handlers that were set by a raw system call are not counted.

use super::signals;
use crate::family::process::is_vfork_child;
use crate::sys::{postponed, proc, thread};
use libc::{c_int, c_void, siginfo_t};
use std::sync::atomic::{AtomicUsize, Ordering::*};

type Handler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

const SIGNALS: usize = 64;
/// What is no handler: SIG_DFL, SIG_IGN, SIG_HOLD, and SIG_ERR.
const NONE: [usize; 4] = [libc::SIG_DFL, libc::SIG_IGN, 2, libc::SIG_ERR];

/// The program's handler by signal, behind ours.
static PROGRAM: [AtomicUsize; SIGNALS + 1] = [const { AtomicUsize::new(0) }; SIGNALS + 1];

/// An instant: how many handlers had run in the calling thread.
#[derive(Clone, Copy)]
pub struct Since(u64);

impl Since {
    #[inline(always)]
    pub fn now() -> Since {
        Since(thread::here().handled.get())
    }

    /// The calling thread has polled for a receive since then.
    #[inline(always)]
    pub fn has_polled(self) {
        thread::here().handled_before.set(self.0);
    }

    /// When it began ([`Since::has_polled`]).
    pub fn polling() -> Since {
        Since(thread::here().handled_before.get())
    }

    /// Whether one has run since.
    #[inline(always)]
    pub fn has_one_run(self) -> bool {
        thread::here().handled.get() != self.0
    }

    /// Whether one of them was to end the calls that it comes into (no SA_RESTART).
    pub fn is_interrupted(self) -> bool {
        thread::here().handled.get() >> 32 != self.0 >> 32
    }
}

/// A handler on its way into the kernel.
pub struct Setting {
    signal: c_int,
    before: usize,
}

impl Setting {
    /// The program asks for a signal's handler, or is about to set it.
    pub fn of(signal: c_int) -> Setting {
        let before = usize::try_from(signal).ok().and_then(|n| PROGRAM.get(n)).map_or(0, |p| p.load(Relaxed));
        Setting { signal, before }
    }

    /// What the kernel is given for it.
    pub fn to_kernel(&self, handler: usize) -> usize {
        // A child of vfork has handlers of its own and its parent's memory.
        if NONE.contains(&handler) || handler == ours() || proc::FAULTS.contains(&self.signal) || is_vfork_child() {
            return handler;
        }
        match usize::try_from(self.signal).ok().and_then(|n| PROGRAM.get(n)) {
            Some(program) => {
                program.store(handler, Release); // pairs with the Acquire in `handle`
                ours()
            }
            None => handler,
        }
    }

    /// What the program is told that the kernel had.
    pub fn to_program(&self, handler: usize) -> usize {
        if handler == ours() { self.before } else { handler }
    }

    /// The kernel has refused it.
    pub fn undo(&self) {
        if let Some(program) = usize::try_from(self.signal).ok().and_then(|n| PROGRAM.get(n)).filter(|_| !is_vfork_child()) {
            program.store(self.before, Release);
        }
    }
}

fn ours() -> usize {
    handle as Handler as usize
}

/// In the place of each. Leaves no frame where it can be left out.
extern "C-unwind" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    if postponed::is_at_work() && waits(signal, info, context) {
        return;
    }
    let handled = &thread::here().handled;
    let one = if signals::ends_calls(signal) { 1 << 32 | 1 } else { 1 };
    handled.set(handled.get().wrapping_add(one));
    let program = PROGRAM[signal.clamp(0, SIGNALS as c_int) as usize].load(Acquire); // pairs with the Release in `to_kernel`
    if NONE.contains(&program) {
        return;
    }
    // SAFETY: the program's handler of this signal, of one argument or of these three, of which the C ABI lets it ignore two.
    let program: Handler = unsafe { std::mem::transmute(program) };
    program(signal, info, context)
}

/// It has come into work of ours that it may not leave in the middle: it runs behind that. Not where it was for once (SA_RESETHAND): a second
/// time the kernel would do what it does without a handler.
#[cold]
fn waits(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> bool {
    let Some((_, flags)) = proc::signal_action(signal).filter(|(handler, _)| *handler == ours()) else { return false };
    // SAFETY: the kernel's.
    unsafe { postponed::postpone(signal, flags, info, context.cast()) }
}
