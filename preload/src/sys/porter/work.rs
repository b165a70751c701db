//! What a porter does, from its first instruction to its end. Given to `start` by [`super`]; nothing else calls it.

use super::{Errand, Fits, GOOD, HOSTILE, PATIENCE_S, UNKNOWN, wait_while, wake};
use crate::sys::{Sysno, call, net, rights};
use libc::c_int;
use std::sync::atomic::Ordering::*;

/// All that a porter does. It has the thread's memory, and must not use what libc keeps for that.
pub extern "C" fn work(e: &'static Errand) -> ! {
    match e.fits {
        Some(fits) => look(e, fits),
        None => hold(e),
    }
    loop {
        // SAFETY: no pointers. What it still has is closed by a process that is ending, for which no socket lingers.
        let _ = unsafe { call(Sysno::exit_group, [0; 6]) };
    }
}

fn look(e: &Errand, fits: Fits) {
    let channel = e.load[0];
    let (mut raw, mut fds) = ([0u8; 256], [-1; rights::MAX_FDS]);
    let (verdict, got) = match rights::peek_with_fds(channel, &mut raw, &mut fds) {
        Ok(p) if p.cut && p.fds < fds.len() => (UNKNOWN, p.fds), // no room in the table
        Ok(p) if !p.cut && fits(&raw[..p.bytes], &fds[..p.fds]) => (GOOD, p.fds),
        Ok(p) => (HOSTILE, p.fds),
        Err(_) => (UNKNOWN, 0),
    };
    if verdict == GOOD {
        e.verdict.store(verdict, Release);
        return wake(&e.verdict);
    }
    let mut kept = [c_int::MAX; rights::MAX_FDS + 1];
    kept[0] = channel;
    kept[1..=got].copy_from_slice(&fds[..got]);
    let kept = &mut kept[..=got];
    kept.sort_unstable();
    close_others(kept);
    e.verdict.store(verdict, Release);
    wake(&e.verdict);
    if verdict == HOSTILE {
        // Nothing more comes, and what is there comes along: it would be dropped with the channel.
        let _ = net::shutdown(channel, libc::SHUT_RD);
        while rights::take_with_all_fds(channel) {}
    }
}

fn hold(e: &Errand) {
    let load = &e.load[..e.count];
    close_others(load);
    e.apart.store(1, Release);
    wake(&e.apart);
    if e.closed.load(Acquire) == 0 {
        wait_while(&e.closed, 0, PATIENCE_S, 0);
    }
}

/// Closes all descriptors but these, which are sorted.
fn close_others(kept: &[c_int]) {
    let mut from = 0u32;
    for fd in kept.iter().filter(|fd| **fd >= 0).map(|fd| *fd as u32) {
        if fd > from {
            close_range(from, fd - 1);
        }
        from = from.max(fd + 1);
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: no pointers; the table is the porter's own.
    let _ = unsafe { call(Sysno::close_range, [first as usize, last as usize, 0, 0, 0, 0]) };
}
