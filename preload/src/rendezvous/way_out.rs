//! Who gives a connection away, or takes back what was asked for that: one thread at a time. Two at once would each take up what is
//! unread, and ask for the return of bytes that the other one takes.
//!
//! Called by [`super::handover`] and [`super::aside`].

use crate::family::lock::{Held, Marker};
use crate::family::sock::Sock;
use crate::sys::{clock, fd};

/// Waits for the other one `until` then. None: it is at it still, or this is a handler above it.
pub fn claim<'a>(s: &'a Sock, marker: &'a Marker, until: u64) -> Option<Held<'a>> {
    loop {
        if s.rx.leaving.is_own() {
            return s.rx.leaving.take(marker).ok(); // which tells a call that was left from one that goes on
        }
        if let Some(held) = s.rx.leaving.try_take(marker) {
            return Some(held);
        }
        if clock::now_ns() >= until {
            return None;
        }
        s.rx.leaving.bury();
        let _ = fd::poll(&mut [], 1);
    }
}
