//! Finding libibverbs: at the first link, never before.
//!
//! Called by [`super::device`]. A failure is remembered with the cell left empty, so a later call
//! tries again (the package may be installed while a daemon runs).

use super::abi::Functions;
use crate::log;
use once_cell::sync::OnceCell;

static FUNCTIONS: OnceCell<Functions> = OnceCell::new();

/// The functions of libibverbs; None where it is not installed or too old.
pub fn functions() -> Option<&'static Functions> {
    FUNCTIONS.get_or_try_init(load).ok()
}

fn load() -> Result<Functions, ()> {
    // SAFETY: the name is NUL-terminated; the handle is kept for ever. RTLD_LOCAL: the program's own
    // symbols are not disturbed.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        log::info!(target: "smcr::verbs", "libibverbs.so.1 cannot be loaded");
        return Err(());
    }
    // SAFETY: dlsym gives the function of that name of the library just opened. The versioned symbol
    // is the one with the layouts of `abi` (older ones exist beside it).
    let found = unsafe {
        Functions::fill(|name| {
            let p = libc::dlvsym(handle, name, c"IBVERBS_1.1".as_ptr());
            if p.is_null() { libc::dlsym(handle, name) } else { p }
        })
    };
    found.ok_or(())
}
