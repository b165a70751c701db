//! A process that closes its last descriptor of a connection that others hold too. All that it does to the record it does before it says so:
//! they may close it behind that, and the record be another connection's. What it has of the memory it gives back by what it knew then.
//!
//! Called by [`super::life`].

use crate::engine::{inside, linked, unmap};
use crate::family::sock::Sock;
use crate::rendezvous;
use crate::sys::{self, thread};
use std::sync::atomic::Ordering::*;

/// One that is about to say so.
pub struct Leaver(Option<unmap::Share>);

impl Leaver {
    /// `fd`: the number, while the kernel still has it open.
    pub fn new(s: &'static Sock, fd: Option<i32>, is_shared: bool) -> Leaver {
        if is_shared {
            others_go_on(s, fd);
            rendezvous::forget(s);
        }
        let mut share = None;
        let may_leave = is_shared || !thread::is_only(); // another one may be about to fork
        if may_leave && !s.region.load(Acquire).is_null() && s.link.load(Acquire) == 0 {
            soon(s, || {
                share = unmap::share(s);
                share.is_some()
            });
        }
        Leaver(share)
    }

    /// It has. `last`: nobody else holds it. True: what it had of the memory is given back, and others go on.
    pub fn end(self, last: bool) -> bool {
        match self.0 {
            Some(share) if last => share.keep(),
            Some(share) => {
                share.give_back();
                return true;
            }
            None => {}
        }
        false
    }
}

/// What is done for those that hold it too, by its number.
pub fn others_go_on(s: &'static Sock, fd: Option<i32>) {
    let Some(fd) = fd else { return };
    rendezvous::pause(s, fd); // they may begin when one is left
    if s.can_return() && linked::is_owner(s) {
        linked::keep_tcp(s, fd); // a forked child goes on with it, through our link
    }
}

/// Whoever walks over all sockets (a drain, a message of a channel) has the locks of each for a moment. False: so has somebody who is in it.
pub fn soon(s: &Sock, mut unmap: impl FnMut() -> bool) -> bool {
    const YIELDS: u32 = 48;
    const TRIES: u32 = 64;
    for n in 0..TRIES {
        if unmap() {
            return true;
        }
        if inside::count(s) != 0 {
            break;
        }
        if n < YIELDS {
            sys::proc::yield_now();
        } else {
            let _ = sys::fd::poll(&mut [], 1);
        }
    }
    // A relative may have died with one of them, before it had introduced itself perhaps.
    s.bury_locks();
    unmap()
}
