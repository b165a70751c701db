//! Several connections that go back to TCP together: all are asked first, and then waited for, so that a peer that is stopped costs
//! the patience once and not once for each connection with it.
//!
//! Called by `drain`, `confine` and `apart`, beside whatever the other threads of the program do: but for one that is about to become another
//! program, which takes up what is unread of the same connections, and to which this gives way.

use super::connections;
use crate::engine::{here, inside};
use crate::family::sock::Sock;
use crate::rendezvous::{self, Back};
use crate::sys::{clock, fd};
use crate::table;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// A thread calls exec.
static LEAVES: AtomicBool = AtomicBool::new(false);
/// Threads in [`each`].
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// How long exec waits for them. One of them may be the thread that calls it, in a handler.
const MOMENT_NS: u64 = 50_000_000;

/// Before exec: nothing is asked for, followed or read on here from now on.
pub fn give_way() {
    LEAVES.store(true, SeqCst);
    let until = clock::now_ns() + MOMENT_NS;
    while INSIDE.load(SeqCst) != 0 && clock::now_ns() < until {
        let _ = fd::poll(&mut [], 1);
    }
}

/// It has failed.
pub fn exec_failed() {
    LEAVES.store(false, SeqCst);
}

/// The threads that were at it are the parent's.
pub fn forget_in_child() {
    LEAVES.store(false, SeqCst);
    INSIDE.store(0, SeqCst);
}

/// Does something with each connection that is meant, by a number of ours where another thread may close it meanwhile.
pub fn each(is_meant: impl Fn(&Sock) -> bool, act: impl FnMut(i32, &'static Sock)) {
    let _inside = Inside::new();
    each_but_for_exec(is_meant, act);
}

/// A thread in [`each`], also when that panics.
struct Inside;

impl Inside {
    fn new() -> Inside {
        INSIDE.fetch_add(1, SeqCst); // either exec finds it, or LEAVES is seen
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, SeqCst);
    }
}

fn each_but_for_exec(is_meant: impl Fn(&Sock) -> bool, mut act: impl FnMut(i32, &'static Sock)) {
    for (fd, s) in connections().filter(|(_, s)| is_meant(s)) {
        if LEAVES.load(SeqCst) {
            return;
        }
        let is_there = || table::sock(fd).is_some_and(|now| std::ptr::eq(now, s)) && is_meant(s);
        inside::by_own_number(s, fd, is_there, |fd| act(fd, s));
    }
}

/// Waits for those that were asked, until `end`. What does not come is read on from its ring. `leaves`: nobody will be here to do that, and why.
pub fn await_all(is_coming: impl Fn(&Sock) -> bool, end: u64, leaves: Option<Reason>) {
    loop {
        let is_over = clock::now_ns() >= end;
        let mut waits = false;
        each(&is_coming, |fd, s| match (rendezvous::follow_back(s, fd), leaves) {
            (Back::NotYet, _) => {
                waits = true;
                if is_over {
                    rendezvous::read_on(s, fd, leaves.is_none());
                }
            }
            (Back::Left, None) => here::begin(s), // what was taken up before and is read on here
            (Back::Left, Some(why)) if !is_over => waits |= rendezvous::ask_once_more(s, fd, why, end),
            _ => {}
        });
        if is_over || !waits || LEAVES.load(SeqCst) {
            return;
        }
        let _ = fd::poll(&mut [], 1);
    }
}
