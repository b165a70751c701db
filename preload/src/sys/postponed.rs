//! Pieces of work that no handler of the program interrupts, for it may jump out of the middle of them, and that are too short and too
//! frequent to block signals for each.
//!
//! A handler that comes into one ([`is_at_work`]) is sent to its thread once more, and waits there blocked until the work is done ([`Work`]). Used
//! by the lock of all links; `engine::handlers` asks. Handlers of which that does not know run at once, and so do all where a mask in a
//! handler's context means nothing (valgrind): there the signal would come again before the next instruction, for ever.

use super::{Sysno, call, jump, proc, thread};
use libc::{c_int, siginfo_t, ucontext_t};
use std::sync::atomic::{Ordering::*, compiler_fence};

/// What the calling thread does until it is dropped.
pub struct Work(());

impl Work {
    pub fn begin() -> Work {
        let t = thread::here();
        t.works.set(t.works.get() + 1);
        compiler_fence(SeqCst); // before the work, for a handler of this thread
        Work(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        compiler_fence(SeqCst); // behind it
        let t = thread::here();
        let left = t.works.get() - 1;
        t.works.set(left);
        if left == 0 && t.postponed.replace(0) != 0 {
            proc::block_signals(t.mask.get()); // and here they come
        }
    }
}

/// Whether the calling thread is in such a piece of work.
#[inline(always)]
pub fn is_at_work() -> bool {
    thread::here().works.get() != 0
}

/// In a handler whose context is `context`: the signal comes again when the work is done. False: it can't.
///
/// # Safety
/// `info` and `context` must be what the kernel gave to the handler of this signal, which has `flags`.
#[cold]
pub unsafe fn postpone(signal: c_int, flags: u64, info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    let has_info = flags & libc::SA_SIGINFO as u64 != 0;
    // Elsewhere the kernel gives no context without it.
    if proc::FAULTS.contains(&signal) || !has_info && cfg!(not(target_arch = "x86_64")) {
        return false;
    }
    let t = thread::here();
    // SAFETY: by the contract. Where it is not known each of them waits.
    let at = unsafe { jump::target_of_context(context) }.unwrap_or(1);
    // Those that come together come into one another; behind the last one all are blocked, and none comes at the same place.
    if at != 1 && at == t.postponed.get() {
        return false;
    }
    let before = proc::block_signals(blocked());
    let sent = if has_info {
        let args = [proc::pid() as usize, proc::tid() as usize, signal as usize, info as usize, 0, 0];
        // SAFETY: what the kernel has written, and its size.
        unsafe { call(Sysno::rt_tgsigqueueinfo, args) }.is_ok()
    } else {
        proc::raise(signal)
    };
    if !sent {
        proc::block_signals(before);
        return false;
    }
    // SAFETY: by the contract; the kernel's set has 8 bytes.
    let mask = unsafe { &mut *(&raw mut (*context).uc_sigmask).cast::<u64>() };
    // Of several that came together the one that runs last returns to the work.
    t.mask.set(*mask);
    t.postponed.set(at);
    *mask = blocked();
    true
}

/// All but those for which nothing can wait.
fn blocked() -> u64 {
    proc::FAULTS.iter().fold(proc::BLOCKABLE, |set, signal| set & !(1 << (signal - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

    static RAN: AtomicU32 = AtomicU32::new(0);
    /// Masks in a context mean nothing.
    static DEAF: AtomicBool = AtomicBool::new(false);
    static VALUE: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut libc::c_void) {
        let (_, flags) = proc::signal_action(signal).unwrap();
        let context: *mut ucontext_t = context.cast();
        // SAFETY: the kernel's.
        if is_at_work() && unsafe { postpone(signal, flags, info, context) } {
            if DEAF.load(Relaxed) {
                // SAFETY: the kernel's.
                unsafe { libc::sigemptyset(&raw mut (*context).uc_sigmask) };
            }
            return;
        }
        RAN.fetch_add(1, Relaxed);
        if flags & libc::SA_SIGINFO as u64 != 0 {
            // SAFETY: a signal that was sent with a value.
            VALUE.store(unsafe { (*info).si_value() }.sival_ptr as usize, Relaxed);
        }
    }

    fn set(signal: c_int, flags: c_int) {
        // SAFETY: a handler of this kind; zero bytes are an empty set.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }

    fn send(signal: c_int, value: usize) {
        let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
        // SAFETY: to this thread.
        assert_eq!(unsafe { libc::pthread_sigqueue(libc::pthread_self(), signal, value) }, 0);
    }

    /// Each comes once, behind the work, with what it was sent with, also one that does not block itself.
    #[test]
    fn handlers_run_behind_the_work() {
        set(libc::SIGUSR1, libc::SA_SIGINFO | libc::SA_NODEFER);
        set(libc::SIGUSR2, 0);
        send(libc::SIGUSR1, 7);
        assert_eq!((RAN.load(Relaxed), VALUE.load(Relaxed)), (1, 7), "at once");
        let before = proc::block_signals(0);
        let (outer, inner) = (Work::begin(), Work::begin());
        send(libc::SIGUSR1, 8);
        send(libc::SIGUSR2, 9);
        drop(inner);
        assert_eq!(RAN.load(Relaxed), 1, "the work is not done");
        drop(outer);
        assert_eq!((RAN.load(Relaxed), VALUE.load(Relaxed)), (3, 8));
        assert_eq!(proc::block_signals(before), 0, "what was blocked before is again");
        send(libc::SIGUSR1, 10);
        assert_eq!((RAN.load(Relaxed), VALUE.load(Relaxed)), (4, 10), "and at once again");
        DEAF.store(true, Relaxed);
        let work = Work::begin();
        send(libc::SIGUSR1, 11);
        send(libc::SIGUSR2, 12);
        assert_eq!(RAN.load(Relaxed), 6, "nothing would keep them from coming");
        drop(work);
        assert_eq!((RAN.load(Relaxed), VALUE.load(Relaxed)), (6, 11), "each once");
    }
}
