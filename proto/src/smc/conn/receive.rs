//! The receiving direction: what can be read, when the peer is told, and urgent data.
//!
//! Positions are bytes from the start of the stream. Linux `net/smc/smc_rx.c` and
//! `smc_tx_consumer_update`. Owned by [`super::Conn`].

use crate::smc::cdc::ProducerFlags;
use crate::smc::cursor::{Cursor, CursorError, Segments, Step, segments};

/// Reads below this many bytes are not told to the peer at once (Linux: half of SOCK_MIN_SNDBUF).
const MIN_UPDATE: u32 = 2304;

#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// Bytes of this end's ring.
    size: u32,
    /// How far the peer has written.
    produced: u64,
    /// How far the program has read.
    consumed: u64,
    /// How far the peer knows of it.
    confirmed: u64,
    /// The flags of the peer's last message.
    flags: ProducerFlags,
    mark: Option<Mark>,
    /// Urgent bytes are ordinary ones (SO_OOBINLINE).
    inline: bool,
    /// The next update may not wait.
    force: bool,
    /// The peer is told by halves of the ring.
    halves: bool,
}

/// An urgent byte that arrived.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: u64,
    /// The program has fetched it.
    taken: bool,
}

impl Receiver {
    pub fn new(size: u32) -> Receiver {
        Receiver {
            size,
            produced: 0,
            consumed: 0,
            confirmed: 0,
            flags: ProducerFlags::empty(),
            mark: None,
            inline: false,
            force: false,
            halves: false,
        }
    }

    /// By halves of the ring, not by tenths: one half is written while the other is read.
    pub fn set_halves(&mut self, yes: bool) {
        self.halves = yes;
    }

    pub fn produced(&self) -> u64 {
        self.produced
    }

    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes read of which the peer does not know.
    pub fn unconfirmed(&self) -> u32 {
        (self.consumed - self.confirmed) as u32
    }

    /// Bytes that the peer knows to be free.
    pub fn free(&self) -> u32 {
        self.size - (self.produced - self.confirmed) as u32
    }

    /// Bytes that can be read in one go: up to the urgent byte, if that is not to be read inline.
    pub fn readable(&self) -> u32 {
        let end = match self.mark {
            Some(mark) if !self.inline && mark.at >= self.consumed => mark.at,
            _ => self.produced,
        };
        (end - self.consumed) as u32
    }

    /// Where the first of the readable bytes lie, at most `max` of them.
    pub fn segments(&self, max: u32) -> Segments {
        segments(self.consumed, self.readable().min(max), self.size)
    }

    /// Judges the peer's producer cursor: it may not pass what it knows to be free.
    pub fn check(&self, claimed: Cursor) -> Result<u32, CursorError> {
        let limit = self.free();
        match Cursor::at(self.produced, self.size).step(claimed, limit, self.size)? {
            Step::Forward(bytes) => Ok(bytes),
            Step::Stale => Ok(0),
        }
    }

    /// Whether all that the peer believes to have been received has been.
    pub fn has(&self, claimed: Cursor) -> bool {
        Cursor::at(self.produced, self.size).step(claimed, 0, self.size).is_ok()
    }

    /// The consumer cursor, without telling it.
    pub fn cursor(&self) -> Cursor {
        Cursor::at(self.consumed, self.size)
    }

    /// The peer has written so many bytes more. Gives the place of an urgent byte among them; its
    /// value has to be copied now.
    pub fn advance(&mut self, bytes: u32, flags: ProducerFlags) -> Option<u32> {
        self.flags = flags;
        self.produced += bytes as u64;
        if bytes == 0 || !flags.contains(ProducerFlags::URGENT_PRESENT) {
            return None;
        }
        let at = self.produced - 1;
        self.mark = Some(Mark { at, taken: false });
        self.skip_urgent();
        Some(Cursor::at(at, self.size).count)
    }

    /// The program has read so many bytes, at most [`Receiver::readable`].
    pub fn consume(&mut self, bytes: u32) {
        self.consumed += bytes.min(self.readable()) as u64;
        if let Some(mark) = self.mark {
            // Inline, the byte itself was read; else something behind it.
            let passed = if self.inline { mark.at + 1 } else { mark.at + 2 };
            if self.consumed >= passed {
                self.mark = None;
                self.force |= self.inline;
            }
        }
        self.skip_urgent();
    }

    /// The peer waits until everything is read, so the byte is skipped as soon as it is next, not
    /// when the program comes to read on.
    fn skip_urgent(&mut self) {
        if self.mark.is_some_and(|mark| !self.inline && mark.at == self.consumed) {
            self.consumed += 1;
            self.force = true;
        }
    }

    pub fn set_inline(&mut self, inline: bool) {
        self.inline = inline;
        self.skip_urgent();
    }

    /// Whether the program stands at the urgent byte (SIOCATMARK).
    pub fn at_mark(&self) -> bool {
        let next = if self.inline { self.consumed } else { self.consumed.wrapping_sub(1) };
        self.mark.is_some_and(|mark| mark.at == next)
    }

    /// Whether an urgent byte waits to be fetched.
    pub fn urgent_unread(&self) -> bool {
        self.mark.is_some_and(|mark| !mark.taken)
    }

    /// Whether the peer says that an urgent byte is on its way.
    pub fn urgent_coming(&self) -> bool {
        self.flags.contains(ProducerFlags::URGENT_PENDING) && !self.urgent_unread()
    }

    /// Fetches the urgent byte (MSG_OOB; the driver has its copy). False: there is none.
    pub fn take_urgent(&mut self, peek: bool) -> bool {
        match &mut self.mark {
            Some(mark) if !self.inline && !mark.taken => {
                mark.taken = !peek;
                true
            }
            _ => false,
        }
    }

    pub fn peer_is_blocked(&self) -> bool {
        self.flags.contains(ProducerFlags::WRITE_BLOCKED)
    }

    /// Whether the peer has to be told how far the program has read. Linux's rule, or by halves, and at once where
    /// the peer waits for it.
    pub fn update_due(&self) -> bool {
        let unconfirmed = self.unconfirmed();
        if unconfirmed == 0 {
            return false;
        }
        if self.is_awaited() {
            return true;
        }
        if self.halves {
            // A sender that waits has more than three quarters unread, or has asked.
            return unconfirmed >= self.size / 2;
        }
        let blocked = self.flags.contains(ProducerFlags::WRITE_BLOCKED);
        unconfirmed > (self.size / 10).max(MIN_UPDATE) && (blocked || self.free() <= self.size / 2)
    }

    /// How many bytes may still be read before [`Receiver::update_due`] can become true; 0 where each read counts.
    pub fn unheeded(&self) -> u32 {
        let each = self.is_awaited() || self.mark.is_some() || !self.halves;
        if each { 0 } else { (self.size / 2).saturating_sub(self.unconfirmed()) }
    }

    /// Whether the peer waits to hear of any progress.
    fn is_awaited(&self) -> bool {
        self.force || self.flags.intersects(ProducerFlags::URGENT_PENDING | ProducerFlags::UPDATE_REQUESTED)
    }

    /// The consumer cursor for a message that is sent now.
    pub fn confirm(&mut self) -> Cursor {
        self.confirmed = self.consumed;
        self.force = false;
        self.cursor()
    }
}
