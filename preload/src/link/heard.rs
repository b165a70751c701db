//! What a connection hears of its peer, and how the program is shown that: cursors, the end, a reset, the end of its group.
//!
//! The receiving half of [`Slot`], under the lock of all links. Called by [`super::failover`] for each message, by [`super::arrive`]
//! for groups that are over, by [`super::leave`] where a connection does not come back.

use super::slot::Slot;
use super::wake;
use crate::family::sock::flag;
use crate::layout::fin;
use smcr_proto::smc::cdc::Cdc;
use smcr_proto::smc::conn::{Conn, ConnError, Update, Violation};
use smcr_proto::smc::id::Rkey;
use smcr_proto::smc::immediate::Immediate;
use std::sync::atomic::Ordering::*;

/// Value of `Sock::rx.end` for an end that the link has found: see `engine::end::FIN`.
const ENDED: u32 = 1;

impl Slot {
    /// A CDC message for this connection came. Bytes that it brought.
    pub fn handle_cdc(&mut self, cdc: &Cdc) -> Result<u32, Violation> {
        self.handle(|conn| conn.handle_cdc(cdc))
    }

    /// The same for a write that announces itself.
    pub fn handle_immediate(&mut self, len: u32, immediate: Immediate) -> Result<u32, Violation> {
        self.handle(|conn| conn.handle_immediate(len, immediate))
    }

    fn handle(&mut self, take: impl FnOnce(&mut Conn) -> Result<Update, Violation>) -> Result<u32, Violation> {
        let Some(conn) = &mut self.conn else { return Ok(0) };
        let update = take(conn)?;
        let (received, (sent, read)) = (conn.received_bytes().0, conn.sent_bytes());
        self.answered |= update.received > 0 || sent == read;
        // What the peer turns out to have read is not sent again.
        self.pumped = self.pumped.max(sent);
        let (out, back, shows) = (self.tx_dir(), self.rx_dir(), self.shows());
        if update.received > 0 && shows {
            if update.urgent.is_some() {
                self.note_urgent(received);
            }
            // Release: the bytes are there; pairs with the Acquire in `engine::rx::follow`.
            back.head.store(received, Release);
            if update.urgent.is_some() {
                self.pass_urgent();
            }
        }
        if update.freed > 0 && shows {
            // Release: pairs with the Acquire in `engine::tx::look_at_tail`.
            // What has been written may be free already.
            out.tail.store(read.max(out.tail.load(Relaxed)), Release);
        }
        if update.closing && shows {
            self.note_end();
        }
        if update.received > 0 || update.closing {
            wake::reader(back, self.sock());
        }
        if update.freed > 0 || update.closing {
            wake::writer(out);
        }
        Ok(update.received)
    }

    /// Shows the program all that has come.
    pub(super) fn show_all(&mut self) {
        let Some(conn) = &self.conn else { return };
        let out = self.tx_dir();
        out.tail.store(conn.sent_bytes().1.max(out.tail.load(Relaxed)), Release); // as in `handle`
        self.rx_dir().head.store(conn.received_bytes().0, Release); // as in `handle_cdc`
        if conn.is_eof() {
            self.note_end();
        }
        self.wake();
    }

    /// Shows the program what the peer's flags say.
    fn note_end(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        let aborted = conn.take_error().is_some();
        let is_closed = conn.write(0, false) == Err(smcr_proto::smc::conn::WriteError::Reset);
        let mut marks = if !aborted && self.holds_end() { 0 } else { fin::WRITE };
        if is_closed {
            marks |= fin::CLOSED;
        }
        if aborted {
            marks |= fin::CLOSED | fin::RESET;
            if let Some(s) = self.sock() {
                s.rx.end.store(ENDED, Relaxed);
            }
        }
        self.rx_dir().fin.fetch_or(marks, Release);
    }

    /// The connection is over by force; `error` is what the program gets once instead of ECONNRESET.
    pub fn broken(&mut self, error: Option<ConnError>) {
        if let Some(s) = self.sock() {
            if error == Some(ConnError::Aborted) {
                s.error.store(libc::ECONNABORTED as u32, Relaxed);
                s.set(flag::ERROR_PENDING);
            }
            s.rx.end.store(ENDED, Relaxed);
        }
        self.mark_end(fin::WRITE | fin::CLOSED | fin::RESET);
        self.end_tcp();
    }

    /// Marks how the peer's direction has ended, and wakes whoever waits for either.
    pub(super) fn mark_end(&self, marks: u32) {
        self.rx_dir().fin.fetch_or(marks, Release);
        self.wake();
    }

    /// Wakes who waits for the connection, whatever for.
    pub(super) fn wake(&self) {
        wake::reader(self.rx_dir(), self.sock());
        wake::writer(self.tx_dir());
    }

    /// The group is over.
    pub fn link_down(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        let ended = self.in_flight == 0 && conn.has_ended();
        conn.handle_link_down();
        let error = conn.take_error();
        let (sent, read) = conn.sent_bytes();
        // What has ended in order stays so.
        let marks = self.rx_dir().fin.load(Relaxed);
        if self.active && self.ends_without_answer() {
            return self.broken(None);
        }
        if marks & fin::CLOSED != 0 || ended || !self.active {
            return;
        }
        if !self.tcp_ended {
            return self.broken(error);
        }
        // Both have ended: the peer is dead. As TCP shows it: the end, or a reset if it left something
        // unread. A kernel that gives its links up resets TCP first, and then says so by the link: an end there would make
        // what has come so far look whole.
        let head = self.tx_dir().head.load(Relaxed);
        if sent == read && head == sent && !self.tcp_reset {
            self.mark_end(fin::WRITE | fin::CLOSED);
        } else {
            self.broken(None);
        }
    }

    /// The peer withdrew memories.
    pub fn withdrawn(&mut self, keys: &[Rkey]) {
        let Some(conn) = &mut self.conn else { return };
        conn.handle_rkeys_deleted(keys);
        if let Some(error) = conn.take_error() {
            self.broken(Some(error));
        }
    }
}
