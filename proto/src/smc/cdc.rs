//! CDC: the 44-byte message that tells a connection's peer where its rings stand.
//!
//! RFC 7609 appendix A.4 and Linux `net/smc/smc_cdc.h`; the same in version 1 and 2. Made and read by
//! [`super::conn`]; the driver looks at [`peek_token`] to find the connection.

use super::cursor::Cursor;
use super::error::WireError;
use super::fields::{Fields, put_u16, put_u32};
use super::id::Token;

/// Bytes of a message.
pub const LEN: usize = 44;
/// First byte of a message; LLC types are below 0x30.
pub const TYPE: u8 = 0xfe;
/// Bytes that have to arrive; what follows is reserved.
const MIN_LEN: usize = 26;

/// Offsets (bytes).
mod field {
    pub const LENGTH: usize = 1;
    pub const SEQUENCE: usize = 2;
    pub const TOKEN: usize = 4;
    pub const PRODUCER_WRAP: usize = 10;
    pub const PRODUCER_COUNT: usize = 12;
    pub const CONSUMER_WRAP: usize = 18;
    pub const CONSUMER_COUNT: usize = 20;
    pub const PRODUCER_FLAGS: usize = 24;
    pub const CONN_FLAGS: usize = 25;
}

bitflags::bitflags! {
    /// Flags of the sender as a producer. State, not events: each message replaces them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ProducerFlags: u8 {
        /// More data waits than the ring has room for.
        const WRITE_BLOCKED = 0x80;
        /// Urgent data is on its way.
        const URGENT_PENDING = 0x40;
        /// The byte before the producer cursor is urgent.
        const URGENT_PRESENT = 0x20;
        /// The consumer cursor is wanted with the next read.
        const UPDATE_REQUESTED = 0x10;
        /// Only a check of the sequence number after a failover.
        const FAILOVER = 0x08;
    }
}

bitflags::bitflags! {
    /// Flags of the sender's side of the connection. State, as above.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConnFlags: u8 {
        /// No more data will come (shutdown for writing).
        const DONE_WRITING = 0x80;
        /// The connection is closed.
        const CLOSED = 0x40;
        /// The connection is aborted; data may be lost.
        const ABORTED = 0x20;
    }
}

impl ConnFlags {
    /// Closed or aborted: nobody reads at the other end any more.
    pub const ANY_CLOSE: ConnFlags = ConnFlags::CLOSED.union(ConnFlags::ABORTED);
}

/// A CDC message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cdc {
    /// Counts the sender's messages of this connection from 1, modulo 65536.
    pub sequence: u16,
    /// The receiver's alert token.
    pub token: Token,
    /// Where the sender will write next in the receiver's ring.
    pub producer: Cursor,
    /// What the sender will read next in its own ring.
    pub consumer: Cursor,
    /// Flags as a producer; bits that no one defined are dropped.
    pub producer_flags: ProducerFlags,
    /// Flags of the connection; bits that no one defined are dropped.
    pub conn_flags: ConnFlags,
}

impl Cdc {
    /// Reads a message. The cursors are as the peer claims; [`super::conn`] checks them.
    pub fn parse(bytes: &[u8]) -> Result<Cdc, WireError> {
        let token = peek_token(bytes)?;
        let fields = Fields(bytes);
        Ok(Cdc {
            sequence: fields.u16(field::SEQUENCE)?,
            token,
            producer: Cursor { wrap: fields.u16(field::PRODUCER_WRAP)?, count: fields.u32(field::PRODUCER_COUNT)? },
            consumer: Cursor { wrap: fields.u16(field::CONSUMER_WRAP)?, count: fields.u32(field::CONSUMER_COUNT)? },
            producer_flags: ProducerFlags::from_bits_truncate(fields.u8(field::PRODUCER_FLAGS)?),
            conn_flags: ConnFlags::from_bits_truncate(fields.u8(field::CONN_FLAGS)?),
        })
    }

    /// The bytes of the message.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[0] = TYPE;
        out[field::LENGTH] = LEN as u8;
        put_u16(&mut out, field::SEQUENCE, self.sequence);
        put_u32(&mut out, field::TOKEN, self.token.value());
        put_u16(&mut out, field::PRODUCER_WRAP, self.producer.wrap);
        put_u32(&mut out, field::PRODUCER_COUNT, self.producer.count);
        put_u16(&mut out, field::CONSUMER_WRAP, self.consumer.wrap);
        put_u32(&mut out, field::CONSUMER_COUNT, self.consumer.count);
        out[field::PRODUCER_FLAGS] = self.producer_flags.bits();
        out[field::CONN_FLAGS] = self.conn_flags.bits();
        out
    }
}

/// The connection a received message is for; checks type and length. A message that is refused here
/// belongs to no connection and is dropped.
pub fn peek_token(bytes: &[u8]) -> Result<Token, WireError> {
    let fields = Fields(bytes);
    match fields.u8(0)? {
        TYPE => {}
        other => return Err(WireError::Type(other)),
    }
    if bytes.len() < MIN_LEN {
        return Err(WireError::Truncated);
    }
    if fields.u8(field::LENGTH)? as usize != LEN {
        return Err(WireError::Length);
    }
    Token::new(fields.u32(field::TOKEN)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_type_and_token_are_checked() {
        let mut bytes = Cdc {
            sequence: 1,
            token: Token::new(7).unwrap(),
            producer: Cursor { wrap: 1, count: 2 },
            consumer: Cursor { wrap: 3, count: 4 },
            producer_flags: ProducerFlags::WRITE_BLOCKED,
            conn_flags: ConnFlags::DONE_WRITING,
        }
        .emit();
        assert_eq!(Cdc::parse(&bytes).map(|c| c.emit()), Ok(bytes));
        assert!(Cdc::parse(&bytes[..26]).is_ok(), "26 bytes are enough");
        assert_eq!(Cdc::parse(&bytes[..25]), Err(WireError::Truncated));
        assert_eq!(peek_token(&bytes[..25]), Err(WireError::Truncated));
        bytes[7] = 0;
        assert_eq!(Cdc::parse(&bytes), Err(WireError::Token));
        bytes[1] = 45;
        assert_eq!(Cdc::parse(&bytes), Err(WireError::Length));
        bytes[0] = 7;
        assert_eq!(Cdc::parse(&bytes), Err(WireError::Type(7)));
    }
}
