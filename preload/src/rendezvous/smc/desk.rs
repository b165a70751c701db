//! What a process keeps of a listener's queue ([`super::backlog`]), asked for by its forked children.
//!
//! A stand-in may be accepted by a child, which has the listener and not the connection: a copy of that in each child would keep it
//! from ending when the one that serves it closes. So the child asks for it by a pair of Unix sockets that was made before the fork: the number of the
//! stand-in, with a socket for the answer. The parent's service thread answers with the connection. A parent that has ended had it last.
//! A child that keeps something itself has a pair of its own for that, and its children have both.

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
/// Where those that it was forked from are asked: as many of them as kept something.
static ELDERS: [AtomicI32; 4] = [const { AtomicI32::new(-1) }; 4];

/// There is one from here on, if it can be made. Elders that are not `asked` for anything any more are left.
pub(super) fn open(asked: impl Fn(usize) -> bool) -> bool {
    ELDERS.iter().enumerate().filter(|(i, _)| !asked(*i)).for_each(|(_, elder)| close(elder));
    if HERE.load(Relaxed) >= 0 {
        return true;
    }
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
    if n == names.as_flattened().len()
        && got == 1
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
pub(super) fn ask(elder: usize, names: [u64; 2]) -> Option<(i32, u64)> {
    let there = ELDERS.get(elder).map(|elder| elder.load(Relaxed)).filter(|there| *there >= 0)?;
    let [own, other] = pair::messages().ok()?;
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
    places().map(|place| place.load(Relaxed)).filter(|fd| *fd >= 0).for_each(add);
}

/// One of them has another number now; false if it is none of these.
pub(super) fn moved(old: i32, new: i32) -> bool {
    places().any(|place| place.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
}

fn places() -> impl Iterator<Item = &'static AtomicI32> {
    [&HERE, &THERE].into_iter().chain(&ELDERS)
}

/// A forked child asks, where its parent `keeps` something itself, and answers nobody. Some: the parent is this elder.
pub(super) fn forget_in_child(keeps: bool) -> Option<usize> {
    close(&HERE);
    let free = ELDERS.iter().position(|elder| elder.load(Relaxed) < 0).filter(|_| keeps);
    match free {
        Some(elder) => ELDERS[elder].store(THERE.swap(-1, Relaxed), Relaxed),
        None => close(&THERE),
    }
    free
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
    fn who_asks_for_what_nobody_keeps_gets_an_answer_at_once_and_a_child_has_its_own_beside() {
        let all = |_: usize| true;
        assert!(open(all) && open(all));
        let parents = [&HERE, &THERE].map(|place| fd::another(place.load(Relaxed)).unwrap());
        let elder = forget_in_child(true).unwrap();
        // The parent goes on, in another thread.
        let asks = std::thread::spawn(move || ask(elder, [17, 18]));
        HERE.store(parents[0], Relaxed);
        let mut fds = [libc::pollfd { fd: descriptor(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(fd::poll(&mut fds, 10_000), Ok(1));
        answer();
        assert_eq!(asks.join().unwrap(), None);

        close(&HERE);
        assert!(open(all) && descriptor() >= 0, "what it keeps itself its own children ask for");
        assert_eq!(forget_in_child(true), Some(1), "and for what its parent keeps");
        fd::close(parents[1]);
        assert_eq!(ask(elder, [17, 18]), None, "which has gone");
        assert_eq!(forget_in_child(false), None);
        assert!(open(|elder| elder == 1) && ELDERS[0].load(Relaxed) < 0 && ELDERS[1].load(Relaxed) >= 0);
        assert!(open(|_| false) && ELDERS[1].load(Relaxed) < 0);
    }
}
