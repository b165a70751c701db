//! One SMC-R connection: two rings, their cursors, urgent data and the close handshake.
//!
//! Says what to write where and what to tell the peer; the driver moves the bytes. To send: post
//! RDMA writes for the segments that [`Conn::write`] gives, then the message that
//! [`Conn::poll_cdc`] gives, on the same queue pair: the peer believes the bytes after the message.
//! To receive: hand each CDC message to [`Conn::handle_cdc`], copy from the segments that
//! [`Conn::segments`] gives, say so to [`Conn::consume`]. After every call poll `poll_cdc`, as soon as
//! a send slot is free. RFC 7609 section 4, Linux `net/smc/smc_{cdc,tx,rx,close}.c`.

mod closing;
mod failover;
mod immediate;
mod receive;
mod report;
mod send;
mod state;
mod window;

pub use self::report::{ConnError, Update, Violation, WriteError};
pub use self::state::State;

use self::receive::Receiver;
use self::send::Sender;
use super::cdc::{Cdc, ConnFlags, LEN, ProducerFlags};
use super::clc::accept::Endpoint;
use super::cursor::{Cursor, CursorError, Segment, Segments};
use super::error::WireError;
use super::id::{Rkey, RmbeSize, Token};

/// A connection.
#[derive(Clone, Debug)]
pub struct Conn {
    token: Token,
    peer: Option<Peer>,
    state: State,
    /// Flags that this end sends.
    local: ConnFlags,
    /// Those of the last message.
    told: ConnFlags,
    /// Flags that the peer has sent.
    remote: ConnFlags,
    /// close() was called.
    closed: bool,
    rx: Receiver,
    /// Number of the last message, and of the peer's.
    sent: u16,
    seen: u16,
    /// The peer does not know the number, since a failover: a CDC message tells it.
    unnumbered: bool,
    cdc_due: bool,
    /// A failover message is due, with this number and producer cursor.
    failover: Option<(u16, Cursor)>,
    /// Failover messages of the peer are judged by their cursors.
    by_cursor: bool,
    link_down: bool,
    error: Option<ConnError>,
}

/// What is known once the peer's ring is.
#[derive(Clone, Debug)]
struct Peer {
    token: Token,
    ring: u64,
    /// Where the ring begins in the peer's memory.
    offset: u64,
    rkey: Rkey,
    tx: Sender,
}

impl Conn {
    /// A connection whose own ring of this size is ready: from the moment on when the peer can learn
    /// of it (before Accept or Confirm is sent), because its first message may come before the
    /// handshake is over.
    pub fn new(token: Token, ring: RmbeSize) -> Conn {
        Conn {
            token,
            peer: None,
            state: State::Init,
            local: ConnFlags::empty(),
            told: ConnFlags::empty(),
            remote: ConnFlags::empty(),
            closed: false,
            rx: Receiver::new(ring.bytes()),
            sent: 0,
            seen: 0,
            unnumbered: false,
            cdc_due: false,
            failover: None,
            by_cursor: false,
            link_down: false,
            error: None,
        }
    }

    /// The peer's ring is known: data may be written.
    pub fn activate(&mut self, peer: &Endpoint) -> Result<(), WireError> {
        let (ring, rkey, token) = (peer.ring_address()?, peer.rkey, peer.token);
        if self.peer.is_none() {
            self.peer = Some(Peer { token, ring, offset: ring.wrapping_sub(peer.rmb_address), rkey, tx: Sender::new(peer.size.bytes()) });
            if self.state == State::Init {
                self.state = State::Active;
            }
        }
        Ok(())
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The token by which the peer names this connection.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Over, and the peer was told: ring and token may be given up.
    pub fn is_finished(&self) -> bool {
        let said = !self.cdc_due && self.told == self.local;
        self.state == State::Closed && (said || self.link_down || self.peer.is_none())
    }

    /// The error that the program has not been told yet; it follows the data that arrived before.
    pub fn take_error(&mut self) -> Option<ConnError> {
        self.error.take()
    }

    // Sending.

    /// Number of the last message.
    pub fn last_number(&self) -> u16 {
        self.sent
    }

    /// Bytes that can be written now.
    pub fn writable(&self) -> u32 {
        match (&self.peer, self.write_error()) {
            (Some(peer), None) => peer.tx.space(),
            _ => 0,
        }
    }

    /// Whether the peer's ring has room for `len` bytes, or enough that a piece of them is worth a message.
    pub fn is_worth_it(&self, len: u32) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.tx.is_worth_it(len))
    }

    /// Takes as many of `len` bytes as the peer's ring has room for; none is "would block". The
    /// segments lie in the peer's ring, in the order of the bytes. If `urgent`, the last of the `len`
    /// bytes is urgent, and nothing else is taken until the peer has read all.
    pub fn write(&mut self, len: u32, urgent: bool) -> Result<Segments, WriteError> {
        if let Some(error) = self.write_error() {
            return Err(error);
        }
        let Some(peer) = &mut self.peer else {
            return Err(WriteError::NotConnected);
        };
        let segments = peer.tx.push(len, urgent);
        self.cdc_due |= !segments.is_empty();
        Ok(segments)
    }

    /// Address and key with which a segment of the peer's ring is written.
    pub fn remote(&self, segment: Segment) -> Option<(u64, Rkey)> {
        self.peer.as_ref().map(|peer| (peer.ring + segment.offset as u64, peer.rkey))
    }

    /// Bytes written since the start, and how many of them the peer is known to have read. What lies
    /// between has to be kept if the connection shall survive its link.
    pub fn sent_bytes(&self) -> (u64, u64) {
        self.peer.as_ref().map_or((0, 0), |peer| (peer.tx.produced(), peer.tx.consumed()))
    }

    // Receiving.

    /// Takes a CDC message for this connection's token.
    pub fn handle_cdc(&mut self, cdc: &Cdc) -> Result<Update, Violation> {
        // After an abort nothing can come that matters.
        let over = matches!(self.state, State::Closed | State::ProcessAbort);
        if over || cdc.token != self.token || self.link_down {
            return Ok(Update::default());
        }
        if cdc.producer_flags.contains(ProducerFlags::FAILOVER) {
            return self.validate(cdc);
        }
        let ahead = cdc.sequence.wrapping_sub(self.seen) as i16;
        if ahead < 0 {
            return Ok(Update::default());
        }
        let received = self.rx.check(cdc.producer).map_err(Violation::Producer);
        let freed = match &self.peer {
            Some(peer) => peer.tx.check(cdc.consumer).map_err(Violation::Consumer),
            None if cdc.consumer == Cursor::ZERO => Ok(0),
            None => Err(Violation::Consumer(CursorError::BeyondLimit)),
        };
        let (received, freed) = match (received, freed) {
            (Ok(received), Ok(freed)) => (received, freed),
            (Err(violation), _) | (_, Err(violation)) => return Err(self.violated(violation)),
        };
        self.seen = cdc.sequence;
        if let Some(peer) = &mut self.peer {
            peer.tx.advance(freed);
        }
        let urgent = self.rx.advance(received, cdc.producer_flags);
        let closing = self.peer_flags(cdc.conn_flags);
        self.update_if_due();
        self.end_if_due();
        Ok(Update { received, freed, urgent, closing })
    }

    /// Bytes that can be read in one go. 0 with [`Conn::is_eof`] false is "would block".
    pub fn readable(&self) -> u32 {
        if self.closed { 0 } else { self.rx.readable() }
    }

    /// Whether no more bytes will come once [`Conn::readable`] is 0.
    pub fn is_eof(&self) -> bool {
        !self.remote.is_empty() || self.link_down || self.state == State::ProcessAbort
    }

    /// Where the next bytes to read lie in this end's ring, at most `max` of them.
    pub fn segments(&self, max: u32) -> Segments {
        self.rx.segments(max.min(self.readable()))
    }

    /// The program has read so many bytes (more than were readable count as those).
    pub fn consume(&mut self, bytes: u32) {
        self.rx.consume(bytes);
        self.update_if_due();
    }

    /// How many bytes the program may still read before the peer has to hear of it; 0 where each read counts, or the end of either
    /// side has been said.
    pub fn unheeded(&self) -> u32 {
        let plain = self.local.is_empty() && self.remote.is_empty() && !self.closed && self.failover.is_none() && !self.link_down;
        if plain { self.rx.unheeded() } else { 0 }
    }

    /// Whether a message is due.
    pub fn is_message_due(&self) -> bool {
        self.cdc_due || self.failover.is_some()
    }

    /// Bytes received since the start, and how many of them were read.
    pub fn received_bytes(&self) -> (u64, u64) {
        (self.rx.produced(), self.rx.consumed())
    }

    /// The peer has more to send than there was room for, at its last message; Linux says so also where it had exactly as much.
    pub fn peer_is_blocked(&self) -> bool {
        self.rx.peer_is_blocked()
    }

    // Urgent data.

    /// Urgent bytes are read as ordinary ones from now on (SO_OOBINLINE).
    pub fn set_oob_inline(&mut self, inline: bool) {
        self.rx.set_inline(inline);
        self.update_if_due();
    }

    /// Whether the program stands at the urgent byte (SIOCATMARK).
    pub fn at_mark(&self) -> bool {
        self.rx.at_mark()
    }

    /// Whether an urgent byte waits to be fetched (POLLPRI).
    pub fn urgent_unread(&self) -> bool {
        self.rx.urgent_unread()
    }

    /// Whether the peer says that an urgent byte is on its way.
    pub fn urgent_coming(&self) -> bool {
        self.rx.urgent_coming()
    }

    /// Fetches the urgent byte (MSG_OOB), of which the driver has a copy. False: there is none.
    pub fn take_urgent(&mut self, peek: bool) -> bool {
        self.rx.take_urgent(peek)
    }

    /// The next message to send. It is counted as sent: call only with a free send slot.
    pub fn poll_cdc(&mut self) -> Option<[u8; LEN]> {
        if let Some(message) = self.poll_failover() {
            return Some(message);
        }
        let repeats = self.is_repeating();
        let peer = self.peer.as_mut().filter(|_| self.cdc_due && !self.link_down)?;
        self.cdc_due = false;
        // The end comes behind the bytes, also those that are sent again.
        self.told = if repeats { self.local & ConnFlags::ABORTED } else { self.local };
        self.sent = self.sent.wrapping_add(1);
        self.unnumbered = false;
        let (producer, producer_flags) = peer.tx.announce();
        let message = Cdc { sequence: self.sent, token: peer.token, producer, consumer: self.rx.confirm(), producer_flags, conn_flags: self.told };
        Some(message.emit())
    }

    fn write_error(&self) -> Option<WriteError> {
        if self.peer.is_none() {
            Some(WriteError::NotConnected)
        } else if self.link_down {
            Some(WriteError::Aborted)
        } else if self.is_done() && !self.is_repeating() {
            Some(WriteError::Pipe)
        } else if self.remote.intersects(ConnFlags::ANY_CLOSE) || self.state == State::ProcessAbort {
            // Nothing may be written into a ring that its owner gave up.
            Some(WriteError::Reset)
        } else {
            None
        }
    }

    fn update_if_due(&mut self) {
        // Linux may have said the end before bytes for which it waits for room.
        let deaf = if self.by_cursor { ConnFlags::ANY_CLOSE } else { ConnFlags::ABORTED };
        let peer_reads_it = !self.remote.intersects(deaf) && !self.closed;
        if peer_reads_it && self.rx.update_due() {
            self.cdc_due = true;
        }
    }
}
