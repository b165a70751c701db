//! Files that are none of ours, were members of a set and were closed, of which no hook tells: they stay known by their data word.
//!
//! Where a connection is to be told once under that word, an event of it could be of either, and the set would not know that it was told
//! ([`super::keep`]). So the kernel is asked whether it still has those; a duplicate may keep one there. Called by [`super::ctl`].

use crate::control;
use crate::sys::epoll_list;
use crate::table;
use crate::table::index::Walk;
use crate::table::member::ONESHOT;
use crate::table::members::Inner;

/// Member `m` has new interest.
pub fn forget_closed(epfd: i32, inner: &mut Inner, m: u32) {
    let mb = *inner.member(m);
    if mb.events & ONESHOT == 0 || table::sock(mb.fd).is_none() || control::is_restricted() {
        return;
    }
    let mut walk = Walk::default();
    while let Some(other) = inner.by_data.next(mb.data, &mut walk) {
        let stray = *inner.member(other);
        let may_be = other != m && !stray.ours && !stray.ghost && !stray.orphan && table::get(stray.fd).is_none();
        if may_be && epoll_list::has(epfd, stray.fd, stray.data) == Some(false) {
            inner.drop_member(other);
            walk = Walk::default(); // the index has moved up
        }
    }
}
