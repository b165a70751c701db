//! The sending direction: how much of the peer's ring is free, and urgent data.
//!
//! Positions are bytes from the start of the stream. Linux `net/smc/smc_tx.c`. Owned by
//! [`super::Conn`].

use crate::smc::cdc::ProducerFlags;
use crate::smc::cursor::{Cursor, CursorError, Segments, Step, segments};

#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// Bytes of the peer's ring.
    size: u32,
    /// Where the next byte goes.
    produced: u64,
    /// How far it had come before a rewind.
    written: u64,
    /// How far a CDC message has told the peer.
    announced: u64,
    /// How far the peer has read.
    consumed: u64,
    /// The last write would have filled the ring.
    blocked: bool,
    urgent: Urgent,
    /// Up to here nothing is written again.
    forgotten: u64,
    /// The driver stops at so many bytes that it keeps.
    window: u32,
    /// The peer does as it is asked; and the last message asked for an update at each read.
    heeds: bool,
    asked: bool,
    /// Bytes of the peer's ring that only a nudge writes to; and one is due.
    reserve: u32,
    nudge: bool,
}

/// Where an urgent byte is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgent {
    None,
    /// Accepted from the program, not written yet.
    Pending,
    /// Written, not announced yet.
    Marked,
    /// Announced; nothing may follow until the peer has read everything.
    Waiting,
}

impl Sender {
    pub fn new(size: u32) -> Sender {
        let urgent = Urgent::None;
        Sender {
            size,
            produced: 0,
            written: 0,
            announced: 0,
            consumed: 0,
            blocked: false,
            urgent,
            forgotten: 0,
            window: u32::MAX,
            heeds: false,
            asked: false,
            reserve: 0,
            nudge: false,
        }
    }

    /// See [`super::Conn::set_reserve`].
    pub fn set_reserve(&mut self, bytes: u32) {
        self.reserve = bytes.min(self.size / 4);
    }

    /// See [`super::Conn::nudge`].
    pub fn nudge(&mut self) {
        self.nudge = true;
    }

    /// See [`super::Conn::set_window`]. True: the peer does not know that it is waited for.
    pub fn set_window(&mut self, bytes: u32, heeds: bool) -> bool {
        (self.window, self.heeds) = (bytes, heeds);
        self.asks() && !self.asked
    }

    /// Whether the window is so small a part of the peer's ring that the peer would tell too late, or never, of what it has read.
    pub fn is_narrow(&self) -> bool {
        u64::from(self.window) * 3 < u64::from(self.size) * 2
    }

    /// See [`super::Conn::forget_written`].
    pub fn forget_written(&mut self) -> u64 {
        self.forgotten = self.produced;
        self.forgotten
    }

    /// Whether the peer is to tell each read: this end will stop, or has, before so much of the peer's ring is full that it would
    /// tell by itself. (Who waits for a quarter of his window has more than three quarters unread: of two thirds of the ring that is
    /// half of it.)
    fn asks(&self) -> bool {
        self.heeds && self.is_narrow() && self.in_flight() >= self.window / 2
    }

    /// Bytes that may be written now.
    pub fn space(&self) -> u32 {
        match self.urgent {
            Urgent::Marked | Urgent::Waiting => 0,
            Urgent::None | Urgent::Pending => {
                let room = self.size - self.in_flight();
                let space = room.saturating_sub(self.reserve);
                // A nudge of the reserve is one byte: it may be in vain, and others have to follow.
                if self.nudge { space.max(room.min(1)) } else { space }
            }
        }
    }

    /// Whether it is worth it to write some of `len` bytes now: all of them, or a quarter of the ring. A peer that is left less
    /// free has bytes to read, and says so when it has read half of its ring. A nudge is worth it.
    pub fn is_worth_it(&self, len: u32) -> bool {
        let space = self.space();
        space >= len.min(self.size / 4) || self.nudge && space > 0
    }

    /// Bytes that the peer has not read.
    pub fn in_flight(&self) -> u32 {
        (self.produced - self.consumed) as u32
    }

    pub fn produced(&self) -> u64 {
        self.produced
    }

    pub fn announced(&self) -> u64 {
        self.announced
    }

    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Takes as many of `len` bytes as fit and says where they go. If `urgent`, the last of the
    /// `len` bytes is urgent.
    pub fn push(&mut self, len: u32, urgent: bool) -> Segments {
        let space = self.space();
        let taken = len.min(space);
        if urgent && len > 0 && self.urgent == Urgent::None {
            self.urgent = Urgent::Pending;
        }
        if taken == 0 {
            return Segments::new();
        }
        self.blocked = len >= space;
        let out = segments(self.produced, taken, self.size);
        self.produced += taken as u64;
        self.nudge = false;
        if urgent && taken == len {
            self.urgent = Urgent::Marked;
        }
        out
    }

    /// Judges the peer's consumer cursor: it may not pass what it was told.
    pub fn check(&self, claimed: Cursor) -> Result<u32, CursorError> {
        let limit = self.unread();
        match Cursor::at(self.consumed, self.size).step(claimed, limit, self.size)? {
            Step::Forward(bytes) => Ok(bytes),
            Step::Stale => Ok(0),
        }
    }

    /// The peer has read so many bytes more.
    pub fn advance(&mut self, bytes: u32) {
        self.consumed += bytes as u64;
        self.nudge &= bytes == 0;
        // After a rewind: what the peer has read by now need not be repeated.
        self.produced = self.produced.max(self.consumed);
        if self.urgent == Urgent::Waiting && self.in_flight() == 0 {
            self.urgent = Urgent::None;
        }
    }

    /// All that the peer is not known to have read, nor forgotten, is written again: nobody knows what of it has arrived.
    pub fn rewind(&mut self) {
        self.written = self.written.max(self.produced);
        self.produced = self.consumed.max(self.forgotten);
        self.blocked = false;
        self.urgent = Urgent::None;
    }

    /// Whether something is to be written again.
    pub fn is_repeating(&self) -> bool {
        self.produced < self.written
    }

    /// The producer cursor.
    pub fn cursor(&self) -> Cursor {
        Cursor::at(self.produced, self.size)
    }

    /// What the peer knows of and has not read.
    pub fn unread(&self) -> u32 {
        (self.announced - self.consumed) as u32
    }

    /// Whether `len` bytes are all that is to be announced, without any flag.
    pub fn is_plain(&self, len: u32) -> bool {
        // While bytes are repeated the peer may have them: their length is no progress.
        let fresh = self.produced.checked_sub(self.announced);
        // "Write blocked" tells a reader nothing that the cursors do not: the ring is full.
        len > 0 && fresh == Some(u64::from(len)) && self.urgent == Urgent::None && !self.asks()
    }

    /// The producer cursor and flags for a message that is sent now.
    pub fn announce(&mut self) -> (Cursor, ProducerFlags) {
        let mut flags = ProducerFlags::empty();
        flags.set(ProducerFlags::WRITE_BLOCKED, self.blocked);
        let urgent = matches!(self.urgent, Urgent::Pending | Urgent::Marked);
        flags.set(ProducerFlags::URGENT_PENDING, urgent);
        self.asked = self.asks();
        flags.set(ProducerFlags::UPDATE_REQUESTED, self.asked);
        if self.urgent == Urgent::Marked {
            flags |= ProducerFlags::URGENT_PRESENT;
            self.urgent = Urgent::Waiting;
        }
        // The peer may know of more, while bytes are repeated.
        self.announced = self.announced.max(self.produced);
        (self.cursor(), flags)
    }
}
