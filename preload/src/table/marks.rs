//! SO_RCVLOWAT, set while what it is about lies in memory: as in the kernel (tcp_set_rcvlowat) it wakes whoever waits for data, and is an
//! edge for epoll sets, where there is as much as it says. Called by `options`.

use super::full::with_member;
use super::homes;
use crate::engine::{follow, rouse};
use crate::family::sock::Sock;
use std::sync::atomic::Ordering::*;

/// The mark has been set.
#[cold]
pub fn tell(s: &Sock) {
    let low = u64::from(s.low_water.load(Relaxed).max(1));
    if !s.rx.dir().is_some_and(|dir| s.rx_in_memory() && follow::in_ring(s, dir) >= low) {
        return;
    }
    for set in homes::of(s) {
        with_member(
            set,
            s,
            |mb| mb.ours && mb.asks_for_data(),
            |inner, m| {
                inner.member_mut(m).fresh = true;
                inner.heat(m);
            },
        );
    }
    rouse::all();
}
