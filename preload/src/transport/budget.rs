//! How many descriptors of this process its peers may take: channels, and what both ends wake each other by. They are the program's
//! as well, which may have few and a client in each of them, and who connects to us decides how many there are.
//!
//! Beyond the budget a channel that serves no connection is closed for the next one, and without such a one connections stay on TCP. Peers of
//! other users have half of it, so that they are nobody's loss but each other's; what one of our own user is rung by is counted, and
//! not refused. Asked where a channel comes, or a descriptor of a stranger's, which is rare.

use super::peers::{self, Peer};
use crate::control;
use crate::sys::{clock, few, proc};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The part of RLIMIT_NOFILE: one in so many.
const PART: u64 = 8;
/// A channel that has just come has its offer behind it.
const FRESH_US: u64 = 20_000;
/// Where there is none, it is not looked for again for so long: who was refused comes again with each message.
const REST_US: u64 = 10_000;
/// [`LIMIT`] before it is known.
const UNKNOWN: u64 = u64::MAX;

/// RLIMIT_NOFILE when it was last asked for.
static LIMIT: AtomicU64 = AtomicU64::new(UNKNOWN);

/// The tick until which there is none: for strangers, and for those of our own user.
static FULL: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn limit() -> u64 {
    // No call of ours that a filter of the program's may forbid.
    if !control::is_restricted() {
        // The program may change it at any time.
        LIMIT.store(proc::descriptor_limit().unwrap_or(UNKNOWN), Relaxed);
    }
    LIMIT.load(Relaxed)
}

/// What peers have taken, those of other users alone or all.
fn taken(of_strangers: bool) -> u32 {
    peers::all().filter(|(_, p)| !of_strangers || !p.is_kin()).map(|(_, p)| p.descriptors_taken()).sum()
}

/// Whether there is room for one more.
fn has_room(is_kin: bool) -> bool {
    let limit = limit();
    let most = (limit / PART).clamp(1, u64::from(u32::MAX)) as u32;
    taken(false) < most && (is_kin || taken(true) < most.div_ceil(2)) && few::are_left_below(limit, libc::STDERR_FILENO, 2)
}

/// Whether a peer may have one more; a channel that nobody uses may have to go for it.
pub fn admits(is_kin: bool) -> bool {
    const TRIES: u32 = 8;
    let (full, now) = (&FULL[usize::from(is_kin)], clock::ticks());
    if now < full.load(Relaxed) {
        return false;
    }
    let admits = has_room(is_kin) || (0..TRIES).any(|_| dismiss_one(is_kin) && has_room(is_kin));
    if !admits {
        full.store(now + clock::ticks_of_us(REST_US), Relaxed);
    }
    admits
}

/// A channel has ended.
pub fn has_room_again() {
    FULL.iter().for_each(|full| full.store(0, Relaxed));
}

/// Closes the channel that has been idle for longest: a stranger's, before one of our own user's goes for one of those.
fn dismiss_one(for_kin: bool) -> bool {
    let before = clock::ticks().saturating_sub(clock::ticks_of_us(FRESH_US));
    let idle = peers::all().map(|(_, p)| p).filter(|p| p.is_idle() && p.since() < before && (for_kin || !p.is_kin()));
    idle.min_by_key(|p| (p.is_kin(), p.since())).is_some_and(Peer::dismiss)
}
