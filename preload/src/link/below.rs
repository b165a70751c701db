//! The TCP connection below one that is over: it is ended as well, so that the kernel answers what a program asks of it then (getpeername and
//! shutdown say ENOTCONN, as of any connection that both ends have ended).
//!
//! Not before nothing is left to be done by it: after that there is no way back. Called by [`super::arrive`] whenever something has happened to
//! a connection, and by [`super::heard`] when it is over by force; by [`super::leave`] where TCP was ended by others.

use super::slot::Slot;
use crate::family::sock::flag;
use crate::layout::fin;
use crate::sys::net;
use smcr_proto::smc::conn::Conn;
use std::sync::atomic::Ordering::*;

impl Slot {
    /// Ends it, once.
    pub(super) fn end_tcp(&mut self) {
        // Acquire: what is said behind the peer's end (`super::heard`).
        let marks = self.rx_dir().fin.load(Acquire);
        if marks == 0 || self.tcp_told || !self.active || self.is_leaving() || !self.is_through(marks) {
            return;
        }
        self.tcp_told = true;
        self.tcp_ended = true;
        if let Some(sock) = self.program_fd() {
            let _ = net::shutdown(sock, libc::SHUT_RDWR);
        }
    }

    /// The program's descriptor of it: its number may be another's by now.
    pub(super) fn program_fd(&self) -> Option<i32> {
        let sock = self.sock()?.fd.load(Relaxed);
        (net::cookie(sock) == Ok(self.cookie)).then_some(sock)
    }

    /// Whether this host's administrator has ended it (`ss -K`), which the kernel tells once.
    pub(super) fn is_destroyed(&self) -> bool {
        let is_ended = |fd| net::get_opt(fd, libc::SOL_SOCKET, libc::SO_ERROR) == Ok(libc::ECONNABORTED);
        self.active && !self.is_leaving() && self.tcp.or_else(|| self.program_fd()).is_some_and(is_ended)
    }

    fn is_through(&self, marks: u32) -> bool {
        // Where TCP answers with a reset.
        let is_reset = marks & fin::RESET != 0 || marks & fin::CLOSED != 0 && self.sock().is_some_and(|s| s.has(flag::SWALLOWED));
        // The peer has ended TCP: it has read all that it wants.
        let ended = |conn: &Conn| conn.is_through() || self.tcp_ended && conn.has_ended();
        is_reset || self.in_flight == 0 && self.conn.as_ref().is_some_and(ended)
    }
}
