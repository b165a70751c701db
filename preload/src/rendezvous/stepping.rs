//! Who works on the rendezvous of a connection: one thread at a time, and others do not wait for it.
//!
//! A thread may leave its step without returning: cancelled, or by a jump out of a handler. So it notes where on its stack the step
//! is. Who sees it leave says so ([`leave_below`]); of other jumps what lies below its next step is over. A step that may have done
//! something is not taken again: the connection stays on TCP.

use crate::family::sock::{Sock, step};
use crate::family::{lock, process};
use crate::sys::thread;
use std::cell::Cell;
use std::sync::atomic::{Ordering::*, compiler_fence};

/// Steps of one thread: one, and those of handlers that interrupted it.
const DEPTH: usize = 4;

struct Note {
    sock: Cell<Option<&'static Sock>>,
    generation: Cell<u32>,
    at: Cell<usize>,
}

thread_local! {
    static STEPS: [Note; DEPTH] = const {
        [const { Note { sock: Cell::new(None), generation: Cell::new(0), at: Cell::new(0) } }; DEPTH]
    };
}

/// The calling thread works on it; over with this.
pub struct Stepping(&'static Sock);

/// None: somebody does already, or the caller is a vfork child, which has nothing to arrange for itself in its parent's memory. `frame`:
/// something on the caller's stack that lives as long as this.
pub fn begin<T>(s: &'static Sock, frame: &T) -> Option<Stepping> {
    let at = std::ptr::from_ref(frame) as usize;
    if process::is_vfork_child() {
        return None;
    }
    forget_abandoned(at);
    // Acquire: what the step before has done; SeqCst for `table::steps::let_finish`.
    s.stepping.compare_exchange(0, process::tid(), SeqCst, Relaxed).ok()?;
    compiler_fence(SeqCst); // what is noted is ours
    STEPS.with(|steps| {
        if let Some(n) = steps.iter().find(|n| n.sock.get().is_none()) {
            n.generation.set(s.generation.load(Relaxed));
            n.at.set(at);
            compiler_fence(SeqCst);
            n.sock.set(Some(s));
        }
    });
    Some(Stepping(s))
}

impl Drop for Stepping {
    fn drop(&mut self) {
        let is_it = |n: &&Note| n.sock.get().is_some_and(|s| std::ptr::eq(s, self.0));
        STEPS.with(|steps| steps.iter().filter(is_it).for_each(|n| n.sock.set(None)));
        compiler_fence(SeqCst);
        end(self.0);
    }
}

/// The record may be another's by now, and in a child that was forked from a handler on top of it the step is the parent's.
fn end(s: &Sock) {
    let _ = s.stepping.compare_exchange(process::tid(), 0, Release, Relaxed);
}

fn forget(n: &Note) {
    let Some(s) = n.sock.take().filter(|s| s.generation.load(Relaxed) == n.generation.get()) else { return };
    if s.region().is_some() || s.step.load(Relaxed) != step::IDLE {
        s.next_ops.store(u32::MAX, Relaxed);
        s.next_bytes.store(u64::MAX, Relaxed);
    }
    end(s);
}

#[inline(never)]
fn forget_abandoned(present: usize) {
    STEPS.with(|steps| {
        let is_over = |n: &&Note| n.sock.get().is_some() && n.at.get() <= present;
        if steps.iter().any(|n| is_over(&n)) && !thread::is_on_alternate_stack() {
            steps.iter().filter(is_over).for_each(forget);
        }
    });
}

/// The calling thread goes on at `target` of its stack.
pub fn leave_below(target: usize) {
    STEPS.with(|steps| {
        if steps.iter().all(|n| n.sock.get().is_none()) {
            return;
        }
        let is_left = lock::is_left(target);
        steps.iter().filter(|n| n.sock.get().is_some() && is_left(n.at.get())).for_each(forget);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn begin_and_leave(s: &'static Sock) {
        let frame = 0u8;
        std::mem::forget(begin(s, std::hint::black_box(&frame)));
    }

    fn fresh() -> &'static Sock {
        // SAFETY: all zero is a fresh record.
        Box::leak(Box::new(unsafe { std::mem::zeroed::<Sock>() }))
    }

    #[test]
    fn a_step_that_was_left_is_over() {
        let (s, frame) = (fresh(), 0u8);
        let is_taken = || s.stepping.load(Relaxed) != 0;
        let step = begin(s, std::hint::black_box(&frame));
        begin_and_leave(s);
        assert!(step.is_some() && is_taken(), "a handler on top finds it taken");
        drop(step);
        begin_and_leave(s);
        assert!(is_taken());
        leave_below(usize::MAX);
        assert!(!is_taken() && s.next_ops.load(Relaxed) == 0, "nothing was done");
        begin_and_leave(s);
        assert!(begin(s, std::hint::black_box(&frame)).is_some(), "what was left lies below");
        s.step.store(step::OFFERED, Relaxed);
        begin_and_leave(s);
        leave_below(usize::MAX);
        assert!(!is_taken() && s.next_ops.load(Relaxed) == u32::MAX, "it may have done something");
    }
}
