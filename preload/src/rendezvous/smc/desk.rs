//! What a process keeps of a listener's queue ([`super::backlog`]), asked for by its forked children.
//!
//! A stand-in may be accepted by a child, which has the listener and not the connection: a copy of that in each child would keep it
//! from ending when the one that serves it closes. So the child asks for it by a pair of Unix sockets that was made before the fork: the number of the
//! stand-in, with a socket for the answer. The parent's service thread answers with the connection. A parent that has ended had it last.

use super::{backlog, gate};
use crate::engine::close::reset_on_close;
use crate::log;
use crate::sys::{fd, net, pair, rights};
use std::sync::atomic::{AtomicI32, Ordering::*};

/// How long a child waits for the answer.
const PATIENCE_MS: i32 = 2000;

/// Where this process hears its children; and where they ask.
static HERE: AtomicI32 = AtomicI32::new(-1);
static THERE: AtomicI32 = AtomicI32::new(-1);

/// There is one from here on. False: it can't be made, or this process is a child whose parent `keeps` something still.
pub(super) fn open(keeps: bool) -> bool {
    if HERE.load(Relaxed) >= 0 {
        return true;
    }
    if THERE.load(Relaxed) >= 0 && keeps {
        return false;
    }
    close(&THERE);
    let Ok([here, there]) = pair::messages() else { return false };
    HERE.store(fd::park(here), Release);
    THERE.store(fd::park(there), Release);
    true
}

/// Where the service thread listens; -1 without one.
pub(super) fn descriptor() -> i32 {
    HERE.load(Acquire)
}

/// Answers a child.
pub(super) fn answer() {
    // A child that is forked in between would have a copy of which it knows nothing. The message waits.
    let Some(_entered) = gate::try_enter() else { return };
    let (mut names, mut fds) = ([[0; 8]; 2], [-1; rights::MAX_FDS]);
    let Ok((n, got)) = rights::recv_with_fds(descriptor(), names.as_flattened_mut(), &mut fds) else {
        // Where there is no descriptor for the answer's way: with the message goes what it carries, and who asks hears of that.
        let _ = net::recv_slice(descriptor(), names.as_flattened_mut(), libc::MSG_DONTWAIT);
        return;
    };
    if n == names.as_flattened().len() && got == 1
        && let Some((taken, clc)) = backlog::take_out(names.map(u64::from_ne_bytes))
    {
        if rights::send_with_fds(fds[0], &clc.to_ne_bytes(), &[taken]).is_err() {
            log::warn!(target: "smcr::link", "a connection that waited for accept() is lost: who has accepted it has gone");
            reset_on_close(taken);
        }
        fd::close(taken);
    }
    fds[..got].iter().for_each(|one| fd::close(*one));
}

/// In a child: the connection for which the stand-in with these names stands, and bytes of CLC. None: nobody has it any more.
pub(super) fn ask(names: [u64; 2]) -> Option<(i32, u64)> {
    let [own, other] = pair::messages().ok()?;
    let there = THERE.load(Relaxed);
    let _ = fd::poll(&mut [libc::pollfd { fd: there, events: libc::POLLOUT, revents: 0 }], PATIENCE_MS);
    let sent = rights::send_with_fds(there, names.map(u64::to_ne_bytes).as_flattened(), &[other]);
    fd::close(other);
    let mut answer = None;
    if sent.is_ok() {
        let mut fds = [libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 }];
        let _ = fd::poll(&mut fds, PATIENCE_MS);
        let (mut clc, mut got) = ([0; 8], [-1; rights::MAX_FDS]);
        answer = match rights::recv_with_fds(own, &mut clc, &mut got) {
            Ok((8, 1)) => Some((got[0], u64::from_ne_bytes(clc))),
            _ => None,
        };
    }
    fd::close(own);
    answer
}

/// The library's descriptors here.
pub(super) fn descriptors(add: &mut impl FnMut(i32)) {
    [&HERE, &THERE].map(|place| place.load(Relaxed)).into_iter().filter(|fd| *fd >= 0).for_each(add);
}

/// One of them has another number now; false if it is none of these.
pub(super) fn moved(old: i32, new: i32) -> bool {
    [&HERE, &THERE].iter().any(|place| place.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
}

/// A forked child asks, where its parent `keeps` something, and answers nobody.
pub(super) fn forget_in_child(keeps: bool) {
    close(&HERE);
    if !keeps {
        close(&THERE);
    }
}

fn close(place: &AtomicI32) {
    let old = place.swap(-1, Relaxed);
    if old >= 0 {
        fd::close(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_what_nobody_keeps_gets_an_answer_at_once() {
        assert!(open(false) && open(true));
        let asks = std::thread::spawn(|| ask([17, 18]));
        let mut fds = [libc::pollfd { fd: descriptor(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(fd::poll(&mut fds, 10_000), Ok(1));
        answer();
        assert_eq!(asks.join().unwrap(), None);
        forget_in_child(true);
        assert!(!open(true), "a child has its parent's");
        assert_eq!(ask([17, 18]), None, "which has gone");
    }
}
