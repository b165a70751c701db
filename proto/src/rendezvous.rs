//! Messages by which two processes of one host find each other.
//!
//! A number on the accepting side's socket ([`crate::register`]) names a Unix socket ([`channel_name`]). Over it go
//! an [`Offer`] with the region, an [`Answer`], and what waiters are rung by ([`Bell`]). All numbers little-endian.
//!
//! Versions: an offer says which versions its sender speaks (`low..=high`), the answer says which one
//! holds. Where there is none in common both stay on TCP. The fixed part of a message never changes.

use crate::reason::Reason;
use crate::register::proves;

/// Highest version that this library speaks. `SMCR_TEST_VERSION` at build time raises it for the test
/// that plays a newer library.
pub const VERSION_HIGH: u16 = version();
/// Lowest version that this library speaks.
pub const VERSION_LOW: u16 = VERSION_HIGH;
/// Bytes that every message fits into.
pub const MAX_MESSAGE: usize = 96;

const fn version() -> u16 {
    match option_env!("SMCR_TEST_VERSION") {
        None => 3,
        Some(text) => {
            let b = text.as_bytes();
            let mut v = 0;
            let mut i = 0;
            while i < b.len() {
                v = v * 10 + (b[i] - b'0') as u16;
                i += 1;
            }
            v
        }
    }
}

const MAGIC: u32 = u32::from_le_bytes(*b"SMCR");
/// The abstract name of the Unix socket with this number.
pub fn channel_name(name: u64) -> [u8; 16] {
    let mut out = *b"smcr/..........\0";
    let mut i = 0;
    while i < 10 {
        out[5 + i] = b"0123456789abcdef"[(name >> (36 - 4 * i)) as usize & 15];
        i += 1;
    }
    out
}

/// One message of the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Connecting side to accepting side, with the region's descriptor.
    Offer(Offer),
    /// The answer.
    Answer(Answer),
    /// Either side, with an eventfd, or an end of a pair of sockets for a peer of another user.
    Bell(Bell),
}

/// An offer of memory for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Lowest and highest version of the sender.
    pub versions: (u16, u16),
    /// Cookie of the accepting side's socket, as sock_diag told it.
    pub cookie: u64,
    /// The sender's own number for the connection, for the answer.
    pub id: u32,
    /// What the accepting side shall put on its socket.
    pub rate: u64,
}

/// An answer to an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The version that holds, or 0 with a refusal.
    pub version: u16,
    /// The number from the offer.
    pub id: u32,
    /// Why it was refused (`Reason::None` = accepted).
    pub reason: Reason,
}

/// What comes with it is to be rung for one of the sender's waiters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bell {
    /// Slot in the sender's sleep page.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// Why a message was not understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than its kind.
    Truncated,
    /// Not one of ours.
    Magic,
    /// A kind that this version does not know.
    Kind,
    /// A field has no meaning.
    Value,
}

impl Message {
    /// Writes the message; `page` says that the sender's sleep page comes as the last descriptor.
    /// Returns the length.
    pub fn emit(&self, out: &mut [u8; MAX_MESSAGE], page: bool) -> usize {
        out.fill(0);
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[6] = u8::from(page);
        let body = &mut out[8..];
        match *self {
            Message::Offer(o) => {
                body[..2].copy_from_slice(&o.versions.0.to_le_bytes());
                body[2..4].copy_from_slice(&o.versions.1.to_le_bytes());
                body[4..8].copy_from_slice(&o.id.to_le_bytes());
                body[8..16].copy_from_slice(&o.cookie.to_le_bytes());
                body[16..24].copy_from_slice(&o.rate.to_le_bytes());
                out[4] = 1;
                32
            }
            Message::Answer(a) => {
                body[..2].copy_from_slice(&a.version.to_le_bytes());
                body[4..8].copy_from_slice(&a.id.to_le_bytes());
                body[8..12].copy_from_slice(&a.reason.code().to_le_bytes());
                out[4] = 2;
                24
            }
            Message::Bell(b) => {
                body[..4].copy_from_slice(&b.slot.to_le_bytes());
                body[4..8].copy_from_slice(&b.generation.to_le_bytes());
                out[4] = 3;
                16
            }
        }
    }

    /// Reads a message and whether a sleep page comes with it.
    pub fn parse(raw: &[u8]) -> Result<(Message, bool), Malformed> {
        if u32_at(raw, 0)? != MAGIC {
            return Err(Malformed::Magic);
        }
        let page = *raw.get(6).ok_or(Malformed::Truncated)? == 1;
        let message = match raw[4] {
            1 => {
                let versions = (u16_at(raw, 8)?, u16_at(raw, 10)?);
                let rate = u64_at(raw, 24)?;
                if versions.0 > versions.1 || !proves(rate) {
                    return Err(Malformed::Value);
                }
                Message::Offer(Offer { versions, id: u32_at(raw, 12)?, cookie: u64_at(raw, 16)?, rate })
            }
            2 => Message::Answer(Answer {
                version: u16_at(raw, 8)?,
                id: u32_at(raw, 12)?,
                reason: Reason::from_code(u32_at(raw, 16)?).ok_or(Malformed::Value)?,
            }),
            3 => Message::Bell(Bell { slot: u32_at(raw, 8)?, generation: u32_at(raw, 12)? }),
            _ => return Err(Malformed::Kind),
        };
        Ok((message, page))
    }
}

/// The version that two libraries agree on, given what the other speaks.
pub const fn agree(versions: (u16, u16)) -> Option<u16> {
    let high = if versions.1 < VERSION_HIGH { versions.1 } else { VERSION_HIGH };
    let low = if versions.0 > VERSION_LOW { versions.0 } else { VERSION_LOW };
    if low <= high { Some(high) } else { None }
}

fn u16_at(raw: &[u8], at: usize) -> Result<u16, Malformed> {
    match raw.get(at..at + 2) {
        Some(&[a, b]) => Ok(u16::from_le_bytes([a, b])),
        _ => Err(Malformed::Truncated),
    }
}

fn u32_at(raw: &[u8], at: usize) -> Result<u32, Malformed> {
    match raw.get(at..at + 4) {
        Some(&[a, b, c, d]) => Ok(u32::from_le_bytes([a, b, c, d])),
        _ => Err(Malformed::Truncated),
    }
}

fn u64_at(raw: &[u8], at: usize) -> Result<u64, Malformed> {
    Ok(u64::from(u32_at(raw, at)?) | u64::from(u32_at(raw, at + 4)?) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::{Legacy, announcement, proof_rate};

    const SAMPLES: [Message; 3] = [
        Message::Offer(Offer { versions: (1, 3), cookie: 7 << 40 | 9, id: 77, rate: 1 << 62 | 5 }),
        Message::Answer(Answer { version: 1, id: 77, reason: Reason::Version }),
        Message::Bell(Bell { slot: 5, generation: 9 }),
    ];

    #[test]
    fn messages_round_trip() {
        for m in SAMPLES {
            for page in [false, true] {
                let mut buf = [0; MAX_MESSAGE];
                let n = m.emit(&mut buf, page);
                assert_eq!(Message::parse(&buf[..n]), Ok((m, page)));
            }
        }
    }

    #[test]
    fn an_offer_with_another_rate_is_refused() {
        let legacy = Legacy { heir: 1, connected: true, others: 0 }.rate().expect("a process number");
        let parsed = |rate| {
            let mut buf = [0; MAX_MESSAGE];
            let n = Message::Offer(Offer { versions: (1, 3), cookie: 9, id: 77, rate }).emit(&mut buf, false);
            Message::parse(&buf[..n]).map(|_| ())
        };
        for rate in [0, 1, u64::MAX, 1 << 61, 1 << 63, (1 << 62) - 1, announcement(7), legacy] {
            assert_eq!(parsed(rate), Err(Malformed::Value), "{rate:x}");
        }
        for random in [0, 1, u64::MAX] {
            assert_eq!(parsed(proof_rate(random)), Ok(()));
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        for m in SAMPLES {
            let mut buf = [0; MAX_MESSAGE];
            let n = m.emit(&mut buf, false);
            let needed = if matches!(m, Message::Answer(_)) { n - 4 } else { n };
            for short in 0..needed {
                assert!(Message::parse(&buf[..short]).is_err(), "{m:?} cut to {short}");
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut x = 0x1234_5678_u32;
        for _ in 0..20_000 {
            let mut raw = [0u8; 40];
            for b in &mut raw {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *b = (x >> 24) as u8;
            }
            raw[..4].copy_from_slice(&MAGIC.to_le_bytes());
            raw[4] %= 5;
            let _ = Message::parse(&raw[..(x % 41) as usize]);
        }
    }

    #[test]
    fn versions_agree_only_where_they_meet() {
        assert_eq!(agree((VERSION_LOW, VERSION_HIGH)), Some(VERSION_HIGH));
        assert_eq!(agree((VERSION_HIGH + 1, VERSION_HIGH + 2)), None);
        assert_eq!(agree((1, VERSION_HIGH + 2)), Some(VERSION_HIGH));
    }
}
