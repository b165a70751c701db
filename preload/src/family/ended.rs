//! What connections and processes leave behind in counters when they end.
//!
//! A connection's bytes and sizes are in its own record while it lives (smcrctl adds them up) and go to
//! the counters of the process that closes it ([`count`]). What a process that was killed has counted, and
//! what its connections had, goes to one record of the family that stands for no process
//! (`proto::page::process::ENDED`), so that totals never go back while a relative lives. Used by
//! `table::life` at a close, and by the parent when it takes back what dead processes held.

use super::process::{self, Record};
use super::sock::{Sock, medium, role};
use super::{PROC_CAP, page};
use crate::sys::{clock, proc};
use page::{Counter, process as field};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// A connection ends here: what it did goes to the counters of this process.
pub fn count(s: &Sock) {
    each(s, process::count_at);
    if let Some(reason) = reason(s) {
        process::count_fallback(reason);
    }
}

/// A connection ends because the last process that held it is gone.
pub fn count_lost(base: *mut u8, s: &Sock) {
    let Some(r) = of_the_gone(base) else { return };
    each(s, |number, n| r.add(number, n));
    if let Some(reason) = reason(s) {
        r.add_fallback(reason, 1);
    }
}

/// The record of a process that is gone becomes empty. The caller alone works on it.
pub fn absorb(base: *mut u8, gone: &Record) {
    let to = of_the_gone(base);
    for (number, counter) in gone.counters.iter().enumerate() {
        let n = counter.swap(0, Relaxed);
        if let Some(to) = to.filter(|_| n != 0 && !Counter::is_gauge(number)) {
            to.add(number, n as i64);
        }
    }
    for entry in &gone.fallbacks {
        let (reason, n) = split(entry.swap(0, Relaxed));
        if let Some(to) = to.filter(|_| n != 0) {
            to.add_fallback(reason, n);
        }
    }
}

/// An entry of the list of reasons: the reason, and how many.
fn split(entry: u64) -> (u32, u32) {
    ((entry >> 32) as u32, entry as u32)
}

/// The record that stands for no process, made when it is first needed; None if there is no room.
fn of_the_gone(base: *mut u8) -> Option<&'static Record> {
    let records = || (0..PROC_CAP).map(|i| (i, process::record(base, i)));
    let is = |r: &Record| r.pid.load(Acquire) == field::ENDED; // pairs with the AcqRel below
    if let Some((_, r)) = records().find(|(_, r)| is(r)) {
        return Some(r);
    }
    let take = |r: &Record| r.pid.compare_exchange(0, field::ENDED, AcqRel, Relaxed).is_ok();
    let (number, r) = records().find(|(_, r)| take(r))?;
    r.name_it(&proc::name());
    r.start.store(clock::now_ns(), Relaxed);
    r.enabled.store(0, Relaxed);
    r.wake_inode.store(0, Relaxed);
    process::used(base, number);
    Some(r)
}

/// What a connection adds to which counter.
#[inline]
fn each(s: &Sock, mut add: impl FnMut(usize, i64)) {
    for (counter, n) in [
        (Counter::TcpTxBytes, s.tx.tcp.load(Relaxed) as i64),
        (Counter::TcpRxBytes, s.rx.tcp.load(Relaxed) as i64),
        (Counter::TcpOps, s.ops.load(Relaxed).into()),
    ] {
        if n != 0 {
            add(counter as usize, n);
        }
    }
    if s.tx.cursor.load(Relaxed) | s.rx.cursor.load(Relaxed) != 0 {
        each_of_memory(s, add);
    }
}

#[cold]
fn each_of_memory(s: &Sock, mut add: impl FnMut(usize, i64)) {
    let [tx, rx] = [&s.tx, &s.rx].map(|half| half.cursor.load(Relaxed) as i64);
    add(Counter::MemTxBytes as usize, tx);
    add(Counter::MemRxBytes as usize, rx);
    for (i, value) in s.sizes.as_flattened().iter().enumerate() {
        match value.load(Relaxed) {
            0 => {}
            n => add(Counter::Tx64 as usize + i, n as i64),
        }
    }
    if s.carried.load(Relaxed) == medium::RDMA {
        let [sends, receives] = s.sizes.each_ref().map(|way| way.iter().map(|n| n.load(Relaxed) as i64).sum());
        add(Counter::RdmaTxBytes as usize, tx);
        add(Counter::RdmaRxBytes as usize, rx);
        add(Counter::RdmaTx as usize, sends);
        add(Counter::RdmaRx as usize, receives);
    }
}

/// Why a connection ended on TCP; None if it did not, or was none.
fn reason(s: &Sock) -> Option<u32> {
    let role = s.role.load(Relaxed);
    let never = s.tx.switches.load(Relaxed) == 0 && s.rx.switches.load(Relaxed) == 0;
    let reason = s.reason.load(Relaxed);
    let is_one = role == role::CLIENT || role == role::SERVER;
    (is_one && (never || reason != 0)).then(|| if reason == 0 { Reason::NotWorthIt.code() } else { reason })
}
