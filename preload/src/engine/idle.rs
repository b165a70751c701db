//! What an idle connection gives back: the pages of its empty ring, and its place in the page tables.
//!
//! Called when a connection turns cold. Nothing is lost: the sender alone writes into its ring, and the
//! bytes of an empty ring are never read again. The next use finds fresh pages, which costs a few page
//! faults, so a connection does it at most once a second.

use super::{bulk, near};
use crate::family::lock::Marker;
use crate::family::sock::Sock;
use crate::sys::{clock, mem};
use crate::transport::region;
use std::sync::atomic::Ordering::*;

/// Gives back what the connection does not need while nobody uses it. Called with the receiving lock
/// held, so the region stays mapped.
#[cold]
pub fn release(s: &Sock) {
    let Some(region) = s.region_of_peers() else { return }; // the rings of a link are registered with a device
    let now = (clock::ticks() / clock::ticks_of_us(1_000_000).max(1)) as u32;
    if s.tx.released.swap(now, Relaxed) == now {
        return;
    }
    let marker = Marker::new();
    if let Some(_held) = s.tx.lock.try_take(&marker)
        && let Some(dir) = s.tx.dir()
        && s.tx_in_memory()
        // Acquire pairs with the Release of `rx::give_back`: the consumer has copied all of it out.
        && dir.tail.load(Acquire) == s.tx.cursor.load(Relaxed)
    {
        bulk::rest(s, dir);
        near::give_back(s, dir);
    }
    let _ = mem::let_go(region::start_of(region), region::LEN);
}
