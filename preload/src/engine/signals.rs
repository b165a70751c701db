//! EINTR or restart: what a signal does to a wait that is recv or send for the program.
//!
//! ppoll is never restarted, recv and send are when the handler has SA_RESTART. Which handler ran is
//! not visible, so all handlers are asked (once per change: the hooks of sigaction and its relatives
//! count changes). Where some restart and some do not, an EINTR is returned: the program has handlers
//! that interrupt, so it expects it.

use crate::sys::proc;
use std::sync::atomic::{AtomicU32, Ordering::*};

static CHANGES: AtomicU32 = AtomicU32::new(1);
/// Changes seen << 1 | answer.
static ANSWER: AtomicU32 = AtomicU32::new(0);

/// A handler was set; called by the hooks.
pub fn changed() {
    CHANGES.fetch_add(1, Relaxed);
}

/// Whether an interrupted recv or send goes on.
pub fn restarts() -> bool {
    let changes = CHANGES.load(Relaxed);
    let known = ANSWER.load(Relaxed);
    if known >> 1 == changes & 0x7fff_ffff {
        return known & 1 != 0;
    }
    let all = ask();
    ANSWER.store(changes << 1 | u32::from(all), Relaxed);
    all
}

fn ask() -> bool {
    // Faults of the program itself never interrupt a wait; their handlers (Rust's, the JVM's) say
    // nothing.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    for signal in (1..=64).filter(|n| !faults.contains(n)) {
        if let Some((handler, flags)) = proc::signal_action(signal)
            && handler != libc::SIG_DFL
            && handler != libc::SIG_IGN
            && flags & libc::SA_RESTART as u64 == 0
        {
            return false;
        }
    }
    true
}
