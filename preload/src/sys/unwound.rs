//! Threads that end in a signal handler, by pthread_exit or cancelled, on top of a call of ours.
//!
//! glibc unwinds such a thread by force, frame by frame. Rust's personality routine stops that at an instruction which is no call
//! (a handler has come there), and at each `catch_unwind`: "FATAL: exception not rethrown", and the program is gone, where the
//! kernel's send would just have been left. Elsewhere it would drop what the frame has: a lock, of which nobody is told then. So
//! this library's frames have a routine in front of it that passes them all by, as a jump does, and tells of that: what a frame
//! holds that is passed by is given back by who is told.

use libc::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

type Personality = unsafe extern "C" fn(c_int, c_int, u64, *mut c_void, *mut c_void) -> c_int;

const FORCE_UNWIND: c_int = 8;
const CONTINUE_UNWIND: c_int = 8;

unsafe extern "C" {
    /// The word through which each frame of this library names its routine. The assembler makes it, in writable memory.
    #[link_name = "DW.ref.rust_eh_personality"]
    static NAMED: AtomicPtr<c_void>;
}

static RUST: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static TOLD: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// `ends` is told when the calling thread will return to none of its calls. Called by the constructor.
pub fn start(ends: fn()) {
    TOLD.store(ends as *mut (), Relaxed);
    // SAFETY: a word of this library's own, which lives as long as it.
    let named = unsafe { &NAMED };
    RUST.store(named.load(Relaxed), Relaxed);
    named.store(personality as *mut c_void, Release);
}

unsafe extern "C" fn personality(version: c_int, actions: c_int, class: u64, exception: *mut c_void, context: *mut c_void) -> c_int {
    if actions & FORCE_UNWIND != 0 {
        // SAFETY: only `start` stores here, and only functions of this type.
        let told = unsafe { std::mem::transmute::<*mut (), fn()>(TOLD.load(Relaxed)) };
        told();
        return CONTINUE_UNWIND;
    }
    // SAFETY: what the word held before it named this one.
    let rust = unsafe { std::mem::transmute::<*mut c_void, Personality>(RUST.load(Relaxed)) };
    // SAFETY: the unwinder's arguments.
    unsafe { rust(version, actions, class, exception, context) }
}
