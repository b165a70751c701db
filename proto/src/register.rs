//! What a socket's SO_MAX_PACING_RATE says besides a rate: a register of 64 bits that all holders of a socket share, and that sock_diag shows to
//! everybody in the network namespace.
//!
//! One at a time: an [`announcement`] of the accepting side, the proof of a rendezvous ([`proof_rate`]), who has a connection next ([`Legacy`]),
//! where the bytes are that go with a message ([`Bequest`]), how far several programs have read ([`Shared`]). All but the proof have 24 bits of
//! their own at the top, so each is told from the others and from any rate of a program. Called by the library's `rendezvous` and `engine::heirs`.

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
pub const fn proves(rate: u64) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
