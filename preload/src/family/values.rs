//! What some fields of a socket's record hold: medium, flags, role, and the step of discovery.
//!
//! Used through [`super::sock`], which has the fields.

/// Medium of a direction.
pub mod medium {
    /// The kernel's TCP stream.
    pub const TCP: u8 = 0;
    /// A ring in shared memory.
    pub const SHM: u8 = 1;
    /// A ring that a link of this process empties and fills.
    pub const RDMA: u8 = 2;
}

/// Bits of [`Sock::flags`].
pub mod flag {
    /// Reads must respect a switch offset: they never block in the kernel and never take more than
    /// they looked at.
    pub const CAREFUL: u32 = 1 << 0;
    /// Stays on TCP from now on.
    pub const PINNED: u32 = 1 << 1;
    /// O_NONBLOCK is set on the description.
    pub const NONBLOCK: u32 = 1 << 2;
    /// The program shut down its sending side.
    pub const SHUT_WR: u32 = 1 << 3;
    /// The program shut down its receiving side.
    pub const SHUT_RD: u32 = 1 << 4;
    /// A hooked poll, select or epoll set has waited for this socket.
    pub const SEEN: u32 = 1 << 5;
    /// SO_TIMESTAMP or SO_TIMESTAMPNS is on: a message has its time, which TCP alone knows, where there is room for it.
    pub const STAMPED: u32 = 1 << 6;
    /// SO_LINGER with time zero.
    pub const LINGER0: u32 = 1 << 7;
    /// The program's TCP_NODELAY (shadowed while accelerated).
    pub const NODELAY: u32 = 1 << 8;
    /// The program's TCP_CORK (shadowed while accelerated).
    pub const CORK: u32 = 1 << 9;
    /// More than one process may use it (fork).
    pub const FORKED: u32 = 1 << 10;
    /// Options were read from the kernel into the shadows.
    pub const SHADOWED: u32 = 1 << 11;
    /// The program reads an errno of the connection later through SO_ERROR.
    pub const ERROR_PENDING: u32 = 1 << 12;
    /// The last reference in this family went while the region was in use.
    pub const ENDED: u32 = 1 << 13;
    /// Member of a set that no hooked wait has waited for, or that is waited for itself: its waiter may
    /// be one that we never see ([`Sock::unseen`] counts).
    pub const UNSEEN: u32 = 1 << 14;
    /// The first send after a peer's death has been swallowed, as TCP swallows it.
    pub const SWALLOWED: u32 = 1 << 15;
    /// Waiters of several processes slept on it: only the doorbell byte wakes them all.
    pub const SHARED: u32 = 1 << 16;
    /// Its handshake shows the SMC option (`rendezvous::mark`).
    pub const MARKED: u32 = 1 << 17;
    /// Marked, and the other end does not speak SMC. Of a listener: it was marked, and shows the option no more.
    pub const NOBODY: u32 = 1 << 18;
    /// Its reader waits in blocking calls: it arms by itself before each sleep, so what others may
    /// wait for need not be armed at each read.
    pub const BLOCKS: u32 = 1 << 19;
    /// SO_PEEK_OFF is kept here ([`Sock::peek_off`]).
    pub const PEEK_OFF: u32 = 1 << 20;
    /// Receiving is frozen for a hand-over: what the ring holds comes again through TCP. Ours alone to
    /// know; `Dir::ctl` merely tells the peer.
    pub const FROZEN: u32 = 1 << 21;
    /// Sending is on TCP, but bytes of the ring come first (`engine::debt`).
    pub const OWES: u32 = 1 << 22;
    /// A read said EAGAIN and no hooked waiter was seen: who waits then is one that we never see.
    pub const RAW: u32 = 1 << 23;
    /// The medium is a link (`link`), or is about to be: its handshake is on its way.
    pub const LINKED: u32 = 1 << 24;
    /// Marked, and nobody has looked yet what the handshake has shown.
    pub const UNASKED: u32 = 1 << 25;
    /// The other end of the link is libsmcr: there is a way back to TCP.
    pub const RETURNS: u32 = 1 << 26;
    /// An urgent byte has arrived over the link, and nothing behind it was read.
    pub const URGENT: u32 = 1 << 27;
    /// SO_OOBINLINE, as far as an urgent byte over a link is concerned.
    pub const OOB_INLINE: u32 = 1 << 28;
    /// TCP_INQ: each message received says how much is left.
    pub const INQ: u32 = 1 << 29;
    /// Sending has moved to memory, and the peer was not seen to follow: payload of ours may still be on its way
    /// through TCP.
    pub const BEHIND: u32 = 1 << 30;
    /// The program took close-on-exec off one of its descriptors: the next program is to have it.
    pub const INHERITABLE: u32 = 1 << 31;

    /// Each has a bit of its own.
    const _: () = {
        let all = [
            CAREFUL,
            PINNED,
            NONBLOCK,
            SHUT_WR,
            SHUT_RD,
            SEEN,
            STAMPED,
            LINGER0,
            NODELAY,
            CORK,
            FORKED,
            SHADOWED,
            ERROR_PENDING,
            ENDED,
            UNSEEN,
            SWALLOWED,
            SHARED,
            MARKED,
            NOBODY,
            BLOCKS,
            PEEK_OFF,
            FROZEN,
            OWES,
            RAW,
            LINKED,
            UNASKED,
            RETURNS,
            URGENT,
            OOB_INLINE,
            INQ,
            BEHIND,
            INHERITABLE,
        ];
        let (mut seen, mut i) = (0, 0);
        while i < all.len() {
            assert!(seen & all[i] == 0);
            seen |= all[i];
            i += 1;
        }
    };
}

/// Bits of [`Sock::aside`]: who has it beside the library (`rendezvous::aside`).
pub mod aside {
    /// A relative that became another program.
    pub const RELATIVE: u8 = 1;
    /// A program that was started by posix_spawn or from a vfork child.
    pub const STARTED: u8 = 2;
    /// The peer did not come in time: it is not waited for again.
    pub const LATE: u8 = 4;
    /// A message has taken it, with what is unread, to another process (`rendezvous::bequest`).
    pub const PASSED: u8 = 8;
    /// The same, and the message is not sent yet.
    pub const SENDING: u8 = 16;
    /// File actions of posix_spawn have given it, with what is unread, to a program (`rendezvous::rest`).
    pub const GIVEN: u8 = 32;
}

/// Role values (`proto::page::socket::ROLE`).
pub mod role {
    /// connect().
    pub const CLIENT: u32 = 1;
    /// accept().
    pub const SERVER: u32 = 2;
    /// listen().
    pub const LISTENER: u32 = 3;
}

/// Values of [`Sock::step`]: how far discovery and proof have come.
pub mod step {
    /// Not begun.
    pub const IDLE: u32 = 0;
    /// Accepting side: announced on the socket.
    pub const ANNOUNCED: u32 = 1;
    /// Connecting side: an offer is on its way.
    pub const OFFERED: u32 = 2;
    /// Accepting side: the offer was taken, the nonce is on the socket. Connecting side: accepted.
    pub const NONCE: u32 = 3;
    /// The other end is proved.
    pub const PROVED: u32 = 4;
    /// Given up.
    pub const FAILED: u32 = 5;
    /// Accepting side: an offer is just being taken.
    pub const TAKING: u32 = 6;
    /// The same, and its memory is brought to the record: who closes waits for that.
    pub const ATTACHING: u32 = 7;
}
