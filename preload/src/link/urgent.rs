//! An urgent byte that a peer has sent: kept beside the ring, and its owner told (`engine::urgent` has the rest).

use super::slot::Slot;
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::layout::oob;
use crate::sys::{fd, net, proc};
use std::sync::atomic::Ordering::*;

impl Slot {
    /// The byte before this position of the stream is urgent. Called before it is shown.
    pub(super) fn note_urgent(&self, behind: u64) {
        let (Some(s), Some(ring)) = (self.sock(), self.rx) else { return };
        let dir = self.rx_dir();
        let size = u64::from(dir.size.load(Relaxed).max(1));
        // SAFETY: a byte of the ring that this connection has.
        let byte = unsafe { ring.start.add(((behind - 1) % size) as usize).read_volatile() };
        dir.urgent.store(behind, Relaxed);
        dir.oob.store(oob::UNREAD | u32::from(byte), Relaxed);
        tell(s, self.program_fd());
    }

    /// Where the urgent byte is next it is passed over at once: the peer waits until all is read.
    pub(super) fn pass_urgent(&self) -> bool {
        let Some(s) = self.sock().filter(|s| s.has(flag::URGENT) && !s.has(flag::OOB_INLINE)) else { return false };
        let dir = self.rx_dir();
        let behind = dir.urgent.load(Relaxed);
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
        if s.rx.cursor.load(Relaxed) + 1 != behind {
            return false;
        }
        s.rx.cursor.store(behind, Relaxed);
        dir.tail.store(behind, Release);
        true
    }
}

/// Sets the flag that readers look at, and tells who asked for SIGURG.
fn tell(s: &Sock, sock: Option<i32>) {
    let inline = sock.is_some_and(|sock| net::get_opt::<i32>(sock, libc::SOL_SOCKET, libc::SO_OOBINLINE).is_ok_and(|v| v != 0));
    s.put(flag::OOB_INLINE, inline);
    s.set(flag::URGENT); // its Release makes place and byte visible
    if let Some(sock) = sock
        && let Ok(owner) = fd::fcntl(sock, libc::F_GETOWN, 0)
    {
        proc::signal_owner(owner as i32, libc::SIGURG);
    }
}
