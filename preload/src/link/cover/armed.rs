//! What the completion queues are armed for. Changed with the lock of all links held.

use super::STALLED;
use crate::link::group::Group;
use crate::link::state::State;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Not at all; for messages; for completions of every kind.
const NO: u32 = 0;
const MESSAGES: u32 = 1;
const ALL: u32 = 2;

static ARMED: AtomicU32 = AtomicU32::new(NO);

fn wanted() -> u32 {
    if STALLED.load(Relaxed) > 0 { ALL } else { MESSAGES }
}

/// Whether a sleeper need not arm.
pub fn is_armed() -> bool {
    ARMED.load(Relaxed) >= wanted()
}

/// An event was taken, or there is another queue.
pub fn disarmed() {
    ARMED.store(NO, Relaxed);
}

/// Arms all devices before a sleep, if they are not: for messages, or for everything while something waits for a
/// completion. True: the caller polls once more.
pub fn arm(state: &State) -> bool {
    let confirming = state.groups.iter().flatten().any(Group::is_confirming);
    let wanted = if confirming { ALL } else { wanted() };
    if ARMED.load(Relaxed) >= wanted {
        return false;
    }
    for d in &state.devices {
        d.arm(wanted == ALL);
    }
    ARMED.store(wanted, Relaxed);
    true
}

/// A connection waits for a completion: events of every kind from now on. The caller polls once more.
pub fn wants_all(state: &State) {
    if ARMED.load(Relaxed) < ALL {
        for d in &state.devices {
            d.arm(true);
        }
        ARMED.store(ALL, Relaxed);
    }
}
