//! From a link back to TCP, between two libsmcr: what the program sees of it.
//!
//! Each end has told the other over TCP how much of its stream it has (`proto::way_back`). [`come_back`] makes of
//! that what shared memory makes of a switch to TCP: receiving goes on in the ring up to what was stated and
//! then through TCP ([`super::follow`]), sending on TCP, with what the peer does not have as a debt that
//! is paid first ([`super::debt`]). From then on no link belongs to the connection.
//! Called by `rendezvous::smc::way_back` in the service thread.

use super::{debt, follow, shadow};
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, flag, medium, step};
use crate::log;
use crate::transport::changes;
use crate::transport::region::{ctl, fin};
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use smcr_proto::way_back::LEN;
use std::sync::atomic::Ordering::*;

/// The switch by which a direction leaves its link: the second, after the one that came with the handshake.
const HOME: u32 = 2;

/// Where both streams stand.
#[derive(Clone, Copy, Debug)]
pub struct Stand {
    /// Bytes of the peer's stream that this end has stated to have.
    pub received: u64,
    /// Bytes of our own stream that the peer has.
    pub taken: u64,
}

/// Both ends have said where they stand: each direction of connection `index` goes on through TCP from there. False: a
/// thread of the program is in the midst of something, or has just closed.
pub fn come_back(s: &Sock, sock: i32, index: u32, stand: Stand) -> bool {
    let (Some(out), Some(back)) = (s.tx.dir(), s.rx.dir()) else { return true };
    let (m1, m2) = (Marker::new(), Marker::new());
    let Some(tx) = s.tx.lock.try_take(&m1) else { return false };
    let Some(rx) = s.rx.lock.try_take(&m2) else { return false };
    // `unmap::unmap` gives the record up with both locks held.
    if s.link.load(Acquire) != index + 1 {
        return false;
    }
    // What both ends have just said stands in the streams as well.
    let at = s.rx.kernel.fetch_add(LEN as u64, Relaxed) + LEN as u64;
    s.tx.kernel.fetch_add(LEN as u64, Relaxed);
    // Receiving: the end of the stream is TCP's to show.
    back.fin.fetch_and(!fin::WRITE, AcqRel);
    back.at_ring(HOME).store(stand.received, Relaxed);
    back.at_kernel(HOME).store(at, Relaxed);
    back.space.store(0, Relaxed);
    if back.urgent.load(Relaxed) > stand.received {
        // It comes again, as TCP's.
        back.oob.store(0, Relaxed);
        s.clear(flag::URGENT);
    }
    back.switch.store(HOME, Release); // pairs with the Acquire in `follow::follow`
    // Sending. The ring is used for what is owed alone; the peer's cursor means nothing any more.
    let end = s.tx.cursor.load(Relaxed);
    out.bell.store(0, Relaxed);
    out.tail.store(end, Release);
    out.at_ring(HOME).store(end, Relaxed); // nothing was left in it (`end::verdict`)
    s.tx.seen.store(end, Relaxed);
    s.tx.switches.store(HOME, Relaxed);
    s.tx_switches.store(HOME, Relaxed);
    out.switch.store(HOME, Relaxed);
    out.passed.store(HOME, Relaxed);
    if stand.taken < end {
        debt::owe(s, 0, stand.taken);
    }
    s.step.store(step::FAILED, Release);
    s.clear(flag::LINKED | flag::RETURNS);
    s.tx_medium.store(medium::TCP, SeqCst);
    process::count(Counter::SwitchTxTcp, 1);
    if s.reason.load(Relaxed) == Reason::None.code() {
        s.note(Reason::LinkLost);
    }
    s.set_state(State::Tcp);
    shadow::restore_sending(s, sock);
    drop((tx, rx));
    log::info!(target: "smcr::switch", fd = sock, received = stand.received, taken = stand.taken, sent = end,
        "a connection leaves its link for TCP");
    debt::pay(s, sock);
    follow::progress(s, sock);
    changes::note(s);
    true
}

/// From here on nobody of this family takes from the ring: what it holds is to come again through TCP. False: a
/// thread is in the midst of reading.
pub fn freeze(s: &Sock) -> bool {
    let Some(dir) = s.rx.dir() else { return true };
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
    if s.can_return() && s.rx_in_memory() && !s.has(flag::FROZEN) {
        dir.frozen.store(s.rx.cursor.load(Relaxed), Relaxed);
        s.set(flag::FROZEN);
        dir.ctl.fetch_or(ctl::RETURN, AcqRel);
    }
    true
}
