//! The exported symbols: each hook converts C arguments, makes one call, and returns.
//!
//! A descriptor that is not tracked costs a load and a call of the real function. What a hook does
//! with a tracked one is in `table` and `ready`. docs/interpose.md lists every symbol.

#![cfg_attr(test, allow(dead_code, non_snake_case, reason = "unit tests export no symbols, so nobody calls the hooks"))]

mod aio;
mod cancel;
mod credentials;
mod data_in;
mod data_out;
mod execl;
mod fds;
mod files;
mod jumps;
mod process;
mod raw;
mod readiness;
mod rights;
mod second_names;
mod sockets;
mod spawns;
mod splices;
mod stdio;
mod uring;
mod vectors;
mod vforks;

pub use process::begins;
pub use stdio::start;

use crate::sys::{Errno, set_errno};
use libc::iovec;

/// Defines exported C functions.
macro_rules! hooks {
    ($($(#[$doc:meta])* fn $name:ident($($a:ident: $t:ty),* $(,)?) $(-> $r:ty)? $body:block)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// As for the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($a: $t),*) $(-> $r)? $body
    )*};
}
pub(crate) use hooks;

/// Runs a part of a hook that never sleeps; a panic in it ends the call with EIO instead of unwinding
/// into the program. The real function is never called again. Calls that may sleep are not run in
/// here: pthread_cancel unwinds through them and must not meet a catch (docs/decisions/07). Their
/// parts are guarded one by one (`sys::caught`).
#[inline]
pub(crate) fn guard(f: impl FnOnce() -> isize) -> isize {
    crate::sys::caught(f).unwrap_or_else(|| {
        set_errno(Errno(libc::EIO));
        -1
    })
}

/// A call that may sleep, run as it is; errno is the program's where it succeeds.
#[inline]
pub(crate) fn direct(f: impl FnOnce() -> isize) -> isize {
    crate::sys::keeping_errno(f)
}

/// As [`guard`] for work without a result.
#[inline]
pub(crate) fn guarded(f: impl FnOnce()) {
    let _ = crate::sys::caught(f);
}

/// An iovec for one buffer.
#[inline]
pub(crate) fn one(p: *const libc::c_void, n: usize) -> [iovec; 1] {
    [iovec { iov_base: p.cast_mut(), iov_len: n }]
}
