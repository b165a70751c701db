//! Sending through memory behind the peer's half-close: it says nothing more, and reads on.
//!
//! No doorbell byte comes from such a peer (hazard 4), and nothing here needs one: who waits for room is rung by its name
//! ([`super::room`]). What TCP shows of the peer it has shown, though: neither its close nor its death makes a second end. A close leaves
//! its mark; while it has something to read its channel is asked whether it lives, and if not a doorbell byte is sent, to which a socket
//! that nobody has answers with a reset. One that reads nothing for [`PATIENCE`] is served by TCP, until it has read.
//! Asked by `switch`, for a sender and for every wait for room, and by `ready::level`.

use super::{bell, end, kernel, stuck};
use crate::family::sock::{Sock, flag};
use crate::transport::peers;
use crate::transport::region::{Dir, fin};
use std::sync::atomic::Ordering::*;

/// For how long the peer may read nothing, in units of [`stuck`]: longer than one that runs is ever away, no longer than its death may stay unknown.
const PATIENCE: u32 = 20;

/// Whether the peer has shut down its sending in order, and no more than that, all that it has sent can be found where we read, and we may send.
pub fn is_half(s: &Sock, back: &Dir) -> bool {
    let is_found = || match s.rx.end.load(Relaxed) {
        0 => s.rx_in_memory(),
        shown => shown == end::FIN,
    };
    back.fin.load(Acquire) & (fin::ENDS | fin::BOTH) == fin::WRITE && !s.is_linked() && !s.has(flag::SHUT_WR) && is_found()
}

/// Some: sending stays in memory, and this is the time in ns after which to look again. None: it is for TCP, which knows what became of the peer.
pub fn stays(s: &Sock, sock: i32) -> Option<u64> {
    let (dir, _) = (s.tx.dir()?, s.rx.dir().filter(|back| is_half(s, back))?);
    let left = PATIENCE.saturating_sub(stuck::rests_for(s, dir));
    let stays = left > 0 && is_read(s, dir);
    if !stays {
        probe(s, sock, dir);
    }
    stays.then(|| stuck::ns(left))
}

/// Looks whether the peer has died before it has read all; what comes of it the kernel's socket shows. Now and then: a child of the process that
/// the channel knew may read on.
pub fn look(s: &Sock, sock: i32) {
    if let (Some(dir), Some(back)) = (s.tx.dir(), s.rx.dir())
        && is_half(s, back)
        && !is_read(s, dir)
        && kernel::is_time_to_look(s)
    {
        probe(s, sock, dir);
    }
}

fn probe(s: &Sock, sock: i32, dir: &Dir) {
    bell::ring_tcp(s, dir, sock);
    kernel::look_at_kernel_for_sender(s, sock);
}

/// Whether all was read, or may be.
fn is_read(s: &Sock, dir: &Dir) -> bool {
    dir.tail.load(Acquire) == s.tx.cursor.load(Relaxed) || is_there(s) // Acquire as in `tx::look_at_tail`
}

/// Whether the process at the other end lives, as far as its channel knows.
fn is_there(s: &Sock) -> bool {
    peers::get(s.peer.load(Relaxed)).is_some_and(|peer| !peer.has_ended())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::sock::medium;

    #[test]
    fn half_of_an_end_is_marked_and_all_before_it_found() {
        // SAFETY: all zero is a fresh record, and so is a direction of a page.
        let (s, back): (Sock, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let is = |marks: u32, shown: u32, medium: u8| {
            back.fin.store(marks, Relaxed);
            s.rx.end.store(shown, Relaxed);
            s.rx_medium.store(medium, Relaxed);
            is_half(&s, &back)
        };
        assert!(is(fin::WRITE, 0, medium::SHM) && is(fin::WRITE | fin::LINGER0, end::FIN, medium::SHM) && is(fin::WRITE, end::FIN, medium::TCP));
        assert!(!is(fin::WRITE, 0, medium::TCP), "payload may lie before it");
        assert!(!is(0, end::FIN, medium::SHM), "it died, or no hook has seen it");
        for more in [fin::CLOSED, fin::RESET, fin::BOTH] {
            assert!(!is(fin::WRITE | more, end::FIN, medium::SHM));
        }
        assert!(!is(fin::WRITE, end::FIN_RST, medium::SHM));
    }

    #[test]
    fn one_that_has_read_all_keeps_it_in_memory() {
        // SAFETY: as above.
        let (s, dir, back): (Sock, Dir, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
        s.tx.dir.store(std::ptr::from_ref(&dir).cast_mut(), Relaxed);
        s.rx.dir.store(std::ptr::from_ref(&back).cast_mut(), Relaxed);
        s.rx_medium.store(medium::SHM, Relaxed);
        back.fin.store(fin::WRITE, Relaxed);
        let all = stuck::ns(PATIENCE);
        assert_eq!(stays(&s, -1), Some(all));
        s.tx.cursor.store(1, Relaxed);
        assert!(stays(&s, -1).is_none(), "nobody is known who could read it");
        dir.tail.store(1, Relaxed);
        assert_eq!(stays(&s, -1), Some(all));
    }
}
