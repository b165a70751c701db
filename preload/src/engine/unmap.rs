//! The giving back of a connection's memory: behind the last close, and by one of several processes that hold it. Called by `table::life`,
//! `table::leaver`, `table::late`, `table::disconnect` and `table::child`.

use super::{bulk, end, inside, linked, near, patience};
use crate::family::index_of;
use crate::family::lock::Marker;
use crate::family::sock::{Sock, medium};
use crate::transport::peers::{self, Peer};
use crate::transport::region::{self, RegionHeader};
use crate::transport::wide;
use std::sync::atomic::Ordering::*;

/// Nobody has the record any more, and those that had it have given back region and peer for themselves.
pub fn forget(s: &Sock) {
    if s.link.load(Acquire) != 0 {
        linked::leave(s);
        return linked::forget(s);
    }
    have_none(s);
    s.peer.store(0, Relaxed);
}

/// Another user may keep the region for as long as he likes, and the pages that we have touched first count as ours. What he has read
/// of them, or can't read any more, goes now; both locks are held.
fn give_ring_back(s: &Sock) {
    let Some(dir) = s.tx.dir().filter(|_| s.region_of_peers().is_some() && !patience::is_own_user(s)) else { return };
    if dir.tail.load(Acquire) == s.tx.cursor.load(Relaxed) || s.rx.end.load(Relaxed) >= end::RST {
        bulk::rest(s, dir);
        near::give_back(s, dir);
    }
}

/// There is no memory, for all that have the record.
fn have_none(s: &Sock) {
    s.tx_medium.store(medium::TCP, Release);
    s.rx_medium.store(medium::TCP, Release);
    s.tx.dir.store(std::ptr::null_mut(), Release);
    s.rx.dir.store(std::ptr::null_mut(), Release);
    s.region.store(std::ptr::null_mut(), Release);
}

/// What this process has of the memory of a connection that others hold too.
pub struct Share {
    index: u32,
    region: *mut RegionHeader,
    wide: Option<wide::Both>,
    peer: u32,
}

/// Before this process says that it holds it no more: then the others may close it, and the record be another connection's. None: there
/// is nothing to be given back, or somebody is in it.
pub fn share(s: &Sock) -> Option<Share> {
    let (m1, m2) = (Marker::new(), Marker::new());
    let _tx = s.tx.lock.try_take(&m1)?;
    let _rx = s.rx.lock.try_take(&m2)?;
    let region = s.region.load(Acquire);
    if region.is_null() || inside::count(s) != 0 || s.link.load(Acquire) != 0 {
        return None;
    }
    let index = index_of(s);
    Some(Share { index, region, wide: wide::take_out(index), peer: s.peer.load(Relaxed) })
}

impl Share {
    /// The others go on.
    pub fn give_back(self) {
        self.wide.into_iter().for_each(wide::Both::unmap);
        region::drop_mapping(self.region);
        peers::get(self.peer).into_iter().for_each(Peer::release);
    }

    /// They had gone: it is this process's alone.
    pub fn keep(self) {
        self.wide.into_iter().for_each(|both| both.put_back(self.index));
    }
}

/// After the last close in this process: gives region and peer back. False: somebody still uses
/// them; the last user comes here again.
pub fn unmap(s: &Sock, last_in_family: bool) -> bool {
    let (m1, m2) = (Marker::new(), Marker::new());
    let Some(_tx) = s.tx.lock.try_take(&m1) else { return false };
    let Some(_rx) = s.rx.lock.try_take(&m2) else { return false };
    if inside::count(s) != 0 {
        return false;
    }
    if s.link.load(Acquire) != 0 {
        if last_in_family {
            linked::leave(s);
            linked::forget(s);
        }
        return true;
    }
    let region = s.region.load(Acquire);
    if last_in_family {
        give_ring_back(s);
        have_none(s);
    }
    if !region.is_null() {
        wide::unmap(index_of(s));
        region::drop_mapping(region);
    }
    if let Some(p) = peers::get(s.peer.load(Relaxed)) {
        p.release();
    }
    if last_in_family {
        s.peer.store(0, Relaxed);
    }
    true
}
