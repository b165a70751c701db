//! What a connection reports: the news of a message, and what went wrong.
//!
//! Given by [`super::Conn`] to its driver, which maps the errors to the errno in each text.

use crate::smc::cursor::CursorError;

/// What a message brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Update {
    /// Bytes that arrived in this end's ring.
    pub received: u32,
    /// Bytes of the peer's ring that became free.
    pub freed: u32,
    /// Offset in this end's ring of an urgent byte; the driver copies it before it sends anything.
    pub urgent: Option<u32>,
    /// The peer is done writing, closed or aborted, and was not before.
    pub closing: bool,
}

/// What a peer did that no honest one does. The connection is aborted by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Its producer cursor passes what is free.
    Producer(CursorError),
    /// Its consumer cursor passes what was written.
    Consumer(CursorError),
    /// Messages were lost: after a failover, or the number of one is missing.
    Lost,
    /// It withdrew the ring that this end writes into.
    RingWithdrawn,
}

/// What a program is told of a connection that broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnError {
    /// The peer aborted, or broke the rules (ECONNRESET).
    Reset,
    /// The link died (ECONNABORTED).
    Aborted,
}

/// Why nothing can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The peer's ring is not known yet (ENOTCONN).
    NotConnected,
    /// This end is done writing (EPIPE).
    Pipe,
    /// The peer reads no more (ECONNRESET).
    Reset,
    /// The link died (ECONNABORTED).
    Aborted,
}
