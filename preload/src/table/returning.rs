//! Several connections that go back to TCP together: all are asked first, and then waited for, so that a peer that is stopped costs
//! the patience once and not once for each connection with it.
//!
//! Called by `drain`, `confine` and `apart`, beside whatever the other threads of the program do.

use super::connections;
use crate::engine::inside;
use crate::family::sock::Sock;
use crate::rendezvous::{self, Back};
use crate::sys::thread::full_fence;
use crate::sys::{clock, fd};
use crate::table;

/// Does something with each connection that is meant. Another thread may close it meanwhile, and number and record be those of two
/// others at once: what is done to a record would be done with the bytes of a stranger. So the record is visited first, which keeps
/// it, and its socket has a number of ours for as long.
pub fn each(is_meant: impl Fn(&Sock) -> bool, mut act: impl FnMut(i32, &'static Sock)) {
    for (fd, s) in connections().filter(|(_, s)| is_meant(s)) {
        let Some(visit) = inside::visit(s, &fd) else {
            act(fd, s); // there is no other thread
            continue;
        };
        full_fence(); // either who closes it finds the visit, or we find the number taken away
        let is_there = || table::sock(fd).is_some_and(|now| std::ptr::eq(now, s)) && is_meant(s);
        match fd::another(fd) {
            Ok(own) => {
                if is_there() {
                    act(own, s);
                }
                fd::close(own);
            }
            Err(_) if is_there() => act(fd, s), // no number is left
            Err(_) => {}
        }
        drop(visit);
    }
}

/// Waits for those that were asked, until `end`. What does not come is read on from its ring; `stays`: as for [`rendezvous::read_on`].
pub fn await_all(is_coming: impl Fn(&Sock) -> bool, end: u64, stays: bool) {
    loop {
        let is_over = clock::now_ns() >= end;
        let mut waits = false;
        each(&is_coming, |fd, s| {
            if rendezvous::follow_back(s, fd) == Back::NotYet {
                waits = true;
                if is_over {
                    rendezvous::read_on(s, fd, stays);
                }
            }
        });
        if is_over || !waits {
            return;
        }
        let _ = fd::poll(&mut [], 1);
    }
}
