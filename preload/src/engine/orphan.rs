//! Connections over the link of another process that has been killed: they are reset, at both ends.
//!
//! A forked child has the rings of its parent's connections, and the parent has the link. One that ends by itself leaves them to the child, or resets them
//! (`link::leave`); of one that is killed nobody says anything: nothing comes by its rings any more, and what TCP shows below is not looked at. So who sleeps
//! for such a connection asks now and then whether its owner lives: [`super::linked::longest_sleep`] for one, `table::forks` for a set of them.

use super::end;
use super::linked::is_pending;
use crate::family::process;
use crate::family::sock::Sock;
use crate::layout::fin;
use crate::log;
use crate::sys::{clock, net, proc};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// How often a process asks.
const LOOK_NS: u64 = 50_000_000;
/// When it does next.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Whether it is time to ask, which is then the caller's to do.
pub fn is_due() -> bool {
    let (now, next) = (clock::now_ns(), NEXT.load(Relaxed));
    now >= next && NEXT.compare_exchange(next, now + LOOK_NS, Relaxed, Relaxed).is_ok()
}

/// Resets the connection if its link is another process's that is gone. A handshake that is on its way has an heir (`rendezvous::smc::heir`).
pub fn look(s: &Sock) {
    let owner = || s.region().filter(|_| s.is_linked() && !is_pending(s)).map(|page| page.server.load(Relaxed));
    let Some(pid) = owner().filter(|pid| *pid != process::pid()) else { return };
    // Before its end it may have taken the connection off its link.
    if !proc::is_gone(pid) || owner() != Some(pid) {
        return;
    }
    let Some(back) = s.rx.dir() else { return };
    if back.fin.load(Relaxed) & fin::CLOSED != 0 {
        return; // it had ended before
    }
    log::warn!(target: "smcr::link", pid, "the process with the link is gone; the connection is reset");
    s.rx.end.store(end::FIN, Relaxed);
    back.fin.fetch_or(fin::WRITE | fin::CLOSED | fin::RESET, Release); // pairs with the Acquire in `linked::answer_send`
    let sock = s.fd.load(Relaxed);
    if net::cookie(sock) == Ok(s.cookie.load(Relaxed)) {
        let _ = net::disconnect(sock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::linked;
    use crate::family::sock::{flag, step};
    use crate::layout::RegionHeader;
    use crate::link::rig;
    use std::process::Command;

    #[test]
    fn who_uses_the_link_of_a_process_that_is_gone_is_told() {
        crate::family::open().unwrap();
        // SAFETY: atomics, for which all zero is a value.
        let page: &'static RegionHeader = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let (s, back) = (rig::record(), &page.dirs[1]);
        s.region.store(std::ptr::from_ref(page).cast_mut(), Relaxed);
        s.rx.dir.store(std::ptr::from_ref(back).cast_mut(), Relaxed);
        s.flags.store(flag::LINKED, Relaxed);
        s.step.store(step::PROVED, Relaxed);
        s.fd.store(-1, Relaxed);
        let mut gone = Command::new("true").spawn().unwrap();
        let pid = gone.id();
        gone.wait().unwrap();
        let marks = |owner| {
            page.server.store(owner, Relaxed);
            NEXT.store(0, Relaxed);
            linked::longest_sleep(s, None);
            back.fin.load(Relaxed)
        };
        assert_eq!((marks(process::pid()), marks(1)), (0, 0), "its own, and another one's that lives");
        assert_eq!(marks(pid), fin::WRITE | fin::CLOSED | fin::RESET);
    }
}
