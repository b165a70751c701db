//! The private socket options by which a process has its handshakes marked with the SMC TCP option, as
//! the eBPF programs (`bpf/smcr.bpf.c`), their loader and the library agree on them.
//!
//! | | | |
//! |---|---|---|
//! | setsockopt | [`LEVEL`], [`MARK`] | u32: 1 marks, before connect() or listen(); 0 unmarks |
//! | getsockopt | [`LEVEL`], [`MARK`] | u32: [`ABI`] << 16, and 1 if marked |
//! | getsockopt | [`LEVEL`], [`VERDICT`] | u32: see [`Verdict`] |
//!
//! Where the programs are not installed the kernel answers ENOPROTOOPT or EOPNOTSUPP in 0.2 us.

/// Level of the private options; no protocol of the kernel has it.
pub const LEVEL: i32 = 0x534d;
/// Mark a socket.
pub const MARK: i32 = 1;
/// Ask what the handshake has shown.
pub const VERDICT: i32 = 2;
/// Version of this agreement.
pub const ABI: u16 = 1;

/// What a server with libsmcr says first to a client with libsmcr: it is there, and waits for the
/// client's Proposal. Shaped as a CLC message (eyecatcher, type 0x20, length 12, version 2, trailer) of a
/// type that no other implementation has.
pub const HELLO: [u8; 12] = [0xe2, 0xd4, 0xc3, 0xd9, 0x20, 0x00, 0x0c, 0x20, 0xe2, 0xd4, 0xc3, 0xd9];

/// What the handshake of a marked socket has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict(pub u32);

/// Who is at the other end, if both ends have shown the option to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// libsmcr: its server speaks first.
    Ours {
        /// Version that the peer put into its option.
        version: u8,
    },
    /// Another implementation of SMC (a kernel): its client speaks first, and it will.
    Smc,
}

impl Verdict {
    const KNOWN: u32 = 0x01;
    const PEER: u32 = 0x02;
    const WE: u32 = 0x04;
    const ACTIVE: u32 = 0x08;
    const OURS: u32 = 0x10;

    /// Was the handshake seen by the programs? False on a socket that was not marked, was accepted from
    /// an unmarked listener, or is not connected.
    pub const fn known(self) -> bool {
        self.0 & Self::KNOWN != 0
    }

    /// Was it we who connected?
    pub const fn active(self) -> bool {
        self.0 & Self::ACTIVE != 0
    }

    /// The peer, if it is certain that each end knows of the other.
    pub const fn peer(self) -> Option<Peer> {
        const CERTAIN: u32 = Verdict::KNOWN | Verdict::PEER | Verdict::WE;
        if self.0 & CERTAIN != CERTAIN {
            return None;
        }
        if self.0 & Self::OURS != 0 { Some(Peer::Ours { version: (self.0 >> 8) as u8 }) } else { Some(Peer::Smc) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_needs_both_directions() {
        assert_eq!(Verdict(0x11f).peer(), Some(Peer::Ours { version: 1 }));
        assert_eq!(Verdict(0x0f).peer(), Some(Peer::Smc));
        for lacking in [0x0, 0x1, 0x3, 0x5, 0x6, 0xd, 0x113] {
            assert_eq!(Verdict(lacking).peer(), None, "{lacking:#x}");
        }
        assert!(Verdict(0xd).known() && Verdict(0xd).active() && !Verdict(0x7).active());
    }
}
