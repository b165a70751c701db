//! connect(2) with AF_UNSPEC: the connection ends by a reset, and the descriptor may be connected again. Called by the hook of connect.

use crate::engine::{close, disconnected, switch, unmap};
use crate::family;
use crate::family::sock::{Sock, role};
use crate::rendezvous::{self, worth};
use crate::transport::changes;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// It is about to be called.
#[cold]
pub fn before(s: &'static Sock, fd: i32) {
    s.is_disconnected();
    if s.link.load(Relaxed) != 0 {
        return of_link(s, fd);
    }
    rendezvous::forget(s);
    let is_legacy = s.legacy.load(Relaxed) != 0;
    if s.region().is_none() {
        if is_legacy {
            switch::pin(s, fd, Reason::TcpSpecial); // others may connect it again
        } else if !matches!(s.role.load(Relaxed), role::LISTENER) {
            family::ended::count(s);
            begin_again(s);
        }
        return;
    }
    close::before_reset(s, fd);
    let stays = is_legacy || s.holders.load(Relaxed) > 1 || !unmap::unmap(s, true);
    family::ended::count(s);
    if stays {
        // Somebody else is in it: what comes next stays on TCP.
        close::leave_behind(s);
        switch::pin(s, fd, Reason::TcpSpecial);
    } else {
        begin_again(s);
    }
    changes::note(s);
}

/// The same where it is over a link, or was to be. What comes next stays on TCP: its handshake would be a second one on one socket.
fn of_link(s: &'static Sock, fd: i32) {
    rendezvous::smc::before_disconnect(s, fd);
    family::ended::count(s);
    if s.holders.load(Relaxed) > 1 || !unmap::unmap(s, true) {
        disconnected::abandon(s);
        close::leave_behind(s);
        s.link.store(0, Release);
    } else {
        begin_again(s);
    }
    switch::pin(s, fd, Reason::TcpSpecial);
    changes::note(s);
}

/// As a fresh socket.
fn begin_again(s: &Sock) {
    s.start_again();
    worth::begin_counting(s);
}

/// It was called. Calls that have begun since [`before`] found the connection before, too.
#[cold]
pub fn after(s: &Sock) {
    s.is_disconnected();
}
