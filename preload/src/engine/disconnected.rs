//! A connection over a link that its program disconnects by connect(2) with AF_UNSPEC, and may connect again: before that its descriptor is no
//! way to the old peer any more. Called by `table::life` and `rendezvous::smc`.

use super::linked::{is_owner, is_pending, kick};
use crate::family::sock::Sock;
use crate::link::lock;
use crate::transport::region::fin;
use std::sync::atomic::Ordering::*;

/// Before the program disconnects it: the peer sees a reset.
pub fn before_reset(s: &Sock) {
    if let Some(dir) = s.tx.dir() {
        dir.fin.fetch_or(fin::WRITE | fin::CLOSED | fin::RESET, Release);
        kick(s);
    }
}

/// The same, while others may have its memory: it is the link's alone from here on.
pub fn abandon(s: &Sock) {
    if let Some(dir) = s.tx.dir() {
        dir.fin.fetch_or(fin::LEFT, Release);
        kick(s);
    }
}

/// Whether somebody talks for it by its TCP connection: a handshake, or the way back.
pub fn is_talking(s: &Sock) -> bool {
    let on_its_way = |index| lock::with(|all| all.slot(index).is_some_and(|slot| slot.is_on_way_back())) == Some(true);
    is_pending(s) || s.is_linked() && is_owner(s) && s.link.load(Relaxed).checked_sub(1).is_some_and(on_its_way)
}
