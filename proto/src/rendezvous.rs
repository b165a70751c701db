//! Messages by which two processes of one host find each other, and the announcement that leads
//! one to the other.
//!
//! The accepting side shows a number on its socket (SO_MAX_PACING_RATE, which sock_diag shows to
//! everybody in the network namespace): [`announcement`]. The number names a Unix socket. Over it go
//! an [`Offer`] with the region, an [`Answer`], and what waiters are rung by ([`Bell`]). All numbers little-endian.
//!
//! Versions: an offer says which versions its sender speaks (`low..=high`), the answer says which one
//! holds. Where there is none in common both stay on TCP. The fixed part of a message never changes.

use crate::reason::Reason;

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
/// Top 24 bits of an announcement. As a rate in bytes per second it is far beyond any network.
const ANNOUNCE: u64 = 0x534d43;

/// What the accepting side puts on its socket: marks it as ours and names the Unix socket.
pub const fn announcement(name: u64) -> u64 {
    ANNOUNCE << 40 | (name & NAME_MASK)
}

/// Bits of a name number.
pub const NAME_MASK: u64 = (1 << 40) - 1;

/// The name number in a socket's rate, if it is an announcement.
pub const fn announced(rate: u64) -> Option<u64> {
    if rate >> 40 == ANNOUNCE { Some(rate & NAME_MASK) } else { None }
}

/// A rate that proves: never taken for an announcement, and far beyond any network.
pub const fn proof_rate(random: u64) -> u64 {
    (random >> 4) | 1 << 62
}

/// Whether it is one, also as versions before this made them. The accepting side puts it on its socket: any other would slow that down, or say something to who has it next.
const fn proves(rate: u64) -> bool {
    rate >> 61 == 0b010 && announced(rate).is_none()
}

/// Top 24 bits of a [`Legacy`]. Its first bits are those of no proof; far beyond any network as well.
const LEGACY: u64 = 0x33_4d43;

/// What a process leaves on a connection, in the same place, for who goes on with it: the program that it becomes by exec, or
/// the receiver of a message with the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Legacy {
    /// The number of the process, or [`Legacy::message`]: nobody else may take the connection over.
    pub heir: u32,
    /// Whether this is the end that connected.
    pub connected: bool,
    /// How many other processes still hold the connection; [`Legacy::NEVER`] does not change any more.
    pub others: u8,
}

impl Legacy {
    /// Somebody holds it whose end nobody will tell.
    pub const NEVER: u8 = u8::MAX;
    /// Bit of an heir that is no process. Numbers of processes have 22 bits (PID_MAX_LIMIT).
    const MESSAGE: u32 = 1 << 23;

    /// The heir that is whoever receives it by the Unix socket with this inode.
    pub const fn message(inode: u64) -> u32 {
        inode as u32 & (Legacy::MESSAGE - 1) | Legacy::MESSAGE
    }

    /// Whether that heir is one of [`Legacy::message`].
    pub const fn is_message(heir: u32) -> bool {
        heir & Legacy::MESSAGE != 0
    }

    /// As a rate; None if the heir has no room in it.
    pub const fn rate(self) -> Option<u64> {
        if self.heir == 0 || self.heir >> 24 != 0 {
            return None;
        }
        Some(LEGACY << 40 | (self.connected as u64) << 32 | (self.others as u64) << 24 | self.heir as u64)
    }

    /// From a socket's rate, if it is one.
    pub const fn parse(rate: u64) -> Option<Legacy> {
        if rate >> 40 != LEGACY || rate >> 33 & 0x7f != 0 || rate & 0xff_ffff == 0 {
            return None;
        }
        Some(Legacy { heir: (rate & 0xff_ffff) as u32, connected: rate >> 32 & 1 == 1, others: (rate >> 24) as u8 })
    }
}

/// Top 24 bits of a [`Bequest`], as those of a [`Legacy`].
const BEQUEST: u64 = 0x33_4d44;

/// The same where bytes go with the connection that its peer can't send again: where the receiver of a message with the descriptor finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bequest {
    /// The process that has sent it.
    pub pid: u32,
    /// The file with the bytes, among the descriptors of that process.
    pub file: u32,
}

impl Bequest {
    const PID_BITS: u32 = 22;

    /// As a rate; None if one of them has no room in it.
    pub const fn rate(self) -> Option<u64> {
        rate_of(BEQUEST, Self::PID_BITS, self.pid, self.file)
    }

    /// From a socket's rate, if it is one.
    pub const fn parse(rate: u64) -> Option<Bequest> {
        match two_of(rate, BEQUEST, Self::PID_BITS) {
            Some((pid, file)) => Some(Bequest { pid, file }),
            None => None,
        }
    }
}

/// Top 24 bits of a [`Shared`], as those of a [`Legacy`].
const SHARED: u64 = 0x33_4d45;

/// The same where several programs have a copy of bytes that the peer can't send again, and any of them may read: how far that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    /// Which bytes: their number, not 0.
    pub number: u32,
    /// So many of them were read.
    pub read: u32,
}

impl Shared {
    const NUMBER_BITS: u32 = 13;

    /// A number out of any.
    pub const fn number(random: u64) -> u32 {
        (random % ((1 << Self::NUMBER_BITS) - 1)) as u32 + 1
    }

    /// As a rate; None if one of them has no room in it.
    pub const fn rate(self) -> Option<u64> {
        rate_of(SHARED, Self::NUMBER_BITS, self.number, self.read)
    }

    /// From a socket's rate, if it is one.
    pub const fn parse(rate: u64) -> Option<Shared> {
        match two_of(rate, SHARED, Self::NUMBER_BITS) {
            Some((number, read)) => Some(Shared { number, read }),
            None => None,
        }
    }
}

/// A rate with these top 24 bits, and two numbers below: the first one, of so many bits, is not 0. None if one has no room in it.
const fn rate_of(top: u64, bits: u32, first: u32, second: u32) -> Option<u64> {
    let low = 40 - bits;
    if first == 0 || first >> bits != 0 || second >> low != 0 {
        return None;
    }
    Some(top << 40 | (first as u64) << low | second as u64)
}

/// The two numbers of a rate with these top bits.
const fn two_of(rate: u64, top: u64, bits: u32) -> Option<(u32, u32)> {
    let low = 40 - bits;
    let (first, second) = (rate >> low & ((1 << bits) - 1), rate & ((1 << low) - 1));
    if rate >> 40 != top || first == 0 {
        return None;
    }
    Some((first as u32, second as u32))
}

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
    fn announcements_are_told_from_rates_and_proofs() {
        assert_eq!(announced(announcement(0x12_3456_789a)), Some(0x12_3456_789a));
        assert_eq!(announced(u64::MAX), None);
        assert_eq!(announced(10_000_000_000), None);
        assert_eq!(announced(proof_rate(u64::MAX)), None);
        assert_eq!(announced(proof_rate(0)), None);
    }

    #[test]
    fn a_legacy_is_nothing_else() {
        for (heir, connected, others) in [(1, false, 0), (4_194_304, true, 3), (Legacy::message(u64::MAX), false, Legacy::NEVER)] {
            let l = Legacy { heir, connected, others };
            let rate = l.rate().expect("a process number");
            assert_eq!(Legacy::parse(rate), Some(l));
            assert_eq!(announced(rate), None);
        }
        assert!(Legacy::is_message(Legacy::message(0)) && !Legacy::is_message(4_194_304));
        assert_eq!(Legacy { heir: 1 << 24, connected: false, others: 0 }.rate(), None);
        for other in [0, u64::MAX, announcement(7), proof_rate(u64::MAX), proof_rate(0), LEGACY << 40, LEGACY << 40 | 1 << 34 | 5] {
            assert_eq!(Legacy::parse(other), None);
        }
    }

    #[test]
    fn how_much_was_read_is_nothing_else() {
        for (number, read) in [(1, 0), (Shared::number(u64::MAX), 64 << 20), (Shared::number(0), 12_018)] {
            let shared = Shared { number, read };
            let rate = shared.rate().expect("an annex has no more");
            assert_eq!(Shared::parse(rate), Some(shared));
            assert!(announced(rate).is_none() && Legacy::parse(rate).is_none() && Bequest::parse(rate).is_none() && !proves(rate));
        }
        assert_eq!(Shared { number: 0, read: 1 }.rate(), None);
        assert_eq!(Shared { number: 1, read: 1 << 27 }.rate(), None);
        for other in [0, u64::MAX, announcement(7), proof_rate(u64::MAX), proof_rate(0), SHARED << 40 | 5, BEQUEST << 40 | 1 << 30] {
            assert_eq!(Shared::parse(other), None);
        }
    }

    #[test]
    fn versions_agree_only_where_they_meet() {
        assert_eq!(agree((VERSION_LOW, VERSION_HIGH)), Some(VERSION_HIGH));
        assert_eq!(agree((VERSION_HIGH + 1, VERSION_HIGH + 2)), None);
        assert_eq!(agree((1, VERSION_HIGH + 2)), Some(VERSION_HIGH));
    }
}
