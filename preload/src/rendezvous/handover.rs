//! The way back when a descriptor leaves: exec, posix_spawn, a passed descriptor, drain.
//!
//! What we have not sent we move ourselves; what we have not read only the peer can send again, so
//! this waits for it, at most [`PATIENCE_MS`], and says so when it did not come.

use super::{rest, way_out};
use crate::engine::patience::Patience;
use crate::engine::{bell, debt, follow, heirs, here, kernel, linked, own_end, resets, switch, take_up};
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, aside, flag};
use crate::log;
use crate::sys::{clock, fd};
use crate::transport::region::{Dir, ctl, fin};
use smcr_proto::page::Counter;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// How long the peer may take to send again what we have not read.
pub const PATIENCE_MS: u64 = 2000;
/// The same, where another user's was waited for in vain before ([`Patience`]): one that runs comes in time.
const MOMENT_NS: u64 = 20_000_000;

/// Moves both directions to TCP and keeps them there; true when it is done.
pub fn hand_over(s: &'static Sock, sock: i32, why: Reason) -> bool {
    let patience = Patience::with_others(s, PATIENCE_MS * 1_000_000, MOMENT_NS);
    let marker = Marker::new();
    let Some(_alone) = way_out::claim(s, &marker, patience.until()) else {
        told_late(s, sock, true);
        return false;
    };
    leave(s, sock, why, false, patience)
}

/// As [`hand_over`] for a program that goes on: what its peer does not send again it reads from where that lies.
pub fn go_home(s: &'static Sock, sock: i32, why: Reason) {
    let patience = Patience::with_others(s, PATIENCE_MS * 1_000_000, MOMENT_NS);
    let marker = Marker::new();
    let Some(_alone) = way_out::claim(s, &marker, patience.until()) else { return switch::pin(s, sock, why) };
    if leave(s, sock, why, true, patience) || s.is_linked() {
        return;
    }
    switch::pin(s, sock, why);
    if s.rx.dir().is_some_and(|dir| follow::take_back_request(s, dir)) {
        here::begin(s);
    }
}

/// `stays`: as for [`go_home`].
fn leave(s: &'static Sock, sock: i32, why: Reason, stays: bool, patience: Patience) -> bool {
    if s.is_linked() && linked::has_nothing_left(s) {
        s.note(why);
        return true;
    }
    if s.is_linked() && !super::smc::may_return(s) {
        return super::smc::hand_over(s, sock, why);
    }
    if has_rest_of_link(s) || heirs::is_any(s) {
        debt::settle(s, sock);
        return leave_rest(s, sock, why, stays);
    }
    let until = patience.until();
    if linked::has_closed(s) && ends(sock, until) {
        return leave_rest(s, sock, why, stays);
    }
    let unread = s.rx.dir().filter(|_| s.is_linked()).map_or(0, |dir| follow::in_ring(s, dir));
    loop {
        if !take_up::take_up(s, sock, why, until) {
            if has_ended(s) {
                return leave_rest(s, sock, why, stays);
            }
            patience.was_in_vain();
            let is_stranded = is_stranded(s);
            told_late(s, sock, stays || is_stranded);
            return is_stranded && leave_rest(s, sock, why, stays);
        }
        if !ask_back(s, sock, why) {
            debt::settle(s, sock);
            return true;
        }
        let back = wait_for(s, sock, until);
        if back == Back::Done {
            await_again(sock, unread, until);
            return true;
        }
        if !s.is_linked() && has_ended(s) {
            return leave_rest(s, sock, why, stays);
        }
        // The peer's own way back and our request have crossed: what that has left in the ring is taken up as well.
        if back == Back::NotYet || s.is_linked() || clock::now_ns() > until {
            patience.was_in_vain();
            return too_late(s, sock, why, stays);
        }
    }
}

/// What lies unread and can't be sent again comes to a next program by `rest` alone. False.
fn leave_rest(s: &Sock, sock: i32, why: Reason, stays: bool) -> bool {
    switch::pin(s, sock, why);
    let is_read = stays && !s.is_linked() && !has_rest_of_link(s);
    let is_left = matches!(why, Reason::Exec | Reason::Passed); // or lost, by who calls
    if !is_left && !is_read {
        rest::lose_taken(s, sock);
    }
    false
}

/// Whether TCP ends below a connection whose peer has closed: that needs no link for it any more.
fn ends(sock: i32, until: u64) -> bool {
    let mut end = [libc::pollfd { fd: sock, events: libc::POLLRDHUP, revents: 0 }];
    let left = until.saturating_sub(clock::now_ns()) / 1_000_000;
    fd::poll(&mut end, left as i32) == Ok(1) && end[0].revents & libc::POLLERR == 0
}

/// What was readable is to be so in the next call as well: over a link it comes again behind the peer's answer.
fn await_again(sock: i32, unread: u64, until: u64) {
    const ENOUGH: u64 = 4096;
    while fd::unread(sock).is_ok_and(|n| (n as u64) < unread.min(ENOUGH)) && clock::now_ns() < until {
        let mut end = [libc::pollfd { fd: sock, events: libc::POLLRDHUP, revents: 0 }];
        if fd::poll(&mut end, 1) != Ok(0) {
            return;
        }
    }
}

/// Waits for the peer.
pub fn wait_for(s: &'static Sock, sock: i32, until: u64) -> Back {
    loop {
        let back = follow_back(s, sock);
        if back != Back::NotYet || clock::now_ns() > until {
            return back;
        }
        own_end::answer(s);
        bell::call_peer(s, sock);
        let _ = fd::poll(&mut [libc::pollfd { fd: sock, events: libc::POLLRDHUP, revents: 0 }], 1);
    }
}

/// Whether the peer has said its last word: it sends nothing again.
pub fn has_ended(s: &Sock) -> bool {
    s.rx.end.load(Relaxed) != 0 || s.rx.dir().is_some_and(|dir| dir.fin.load(Acquire) & fin::WRITE != 0)
}

/// Whether what was taken up lies before all that comes through TCP, of a peer that was called for it, has not come, and can't any more
/// (`offer::close_door`): who has the connection next finds it as behind a last word.
pub fn is_stranded(s: &Sock) -> bool {
    let is_on_tcp = |d: &Dir| !follow::is_marked(s, d) && d.ctl.load(Acquire) & (ctl::READY | ctl::MARKING) == 0;
    !s.is_linked() && !s.rx_in_memory() && here::is_taken(s) && !here::is_begun(s) && s.rx.dir().is_some_and(is_on_tcp)
}

/// As [`late`]; a connection over a link does not survive an exec then.
fn too_late(s: &'static Sock, sock: i32, why: Reason, stays: bool) -> bool {
    told_late(s, sock, stays);
    // Who has it next is sent what lies unread when the peer goes on, so its close here is no reset.
    if !stays && !s.is_linked() && matches!(why, Reason::Exec | Reason::Passed) {
        s.aside.fetch_or(aside::LATE, Relaxed);
    }
    s.is_linked() && super::smc::hand_over(s, sock, why)
}

/// Whether bytes lie unread that came by a link which the connection has left: the peer sends them no more.
pub fn has_rest_of_link(s: &Sock) -> bool {
    !s.is_linked() && s.region().is_some() && s.region_of_peers().is_none() && s.rx_in_memory()
}

/// Notes that the peer did not come. What was taken up and not asked for is lost.
fn late(s: &Sock, sock: i32) {
    told_late(s, sock, false);
}

/// As [`late`], or `stays` and reads it ([`go_home`]), or leaves it to who does ([`is_stranded`]).
pub fn told_late(s: &Sock, sock: i32, stays: bool) {
    process::count(Counter::HandoverTimeouts, 1);
    log::warn!(target: "smcr::switch", fd = sock, pid = s.peer_pid.load(Relaxed),
        "the peer did not return its direction in time");
    if !stays && s.rx.dir().is_some_and(|dir| is_cut_off(s, dir)) {
        resets::reset_at_once(s, sock); // an orderly end would hide it
    }
}

/// As [`ask_back`] for a process that goes on without the library's memory of the connection: what the peer has marked, or is about
/// to mark, is followed first, until `until`.
pub fn take_up_and_ask(s: &'static Sock, sock: i32, why: Reason, until: u64) -> bool {
    let marker = Marker::new();
    let Some(_alone) = way_out::claim(s, &marker, until) else { return false };
    if heirs::is_any(s) {
        switch::pin(s, sock, why); // all of it is read where it lies
        return false;
    }
    if !take_up::take_up(s, sock, why, until) {
        late(s, sock);
        return false;
    }
    ask_back(s, sock, why)
}

/// Whether a program without the library's memory would read on behind what that holds: what was taken up, or a switch that the peer has
/// marked and that was not followed, where the peer is not asked to send that again.
fn is_cut_off(s: &Sock, dir: &Dir) -> bool {
    !follow::has_asked(dir) && (dir.annex.load(Relaxed) != 0 || !s.is_linked() && follow::is_marked(s, dir))
}

/// As [`take_up_and_ask`], where the request was crossed ([`Back::Left`]). False as well: what it was for is lost.
pub fn ask_once_more(s: &'static Sock, sock: i32, why: Reason, until: u64) -> bool {
    if has_ended(s) {
        rest::lose_taken(s, sock);
        return false;
    }
    !s.is_linked() && take_up_and_ask(s, sock, why, until)
}

/// Moves what we send to TCP, for good, and asks the peer for the same, unless another thread gives it away just now. False: nothing is
/// left to wait for.
pub fn ask_alone(s: &'static Sock, sock: i32, why: Reason) -> bool {
    let marker = Marker::new();
    way_out::claim(s, &marker, 0).is_some_and(|_alone| ask_back(s, sock, why))
}

/// As [`ask_alone`], by who gives it away.
pub fn ask_back(s: &'static Sock, sock: i32, why: Reason) -> bool {
    if s.is_linked() && !s.can_return() {
        return false; // a kernel has no way back
    }
    let Some(dir) = s.rx.dir() else {
        switch::pin(s, sock, why);
        return false;
    };
    if !s.rx_in_memory() && !s.tx_in_memory() {
        switch::pin(s, sock, why);
        return false;
    }
    // The peer sends again what lies in the annex, from its beginning on.
    if here::again(s, dir).is_none() {
        return false;
    }
    process::count(Counter::Handovers, 1);
    if !follow::freeze(s, dir, ctl::RETURN | ctl::PINNED) {
        return false;
    }
    bell::call_peer(s, sock); // while doorbells may still be sent
    switch::pin(s, sock, why);
    true
}

/// How far the peer's direction has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// It is on TCP.
    Done,
    /// The peer is still to act.
    NotYet,
    /// Our request was crossed: what is left in the ring, and what was taken up, is read here, asked for once more, or lost.
    Left,
}

/// After [`ask_back`]: follows the peer, and does what it asks of us, for it may want the same.
pub fn follow_back(s: &'static Sock, sock: i32) -> Back {
    if follow::is_asked(s) {
        switch::attend(s, sock);
    }
    if !debt::pay(s, sock) {
        return Back::NotYet; // the next program must not get in between
    }
    if s.rx_in_memory() {
        follow::progress(s, sock);
    }
    let Some(dir) = s.rx.dir() else { return Back::Done };
    {
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.try_take(&marker) {
            kernel::look_at_kernel(s, sock, dir);
        }
    }
    if !s.rx_in_memory() {
        // One that has gone to TCP by itself, and did not see our request, does not send again what was taken up.
        return if here::is_taken(s) { Back::Left } else { Back::Done };
    }
    // The peer's own way back and our request have crossed (`engine::follow`).
    let crossed = !s.has(flag::FROZEN);
    // Of one that has ended the ring is ours to read. Over a link one that has said its last word is not through with TCP.
    if crossed || (!s.is_linked() && has_ended(s) && follow::take_back_request(s, dir)) { Back::Left } else { Back::NotYet }
}

/// The peer did not come: what the ring holds is read from there, and the peer moves when it goes on. So is what was taken up, if the
/// library `stays` with the connection.
pub fn read_on(s: &'static Sock, sock: i32, stays: bool) {
    let marker = Marker::new();
    let Some(_alone) = way_out::claim(s, &marker, 0) else { return }; // who gives it away asks for the same
    told_late(s, sock, stays);
    if s.rx.dir().is_some_and(|dir| follow::take_back_request(s, dir)) && stays {
        here::begin(s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family;
    use crate::transport::region::Dir;

    #[test]
    fn what_was_taken_up_has_not_come_with_a_peer_that_has_not_heard() {
        let s = family::take_sock().expect("a record");
        // SAFETY: all zero is a fresh direction.
        let dir: Dir = unsafe { std::mem::zeroed() };
        s.rx.dir.store(std::ptr::from_ref(&dir).cast_mut(), Relaxed);
        assert_eq!(follow_back(s, -1), Back::Done);
        dir.annex.store(5, Relaxed);
        s.rx.gate.store(1, Relaxed);
        assert_eq!(follow_back(s, -1), Back::Left);
        s.rx.dir.store(std::ptr::null_mut(), Relaxed);
        s.rx.gate.store(0, Relaxed);
    }
}
