//! The kernel's epoll sets are again what the program has made of them: where the library withdraws from a process (`table::confine`), and
//! before exec, for the next program has those that are not closed by that.
//!
//! Of its own the library has registered a waiter's eventfd and ears, the channel of links and smcrctl's bell. These are closed by an exec, and
//! leave no set by that: peers have most of them too, and the kernel reports a file for as long as anybody has it open. Called when no
//! connection is in memory any more, before the sets are forgotten; and by the hooks of exec.

use super::ctl::register_anew;
use super::wait::refresh_all;
use super::{prepare, stand_in};
use crate::control::wake;
use crate::engine::linked;
use crate::family::lock::Marker;
use crate::family::process;
use crate::sys::fd as desc;
use crate::table::members::Inner;
use crate::table::passing::survives_exec;
use crate::table::set::Set;
use crate::table::{self, Entry};
use crate::transport::peers;
use libc::EPOLL_CTL_DEL;
use std::sync::atomic::Ordering::*;

/// Gives every set back.
pub fn give_back() {
    for (epfd, set) in sets() {
        restore(epfd, set);
    }
}

fn sets() -> impl Iterator<Item = (i32, &'static Set)> {
    table::range(0, u32::MAX).filter_map(|(epfd, e)| match e {
        Entry::Set(set) => Some((epfd, set)),
        Entry::Sock(_) | Entry::Ring(_) => None,
    })
}

fn restore(epfd: i32, set: &'static Set) {
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    refresh_all(epfd, set, l.inner);
    // The waiter's eventfd and ears go with the waiter.
    take_own_out(epfd, set, l.inner);
}

/// The channel of links, smcrctl's bell, and what stands in for bytes in memory.
fn take_own_out(epfd: i32, set: &Set, inner: &Inner) {
    stand_in::leave(epfd, set);
    let channel = Some(inner.channel).filter(|fd| linked::is_channel(*fd));
    for fd in [wake::descriptor(), channel.unwrap_or(-1)] {
        if fd >= 0 {
            let _ = desc::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, None);
        }
    }
}

/// Does it, under the lock, to each set that the next program has and that this process waits in. Of one that was inherited through fork the
/// kernel's set is a relative's.
fn each_that_goes_on(f: impl Fn(i32, &'static Set, &mut Inner)) {
    if process::is_vfork_child() {
        return;
    }
    let is_own = |set: &Set| set.user.load(Relaxed) == process::index();
    for (epfd, set) in sets().filter(|(epfd, set)| is_own(set) && survives_exec(*epfd)) {
        let marker = Marker::new();
        let Ok(l) = set.lock(&marker) else { continue };
        refresh_all(epfd, set, l.inner);
        f(epfd, set, l.inner);
    }
}

/// Before exec, behind what that does to connections. One that it closes may be a relative's too, and be reported on.
pub fn before_exec() {
    each_that_goes_on(|epfd, set, inner| {
        for m in 0..inner.used() {
            give_member_back(epfd, set, inner, m);
        }
        if let Some(w) = set.waiter() {
            let _ = w.with_eventfd(|held| desc::epoll_ctl(epfd, EPOLL_CTL_DEL, held.fd(), None));
            for (_, ear) in peers::ears_of(w) {
                let _ = desc::epoll_ctl(epfd, EPOLL_CTL_DEL, ear.fd(), None);
            }
        }
        take_own_out(epfd, set, inner);
    });
}

/// The kernel's registration of a member that is in memory still, or was until the program has removed it.
fn give_member_back(epfd: i32, set: &Set, inner: &mut Inner, m: u32) {
    let mb = *inner.member(m);
    if mb.fd < 0 || mb.orphan || !mb.ours && !mb.ghost {
        return;
    }
    let word = inner.own_word(m);
    if mb.ghost {
        let _ = desc::epoll_ctl(epfd, EPOLL_CTL_DEL, mb.fd, None);
        inner.drop_member(m);
    } else {
        register_anew(epfd, inner, m, true);
    }
    set.bury(inner, word);
}

/// exec failed: sets are waited in again, perhaps by threads that sleep there since before.
pub fn exec_failed() {
    each_that_goes_on(|epfd, set, inner| {
        prepare::rejoin(epfd, set, inner);
        set.ours.store(inner.ours, Release);
    });
}
