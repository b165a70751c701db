//! Connections that messages over Unix sockets take to other processes (SCM_RIGHTS): TCP from then on, but for one that has always
//! been there and whose peer is on this host. That goes on in the receiver (`rendezvous::legacy`).
//!
//! Called by `interpose::rights` for each descriptor of such a message.

use super::life::{self, hand_over};
use super::{inherit, sock};
use crate::family::process;
use crate::rendezvous::legacy;
use crate::sys::net;
use crate::transport::idle;
use crate::{config, control, log};
use smcr_proto::reason::Reason;

/// Before `over` sends the descriptor.
pub fn before(sock_fd: i32, over: i32) {
    let Some(s) = sock(sock_fd) else { return };
    if !process::is_vfork_child() && legacy::leave_to_receiver(s, sock_fd, over) {
        log::debug!(target: "smcr::rendezvous", fd = sock_fd, over, "left to who receives it");
    } else {
        hand_over(s, sock_fd, Reason::Passed);
    }
}

/// The message was not sent.
pub fn not_sent(sock_fd: i32) {
    if let Some(s) = sock(sock_fd) {
        legacy::take_back_message(s, sock_fd);
    }
}

/// `over` has received the descriptor; `stays`: so it will with the next message (MSG_PEEK).
pub fn received(sock_fd: i32, over: i32, stays: bool) {
    life::begin_anew(sock_fd);
    if control::is_restricted() || process::is_vfork_child() {
        return;
    }
    if stays {
        return legacy::not_received(sock_fd);
    }
    if !super::has_room(sock_fd) || !config::enabled() {
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
