//! The end of a thread: what it owns is given back.

use super::waiter;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Key + 1; 0 = not made yet.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Asks to be called when the calling thread ends.
pub fn at_exit() {
    let mut key = KEY.load(Acquire);
    if key == 0 {
        let mut k: libc::pthread_key_t = 0;
        // SAFETY: the destructor has the right type and the library is never unloaded.
        if unsafe { libc::pthread_key_create(&mut k, Some(ends)) } != 0 {
            return;
        }
        // Two threads may both make a key; the loser's is never used.
        key = match KEY.compare_exchange(0, k + 1, AcqRel, Acquire) {
            Ok(_) => k + 1,
            Err(other) => other,
        };
    }
    // SAFETY: a valid key; any non-null value makes the destructor run.
    unsafe { libc::pthread_setspecific(key - 1, std::ptr::dangling::<u8>().cast()) };
}

extern "C" fn ends(_: *mut libc::c_void) {
    waiter::thread_ends();
    let f = TOLD.load(Acquire);
    if !f.is_null() {
        // SAFETY: only `on_end` stores here, and only functions of this type.
        unsafe { std::mem::transmute::<*mut (), fn()>(f)() };
    }
}

static TOLD: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Who else is told that a thread ends. Called by the constructor.
pub fn on_end(f: fn()) {
    TOLD.store(f as *mut (), Release); // pairs with the Acquire in `ends`
}
