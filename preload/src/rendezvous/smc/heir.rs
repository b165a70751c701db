//! A forked child whose parent had not ended the handshake of a connection that both have: it goes on with it when the parent ends.
//!
//! While the parent lives its service thread does all. The child's own begins with the fork and looks now and then whether the parent
//! has ended (no descriptor says so: a program may close it); of several children that have the connection the first takes it, and
//! the others wait for that one's end. What had a ring already can only be reset here: the link would have been the parent's. Used by the service thread; [`super::shake::Shake::inherited`] is how it goes on.

use super::shake::Shake;
use super::way_back;
use crate::engine::linked;
use crate::family::process;
use crate::family::sock::Sock;
use crate::link::lock::{self, now};
use crate::log;
use crate::rendezvous::mark::{self, Shown};
use crate::sys::{Errno, fd, proc};
use smcr_proto::smc::Time;
use std::sync::atomic::Ordering::*;

/// A connection, and the process whose handshake it has.
pub struct Heir {
    s: &'static Sock,
    generation: u32,
    owner: u32,
    /// Its thread that has the handshake; 0 not known.
    keeper: u32,
    /// When to look again.
    pub at: Time,
}

/// How often it looks.
const LOOK: Time = Time::from_millis(50);

impl Heir {
    /// After a fork, in the child. None: there is nothing to go on with.
    pub fn new(s: &'static Sock) -> Option<Heir> {
        let page = s.region().filter(|_| linked::is_pending(s))?;
        let (owner, keeper) = (page.server.load(Relaxed), page.keeper.load(Relaxed));
        Some(Heir { s, generation: s.generation.load(Relaxed), owner, keeper, at: now() + LOOK })
    }

    /// Whether it is over: the handshake has ended, or goes on here.
    pub fn look(&mut self, begin: impl FnOnce(Shake)) -> bool {
        if self.at > now() {
            return false;
        }
        self.at = now() + LOOK;
        if self.s.generation.load(Relaxed) != self.generation || !linked::is_pending(self.s) {
            return true;
        }
        if self.keeper == 0 {
            self.keeper = self.keeper_now();
        }
        if !self.is_left() {
            return false;
        }
        match self.take() {
            Taken::Not => {}
            Taken::By(owner) => {
                (self.owner, self.keeper) = (owner, if owner == self.owner { self.keeper } else { 0 });
                return false;
            }
            Taken::Here(shake) => begin(*shake),
        }
        true
    }

    /// The handshake's first step comes after the fork perhaps.
    fn keeper_now(&self) -> u32 {
        let page = self.s.region().filter(|page| page.server.load(Relaxed) == self.owner);
        page.map_or(0, |page| page.keeper.load(Relaxed))
    }

    /// Whether nobody goes on with it: the owner has ended, or is another program by now.
    fn is_left(&self) -> bool {
        proc::is_gone(self.owner) || self.keeper != 0 && proc::is_gone(self.keeper)
    }

    fn take(&self) -> Taken {
        let s = self.s;
        let Some(page) = s.region() else { return Taken::Not };
        let own = match way_back::descriptor(Some(s.fd.load(Relaxed)), s.cookie.load(Relaxed)) {
            Ok(own) => own,
            Err(Errno(libc::EMFILE)) => return Taken::By(self.owner), // later perhaps
            Err(_) => return Taken::Not,
        };
        let Shown::Peer(peer) = mark::ask(s, own) else {
            fd::close(own);
            return Taken::Not;
        };
        let id = lock::with(|all| {
            // Acquire: what the one before has said of it; pairs with the Release here, and with the end of a process.
            page.server.compare_exchange(self.owner, process::pid(), AcqRel, Acquire)?;
            Ok(all.adopt(s))
        });
        match id {
            Some(Ok(Some(id))) => {
                log::info!(target: "smcr::link", fd = own, "a handshake goes on in a forked child");
                Taken::Here(Box::new(Shake::inherited(s, page, own, id, peer)))
            }
            Some(Err(owner)) => {
                fd::close(own);
                Taken::By(owner)
            }
            _ => {
                fd::close(own);
                Taken::Not
            }
        }
    }
}

enum Taken {
    Not,
    /// A relative was first.
    By(u32),
    Here(Box<Shake>),
}
