//! What lies in the memory that two peers share: the header of a region, in whose page each ring has some bytes.
//!
//! Plain atomics at fixed places; `transport::region` makes and maps regions, `transport::ring` copies.
//! Either end may be hostile: whatever is read from here is a claim, checked by the reader. Each line of
//! 64 bytes has one writer, except the two wake words. Processors fetch lines in pairs of 128 bytes, so
//! that the two cursors, which are written at every message, each lie in a pair without anything that
//! the other end uses as often.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a page with a header in it.
pub const HEADER: usize = 4096;

/// Bytes of either ring in the page of the header: ring 0 begins behind the header, ring 1 ends before it.
pub const NEAR: [usize; 2] = [HEADER - size_of::<RegionHeader>() - NEAR_1, NEAR_1];
const NEAR_1: usize = 1408;

/// One direction. The producer owns lines 0, 1 and 7, the consumer lines 2 and 5.
#[repr(C, align(128))]
pub struct Dir {
    /// Bytes ever put in. Release by the producer, Acquire by the consumer.
    pub head: AtomicU64,
    /// Position that stands for offset 0; changes only while the ring is empty.
    pub base: AtomicU64,
    /// Ring size in effect, a power of two, and [`size`] bits; changes only while the ring is empty, but for [`size::WISH`].
    pub size: AtomicU32,
    /// CPU that the producer last ran on.
    pub producer_cpu: AtomicU32,
    /// Tick at which the producer last rang the consumer, for its statistics.
    pub rung_at: AtomicU64,
    /// Over a link: position behind an urgent byte; 0 none.
    pub urgent: AtomicU64,
    /// Over a link: the urgent byte that has arrived, with [`oob`] bits.
    pub oob: AtomicU32,
    _p0: [AtomicU32; 5],
    /// Kernel stream position of switch number n, at n modulo [`RECORDS`].
    at_kernel: [AtomicU64; RECORDS],
    /// Ring position of switch number n.
    at_ring: [AtomicU64; RECORDS],
    /// Bytes ever taken out. Release by the consumer, Acquire by the producer.
    pub tail: AtomicU64,
    /// CPU that the consumer last ran on.
    pub consumer_cpu: AtomicU32,
    _p1: [AtomicU32; 29],
    /// Doorbell word for arriving data: the consumer arms, the producer rings (`engine::bell`).
    pub bell: AtomicU32,
    /// Doorbell bytes that the producer has put into the TCP stream.
    pub bells: AtomicU32,
    _p2: [AtomicU64; 7],
    /// Switches that the consumer has followed.
    pub passed: AtomicU32,
    /// [`ctl`] bits.
    pub ctl: AtomicU32,
    /// Position at which the consumer froze, for a return that it asked for.
    pub frozen: AtomicU64,
    /// Tick at which the consumer forked while it held the connection, 0 = it is in one process: its child
    /// can wake only those of the producer's waiters that were known by then.
    pub forked_at: AtomicU64,
    /// Bytes that the consumer has ever taken off the kernel's stream. Release, Acquire by the producer once the
    /// consumer is dead (`engine::end`).
    pub taken: AtomicU64,
    /// Bytes in the annex, which come before what is unread in the ring, for a return that the consumer asks for.
    pub annex: AtomicU64,
    /// What the producer posts (`transport::posts`): the consumer's token, and above it its waiter.
    pub post: AtomicU64,
    /// Over a link: below this position the link need not hear how far the consumer has come (`link::calm`).
    pub quiet: AtomicU64,
    _p3: AtomicU64,
    /// Doorbell word for space: the producer waits, the consumer rings.
    pub space: AtomicU32,
    _p4: [AtomicU32; 15],
    /// Switches that the producer has made; odd = the stream goes on in the ring.
    pub switch: AtomicU32,
    /// [`fin`] bits.
    pub fin: AtomicU32,
    _p5: [AtomicU64; 7],
}

/// Switches that a producer may be ahead of its consumer, at most: one to memory that was not
/// followed yet and one back.
const RECORDS: usize = 4;

impl Dir {
    /// Kernel stream position of switch number `n`.
    pub fn at_kernel(&self, n: u32) -> &AtomicU64 {
        &self.at_kernel[n as usize % RECORDS]
    }

    /// Ring position of switch number `n`.
    pub fn at_ring(&self, n: u32) -> &AtomicU64 {
        &self.at_ring[n as usize % RECORDS]
    }
}

/// Bits of [`Dir::fin`], set by the producer before it tells the kernel.
pub mod fin {
    /// shutdown(SHUT_WR) or an orderly close: nothing follows.
    pub const WRITE: u32 = 1;
    /// The producer's end is closed altogether.
    pub const CLOSED: u32 = 2;
    /// It closed with unread data: the connection is reset.
    pub const RESET: u32 = 4;
    /// SO_LINGER zero: an exit without close resets.
    pub const LINGER0: u32 = 8;
    /// What says that an end has come.
    pub const ENDS: u32 = WRITE | CLOSED | RESET;
    /// Towards a link: the program's end is given up, nobody looks at the rings any more.
    pub const LEFT: u32 = 16;
    /// The same: both directions had ended in order when it closed, and what it has left unread resets nothing.
    pub const OVER: u32 = 32;
    /// shutdown of both: what comes for it from here on, TCP answers with a reset.
    pub const BOTH: u32 = 64;

    /// What a close adds towards a link: `over` where both directions had ended.
    pub fn of_unread(is_unread: bool, over: bool) -> u32 {
        match over {
            true => OVER,
            false if is_unread => RESET,
            false => 0,
        }
    }
}

/// Bits of [`Dir::size`] above the size.
pub mod size {
    /// The producer would like to go on in the wide ring.
    pub const WISH: u32 = 1 << 31;
    /// What is unread lies in the wide ring (`transport::wide`), each byte at its position modulo what is swept over of it, or, where
    /// the size is the wide ring's own, modulo that.
    pub const WIDE: u32 = 1 << 30;
}

/// Bits of [`Dir::ctl`], set by the consumer, except where the producer is named.
pub mod ctl {
    /// Reads are careful: the producer may switch to memory.
    pub const READY: u32 = 1;
    /// The consumer asks the producer to go on through TCP and to send again what is unread.
    pub const RETURN: u32 = 2;
    /// The consumer stays on TCP.
    pub const PINNED: u32 = 4;
    /// The producer has taken the request and is about to switch; the consumer can't take it back.
    pub const TAKEN: u32 = 8;
    /// The producer is about to mark a switch to memory; a wish that comes now is behind it.
    pub const MARKING: u32 = 16;
    /// The consumer asks the producer, which has gone to TCP by itself, to switch to memory: what it has read ahead meanwhile
    /// is to be sent again (`engine::take_up`), and to stay there until it is asked for that. The consumer clears it with its
    /// request, the producer if it can't come.
    pub const COME: u32 = 32;
    /// The consumer has mapped the wide ring.
    pub const WIDE: u32 = 64;
    /// The consumer waits for the proof in the stream, and takes it at once (`engine::begin`).
    pub const AWAITS: u32 = 128;
    /// The consumer, which is the connecting side, keeps its proof for payload to go with, or until it is awaited.
    pub const KEEPS: u32 = 256;
}

/// Bits of [`Dir::oob`] above the byte.
pub mod oob {
    /// Nobody has fetched it.
    pub const UNREAD: u32 = 0x100;
}

/// Values of [`Dir::bell`] and [`Dir::space`] besides the names of waiters; `engine::bell` says what they
/// do.
pub mod word {
    /// Consumer asks for a byte on the TCP connection.
    pub const ARMED: u32 = 1;
    /// Producer is about to send it.
    pub const RINGING: u32 = 2;
    /// Producer has sent it.
    pub const RUNG: u32 = 3;
    /// Consumer asks for a byte at every arrival: its waiter may be edge-triggered and unseen. Of [`Dir::space`] of a link's connection:
    /// whoever sleeps may wait for room.
    pub const EACH: u32 = 4;
    /// The other end of this ring is a link of this process (`link`): tell it.
    pub const LINK: u32 = 5;
    /// Of [`Dir::space`], in what one program has left to the next: there is more than the ring holds (`engine::refill`).
    pub const MORE: u32 = 6;
}

/// The header page.
#[repr(C, align(128))]
pub struct RegionHeader {
    /// Name and version of the layout.
    pub magic: AtomicU64,
    /// Set-up, written by the accepting side: [`setup`].
    pub server: AtomicU32,
    /// Of a connection over a link, in its handshake: the thread that has it. An exec ends that, and not the process.
    pub keeper: AtomicU32,
    /// Nonce that the connecting side must put into the stream.
    pub nonce: [AtomicU64; 2],
    /// Of a connection over a link, in its handshake: how far that is, for a forked child that has to go on with it
    /// (`rendezvous::smc::shake::will`).
    pub will: [AtomicU64; 2],
    _gap: [AtomicU64; 10],
    /// 0: connecting side to accepting side; 1: back.
    pub dirs: [Dir; 2],
}

/// Values of [`RegionHeader::server`].
pub mod setup {
    /// The nonce is on the socket and in the header.
    pub const NONCE: u32 = 1;
    /// The connecting side is proved.
    pub const PROVED: u32 = 2;
    /// Refused.
    pub const REFUSED: u32 = 3;
    /// The connecting side is about to put the nonce into the stream.
    pub const COMMITTED: u32 = 4;
    /// No connection of two: what one program has left to the next (`rendezvous::rest`).
    pub const REST: u32 = 5;
    /// The same of one with which others go on as well, where it came by a link.
    pub const COPY: u32 = 6;
    /// The same of any other: each byte is for the first of them that reads it (`engine::heirs`).
    pub const SHARE: u32 = 7;

    /// Whether it is one of these.
    pub const fn is_left(setup: u32) -> bool {
        matches!(setup, REST | COPY | SHARE)
    }
}

const _: () = assert!(size_of::<Dir>() == 512);
const _: () = assert!(offset_of!(Dir, at_kernel) == 64 && offset_of!(Dir, tail) == 128 && offset_of!(Dir, bell) == 256);
const _: () = assert!(offset_of!(Dir, passed) == 320 && offset_of!(Dir, space) == 384 && offset_of!(Dir, switch) == 448);
const _: () = assert!(offset_of!(RegionHeader, dirs) == 128);
const _: () = assert!(NEAR[0] == 1536 && NEAR_1.is_multiple_of(align_of::<RegionHeader>()));
