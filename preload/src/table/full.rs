//! A send that may not wait has found its ring full: the epoll sets that tell of room must know, whatever they were doing.
//!
//! A set waits for room only where it has seen that there is none. A member with EPOLLET keeps EPOLLOUT all the time and is not
//! looked at while it is cold, and a thread may have gone to sleep in the set while there was room. So each set takes the member in
//! again, and one in which a thread sleeps is woken for that; a thread that has slept since before the connection came to memory is so by
//! the kernel, which tells of room in TCP. Sets inside other sets, where the kernel alone is asked, hear of room in
//! TCP only, so there the direction goes. Called by `sending` for all that sends.

use super::member::{ET, Member, OF_ROOM, ONESHOT};
use super::members::Inner;
use super::set::Set;
use super::{homes, life, steps};
use crate::engine::{called, switch};
use crate::family::lock::Marker;
use crate::family::sock::Sock;
use crate::sys::{fd, thread::full_fence};
use crate::transport::changes;
use std::sync::atomic::Ordering::*;

/// The ring of `s` was found full by a call that returns now.
#[cold]
pub fn tell(s: &Sock, sock: i32) {
    if s.sets.load(Relaxed) != 0 && tell_sets(s) && !s.is_linked() {
        if called::await_request(s) {
            switch::attend(s, sock);
        }
        switch::spill(s, sock, switch::Spill::NoWaiter);
        homes::of(s).filter(|set| is_kernels(set)).for_each(|set| {
            with_member(set, s, Member::asks_for_room, |inner, m| arm_again(set, inner, m));
        });
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
    // Pairs with the fence in `Waiter::fall_asleep` and in `ready::sleep::lie_down`: either we see who sleeps, or it sees the change behind that.
    full_fence();
    let mut is_unheard = false;
    for set in homes::of(s) {
        let is_asleep = set.sleepers.load(Relaxed) > 0;
        if !is_kernels(set) && !is_asleep && set.alone.load(Relaxed) == 0 {
            continue;
        }
        with_member(set, s, Member::asks_for_room, |inner, m| {
            if is_kernels(set) {
                is_unheard = true;
            } else if inner.member(m).events & ET != 0 {
                if is_asleep { set.ring() } else { arm_again(set, inner, m) }
            }
        });
    }
    is_unheard
}

/// Whether nobody looks at the members of the set but the kernel.
fn is_kernels(set: &Set) -> bool {
    set.nested.load(Relaxed) != 0
}

/// Does something with the member that the socket is of this set, if it is one of those.
pub(super) fn with_member(set: &'static Set, s: &Sock, those: impl Fn(&Member) -> bool, act: impl FnOnce(&mut Inner, u32)) {
    let marker = Marker::new();
    let Ok(locked) = set.lock(&marker) else { return }; // below this handler, which looks again
    let inner = &mut *locked.inner;
    let is_it = |inner: &Inner, m: &u32| {
        let mb = inner.member(*m);
        those(mb) && !mb.ghost && !mb.spent && super::sock(mb.fd).is_some_and(|t| std::ptr::eq(t, s))
    };
    let by_number = inner.by_fd.one(s.fd.load(Relaxed) as u64).filter(|m| is_it(inner, m));
    // The usual number may be that of another process, or be gone.
    let is_elsewhere = || life::has_twins(s) || !steps::is_there(s, s.fd.load(Relaxed));
    let found = by_number.or_else(|| (0..inner.used()).filter(|_| is_elsewhere()).find(|m| is_it(inner, m)));
    if let Some(m) = found {
        act(inner, m);
    }
}

/// The kernel has told of room in TCP once, when nobody wanted it; of a member in memory it was not asked.
fn arm_again(set: &'static Set, inner: &mut Inner, m: u32) {
    let mb = inner.member_mut(m);
    if mb.events & (ET | ONESHOT) == ET
        && let Some(epfd) = set.number()
    {
        mb.kernel |= mb.events & OF_ROOM;
        let e = libc::epoll_event { events: mb.kernel, u64: mb.data };
        let _ = fd::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, mb.fd, Some(e));
    }
}
