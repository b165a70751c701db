//! The library withdraws from a process (`table::confine`): the kernel's epoll sets are again what the program has made of them.
//!
//! Called when no connection is in memory any more, and before the sets are forgotten.

use super::wait::refresh_all;
use crate::control::wake;
use crate::engine::linked;
use crate::family::lock::Marker;
use crate::sys::fd as desc;
use crate::table::set::Set;
use crate::table::{self, Entry};
use libc::EPOLL_CTL_DEL;

/// Gives every set back.
pub fn give_back() {
    for (epfd, e) in table::range(0, u32::MAX) {
        if let Entry::Set(set) = e {
            restore(epfd, set);
        }
    }
}

fn restore(epfd: i32, set: &'static Set) {
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    refresh_all(epfd, set, l.inner);
    // The waiter's eventfd and ears go with the waiter.
    let channel = Some(l.inner.channel).filter(|fd| linked::is_channel(*fd));
    for fd in [wake::descriptor(), channel.unwrap_or(-1)] {
        if fd >= 0 {
            let _ = desc::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, None);
        }
    }
}
