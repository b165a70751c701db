//! What whoever started smcrctl has said of SIGPIPE, so that the program gets it as it was. Used by `run`.
//!
//! Rust's runtime ignores the signal before `main`, and its `Command` gives the default to a program. Under a
//! service manager that ignores it (systemd) the program would die of a closed pipe, and only if smcrctl
//! has started it.

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

/// Run by the loader, before the runtime changes what is looked at.
#[used]
// SAFETY: the section holds pointers to functions with C's calling convention, as this is one; it uses nothing that
// has to be set up first.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look;

extern "C" fn look() {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing changes, and the old one is written into memory of its size, for which zeros are
    // a value as well.
    let now = unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    IGNORES_PIPE.store(now.sa_sigaction == libc::SIG_IGN, Relaxed);
}

/// Lets the program have what smcrctl had.
pub fn hand_on(command: &mut Command) {
    if !IGNORES_PIPE.load(Relaxed) {
        return;
    }
    let ignore = || {
        // SAFETY: no handler of ours is installed, the kernel alone acts on it.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }?;
        Ok(())
    };
    // SAFETY: one system call, which allocates and locks nothing.
    unsafe { command.pre_exec(ignore) };
}
