//! Waiting for a pipe, as the kernel's splice does: with its restarts, and as a point where a thread may be cancelled.
//!
//! Called by `table::files` and by the interposition of splice.

use super::handlers::Since;
use super::signals;
use crate::real;
use crate::sys::{Errno, Res, errno};

/// Waits for events of the pipe; what came.
pub fn wait(pipe: i32, events: i16) -> Res<i16> {
    let mut fds = [libc::pollfd { fd: pipe, events, revents: 0 }];
    loop {
        let (interrupt, since) = (signals::interrupt(), Since::now());
        // SAFETY: the array lives through the call; no limit, no mask.
        let n = unsafe { real::ppoll(fds.as_mut_ptr(), 1, std::ptr::null(), std::ptr::null()) };
        match errno() {
            _ if n >= 0 => return Ok(fds[0].revents),
            Errno(libc::EINTR) if signals::restarts(interrupt, since) => {}
            e => return Err(e),
        }
    }
}
