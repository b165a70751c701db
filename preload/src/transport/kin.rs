//! Peers of our own user, and what becomes of them when this process becomes another one. Called by `table::apart`.

use super::peers::{FORMER, Peer, all};
use std::sync::atomic::Ordering::*;

/// Whether there are any.
pub fn is_there() -> bool {
    all().any(|(_, p)| p.is_kin())
}

/// Those whose user is none of these, with their slot + 1.
pub fn beside(users: [u32; 3]) -> impl Iterator<Item = (u32, &'static Peer)> {
    all().filter(move |(_, p)| p.is_kin() && !users.contains(&p.who().1))
}

/// This process keeps nothing by which the peer is woken, and no channel. Whoever sleeps by a name wakes once, and finds that
/// we do not know it (`known::no_names`).
pub fn part(p: &Peer) {
    p.wakes.ring_all();
    p.kinship.store(FORMER, Relaxed);
    p.told.iter().for_each(|told| told.store(0, Relaxed));
    p.wakes.close_bells(p.channel.swap(-1, AcqRel), true);
    p.lost();
}
