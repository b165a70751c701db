//! Connections that messages over Unix sockets take to other processes (SCM_RIGHTS): TCP from then on, but for one that has always
//! been there and whose peer is on this host. That goes on in the receiver (`rendezvous::legacy`). What is unread and can't be sent
//! again goes with it (`rendezvous::bequest`).
//!
//! Called by `interpose::rights` for each descriptor of such a message.

use super::life::{self, hand_over};
use super::{inherit, sock};
use crate::family::process;
use crate::family::sock::{Sock, aside};
use crate::rendezvous::{bequest, legacy, rest};
use crate::sys::{fd, net};
use crate::transport::idle;
use crate::{config, control, log};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::Relaxed;

/// Before `over` sends the descriptor.
pub fn before(sock_fd: i32, over: i32) {
    let Some(s) = sock(sock_fd) else { return };
    if !process::is_vfork_child() && legacy::leave_to_receiver(s, sock_fd, over) {
        log::debug!(target: "smcr::rendezvous", fd = sock_fd, over, "left to who receives it");
    } else if !hand_over(s, sock_fd, Reason::Passed) && rest::is_there(s) {
        if control::is_restricted() {
            return; // what it takes may not be permitted
        }
        if !process::is_vfork_child() {
            bequest::leave(s, sock_fd, over);
        }
        // Where the message may have to wait it may be for nothing: then afterwards.
        if fd::poll_now(over, libc::POLLOUT) == libc::POLLOUT {
            lose_rest(s, sock_fd);
        }
    }
}

/// The message was sent, or it was not.
pub fn after(sock_fd: i32, sent: bool) {
    match sock(sock_fd) {
        Some(s) if sent => {
            bequest::sent(s);
            lose_rest(s, sock_fd);
        }
        Some(s) => {
            legacy::take_back_message(s, sock_fd);
            bequest::take_back(s, sock_fd);
            s.aside.fetch_and(!aside::LATE, Relaxed);
        }
        None => {}
    }
}

fn lose_rest(s: &Sock, sock_fd: i32) {
    if rest::is_there(s) && !control::is_restricted() {
        rest::lose(s, sock_fd);
    }
}

/// `over` has received the descriptor; `stays`: so it will with the next message (MSG_PEEK).
pub fn received(sock_fd: i32, over: i32, stays: bool) {
    life::begin_anew(sock_fd);
    if control::is_restricted() {
        return;
    }
    let may_go_on = || !process::is_vfork_child() && super::has_room(sock_fd) && config::enabled();
    if let Some(left) = bequest::of(sock_fd) {
        let rest = if !stays && may_go_on() { bequest::take(left, sock_fd) } else { None };
        if !rest.is_some_and(|rest| inherit::take_bequest(rest, sock_fd)) {
            bequest::lose(sock_fd);
        }
        return;
    }
    if process::is_vfork_child() {
        return;
    }
    if stays {
        return legacy::not_received(sock_fd);
    }
    if !may_go_on() {
        return;
    }
    if let Some(legacy) = legacy::received(sock_fd, over)
        && let Ok(cookie) = net::cookie(sock_fd)
    {
        control::look();
        idle::look();
        let goes_on = inherit::go_on(sock_fd, cookie, &legacy);
        log::debug!(target: "smcr::rendezvous", fd = sock_fd, over, goes_on, "received");
    }
}
