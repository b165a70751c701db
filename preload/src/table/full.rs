//! A send that may not wait has found its ring full: the epoll sets that tell of room must know, whatever they were doing.
//!
//! A set waits for room only where it has seen that there is none. A member with EPOLLET keeps EPOLLOUT all the time and is not
//! looked at while it is cold, and a thread may have gone to sleep in the set while there was room. So each set takes the member in
//! again, and one in which a thread sleeps is woken for that. Sets inside other sets, where the kernel alone is asked, hear of room in
//! TCP only, so there the direction goes. Called by `sending` for all that sends.

use super::life;
use super::members::Member;
use super::set::{self, Set};
use crate::engine::switch;
use crate::family::lock::Marker;
use crate::family::sock::Sock;
use crate::sys::{fd, thread::full_fence};
use crate::transport::changes;
use std::sync::atomic::Ordering::*;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// The ring of `s` was found full by a call that returns now.
#[cold]
pub fn tell(s: &Sock, sock: i32) {
    if s.sets.load(Relaxed) != 0 && tell_sets(s) && !s.is_linked() {
        switch::spill(s, sock, switch::Spill::NoWaiter);
        set::all().filter(|set| set.refs() > 0 && is_kernels(set)).for_each(|set| arm_again(set, s));
    }
}

/// Our own shutdown of sending is an edge for who waits for room (`sk_state_change` in inet_shutdown).
pub fn after_shutdown(s: &Sock) {
    s.tx.looked.fetch_add(1, Relaxed);
    if s.sets.load(Relaxed) != 0 {
        tell_sets(s);
    }
}

/// True: a set does not hear of it, for the kernel alone looks at its members.
fn tell_sets(s: &Sock) -> bool {
    changes::note(s);
    // Pairs with the fence in `Waiter::fall_asleep`: either we see who sleeps, or it sees the change behind that (`ready::sleep`).
    full_fence();
    let mut is_unheard = false;
    for set in set::all().filter(|set| set.refs() > 0) {
        if is_kernels(set) {
            is_unheard |= member(set, s).is_some();
        } else if set.sleepers.load(Relaxed) > 0
            && member(set, s).is_some_and(|mb| mb.events & ET != 0)
            && let Some(w) = set.waiter()
        {
            w.ring();
        }
    }
    is_unheard
}

/// Whether nobody looks at the members of the set but the kernel.
fn is_kernels(set: &Set) -> bool {
    set.nested.load(Relaxed) != 0
}

/// The member that the socket is of this set, if it is there for EPOLLOUT.
fn member(set: &'static Set, s: &Sock) -> Option<Member> {
    let marker = Marker::new();
    let locked = set.lock(&marker).ok()?; // else below this handler, which looks again
    let inner = &*locked.inner;
    let is_it = |mb: &Member| {
        mb.asks_for_room() && !mb.ghost && !mb.spent && super::sock(mb.fd).is_some_and(|t| std::ptr::eq(t, s))
    };
    let by_number = inner.by_fd.one(s.fd.load(Relaxed) as u64).map(|m| *inner.member(m));
    by_number.filter(is_it).or_else(|| {
        let mut all = (0..inner.used()).filter(|_| life::has_twins(s)).map(|m| *inner.member(m));
        all.find(is_it)
    })
}

/// The kernel has told of room in TCP once, when nobody wanted it.
fn arm_again(set: &'static Set, s: &Sock) {
    if let Some(mb) = member(set, s).filter(|mb| mb.events & (ET | ONESHOT) == ET)
        && let Some(epfd) = set.number()
    {
        let e = libc::epoll_event { events: mb.kernel, u64: mb.data };
        let _ = fd::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, mb.fd, Some(e));
    }
}
