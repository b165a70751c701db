//! The kernel's poll or select, until a connection is served in memory: another thread may bring it there meanwhile.
//!
//! Called by `poll` and `select` first.

use super::poll::concerns;
use super::{level, readers};
use crate::engine::handlers::Since;
use crate::family::sock::{Sock, flag};
use crate::sys::{Errno, clock};
use crate::table;
use libc::{pollfd, timespec};
use std::sync::atomic::{Ordering::*, fence};

/// How often a thread that waits for a connection that is being made looks whether it has come to a link.
const LOOK_NS: u64 = 5_000_000;

/// While nothing is served here: the kernel's `wait`. Another thread may bring a connection into memory meanwhile: it finds this one
/// counted, so that what comes calls it by the doorbell byte. Err: one is served, and what is left of the time.
pub(super) fn by_kernel(
    fds: &mut [pollfd],
    timeout: Option<u64>,
    since: Since,
    wait: impl Fn(&mut [pollfd], *const timespec) -> i32,
) -> Result<i32, Option<u64>> {
    if is_any_served(fds) {
        return Err(timeout);
    }
    let wait = |fds: &mut [pollfd], ns: Option<u64>| {
        let ts = ns.map(clock::timespec);
        wait(fds, ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref))
    };
    if timeout == Some(0) {
        return Ok(wait(fds, timeout));
    }
    let deadline = timeout.map(|t| clock::now_ns().saturating_add(t));
    let mut left = timeout;
    loop {
        let short = look_again(fds);
        let now = [left, short].into_iter().flatten().min();
        let waited = readers::counted(fds, |fds, _| {
            // Pairs with `offer::become_careful`: who counts the readers behind that finds this one, or it is seen here.
            fence(SeqCst);
            (!is_any_served(fds)).then(|| wait(fds, now))
        });
        let Ok(waited) = waited else { return Ok(wait(fds, left)) }; // no memory for the counts
        left = deadline.map(|d| d.saturating_sub(clock::now_ns()));
        match waited {
            Some(r) if r < 0 => return Ok(r),
            _ if is_any_served(fds) => return Err(left),
            Some(r) if r > 0 || short.is_none() || left == Some(0) => return Ok(r),
            _ => {}
        }
        if since.has_one_run() {
            crate::sys::set_errno(Errno(libc::EINTR));
            return Ok(-1); // between two waits
        }
        concerns(fds, true);
    }
}

/// How long to wait at most where one may come to a link meanwhile, over which no byte calls: that begins when the connection is made, or not at all.
pub(super) fn look_again(fds: &[pollfd]) -> Option<u64> {
    let may = |s: &Sock| s.has(flag::UNASKED) && level::may_be_served(s);
    fds.iter().any(|p| table::sock(p.fd).is_some_and(may)).then_some(LOOK_NS)
}

fn is_any_served(fds: &[pollfd]) -> bool {
    fds.iter().any(|p| table::sock(p.fd).is_some_and(level::is_served))
}
