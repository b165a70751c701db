//! One direction of a socket's record: lock, cursors, ring, and what the engine keeps of it.
//!
//! Part of [`super::sock::Sock`], once for sending and once for receiving.

use super::lock::Lock;
use crate::layout::Dir;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// One direction's common part: lock, cursors, ring.
#[repr(C, align(64))]
pub struct Half {
    /// Sending: bytes ever put into the ring. Receiving: bytes ever taken out.
    pub cursor: AtomicU64,
    /// The other end's cursor as last seen and checked.
    pub seen: AtomicU64,
    /// Payload bytes through TCP.
    pub tcp: AtomicU64,
    /// Bytes of the kernel's stream in this direction: payload, proof and doorbells.
    pub kernel: AtomicU64,
    /// The part in the region, null without one.
    pub dir: AtomicPtr<Dir>,
    /// First byte of the ring, at the size below.
    pub ring: AtomicPtr<u8>,
    /// See [`Lock`].
    pub lock: Lock,
    /// Threads inside a kernel call that sends or consumes.
    pub in_kernel: AtomicU32,
    /// Sending: switches made. Receiving: switches passed. Odd = memory.
    pub switches: AtomicU32,
    /// Sending: ring position that offset 0 of the ring stands for.
    pub base: AtomicU64,
    /// Sending: doorbells on their way, and bit 31 while none may be sent. Receiving: not 0 while bytes that were taken up
    /// (`engine::take_up`) are to come again: nobody reads what is behind them. Written with the lock held.
    pub gate: AtomicU32,
    /// How far the two ends are with the wide ring (`engine::bulk`).
    pub wide: AtomicU32,
    /// Sending: operations until the next attempt to switch. Receiving: see `engine::beside::give_way`.
    pub hold: AtomicU32,
    /// Receiving: how the connection has ended as found in the kernel (`engine::end`), 0 not. Sending: when the peer last
    /// called it to memory (`engine::called`).
    pub end: AtomicU32,
    /// Sending: ring position at which the consumer's cursor is looked at again. Receiving: how much had been sent at the last
    /// read beside idle sets (`engine::idle_sets`).
    pub mark: AtomicU64,
    /// Bytes until the next flip in flip mode.
    pub flip: AtomicI64,
    /// Ring size in effect. Receiving: the last one claimed that was found sound.
    pub size: AtomicU32,
    /// Sending: the ring was found full (grow when it is empty), and whether its reader comes seldom (`engine::seldom`). Receiving: how often a reader in blocking mode was called for
    /// nothing (`engine::wait::may_have_been_called`).
    pub wants_more: AtomicU32,
    /// Receiving: tick from which the kernel's socket is to be looked at again. Sending: how often the ring
    /// was found full.
    pub looked: AtomicU64,
    /// Spin budget learned for waits in this direction (ticks).
    pub spin: AtomicU32,
    /// Receiving: last doorbell word that a waiter of ours stored. Sending: what large copies cost (`engine::pace`).
    pub waiter: AtomicU32,
    /// Sending: when the pages of an idle ring were last given back, in s. Receiving: where it last looked for a moment whether more
    /// comes (`engine::seldom`).
    pub released: AtomicU32,
    /// Sending: the ring has pages other than the header's (`engine::near`).
    pub deep: AtomicU32,
    /// A thread has left a kernel call: what that has moved may not be counted in `kernel` (`engine::within`).
    pub lost: AtomicU32,
    /// Sending: the kernel's Nagle is off although the program's is on (`engine::shadow`). Receiving: who has started a program
    /// with it (`rendezvous::aside`).
    pub nagle: AtomicU32,
    /// Sending: where and since when the ring was found full (`engine::stuck`), 0 while it was not. Receiving: two counts of reads
    /// in vain (`engine::idle_sets`).
    pub full: AtomicU32,
    /// Receiving: held by the thread that gives the connection away (`rendezvous::way_out`). Sending: unused.
    pub leaving: Lock,
}

const _: () = assert!(size_of::<Half>() == 192);

impl Half {
    /// The direction's part of the region.
    #[inline]
    pub fn dir(&self) -> Option<&'static Dir> {
        let p = self.dir.load(Acquire); // pairs with the Release that published the mapping
        // SAFETY: see `Sock::region`.
        (!p.is_null()).then(|| unsafe { &*p })
    }

    /// The stream begins anew, on TCP for good. Lock and gate stay, which others may be at, and so does what counts threads.
    pub fn forget_stream(&self) {
        self.dir.store(std::ptr::null_mut(), Release);
        for n in [&self.cursor, &self.seen, &self.tcp, &self.kernel, &self.mark, &self.looked] {
            n.store(0, Relaxed);
        }
        for w in [&self.switches, &self.end, &self.wants_more, &self.hold, &self.nagle, &self.full] {
            w.store(0, Relaxed);
        }
    }
}
