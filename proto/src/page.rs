//! The family page: what a process shows of itself, and how `smcrctl` reads it.
//!
//! Every process that loads the library and opens an eligible socket keeps one memfd named
//! `smcr-family` open; forked children share it. It is found as `/proc/PID/fd/N` (readable by the
//! same uid and by root) and mapped read-only by `smcrctl`. The layout is plain little-endian data
//! at fixed offsets: a header, an array of process records, an array of socket records. A reader
//! takes offsets and sizes from the header, so that records may grow at their end.
//!
//! The library writes the fields as atomics through its own `repr(C)` mirror; `preload/src/family`
//! asserts at compile time that the offsets agree with the ones here.

pub mod link;

/// First 8 bytes of the page.
pub const MAGIC: [u8; 8] = *b"SMCRFAM\0";
/// Layout version; a reader shows what it can of a newer one (same major = same offsets).
pub const VERSION: u32 = 1;
/// Name given to memfd_create; shows as `/memfd:smcr-family (deleted)`.
pub const MEMFD_NAME: &str = "smcr-family";

/// Header offsets (bytes).
pub mod header {
    /// 8 bytes, [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32.
    pub const VERSION: usize = 8;
    /// u32: offset of the first process record.
    pub const PROC_OFF: usize = 12;
    /// u32: bytes from one process record to the next.
    pub const PROC_SIZE: usize = 16;
    /// u32: number of process records there is room for.
    pub const PROC_CAP: usize = 20;
    /// u32: offset of the first socket record.
    pub const SOCK_OFF: usize = 24;
    /// u32: bytes from one socket record to the next.
    pub const SOCK_SIZE: usize = 28;
    /// u32: number of socket records there is room for.
    pub const SOCK_CAP: usize = 32;
    /// u32: no socket record at or above this index was ever used.
    pub const SOCK_HIGH: usize = 36;
    /// u32: offset of the first link group record ([`super::link`]), 0 without any.
    pub const LINK_OFF: usize = 40;
    /// u32: bytes from one link group record to the next.
    pub const LINK_SIZE: usize = 44;
    /// u32: number of link group records there is room for.
    pub const LINK_CAP: usize = 48;
    /// u32: no process record at or above this index was ever used; 0 where the library does not say.
    pub const PROC_HIGH: usize = 52;
    /// Bytes reserved for the header.
    pub const LEN: usize = 4096;
}

/// Offsets in a process record (bytes).
pub mod process {
    /// u32: process id in the namespace of the process; 0 = free, [`ENDED`] = no process.
    pub const PID: usize = 0;
    /// In the place of a process id: what processes counted that have ended, and whose records serve
    /// others now. The start time is then a number that no other such record has.
    pub const ENDED: u32 = u32::MAX;
    /// u32: 1 while acceleration is on for this process, or [`APART`].
    pub const ENABLED: usize = 4;
    /// In the place of that: the process has a page of its own now, and is not to be shown from this one.
    pub const APART: u32 = 2;
    /// u64: start time in clock ticks since boot (field 22 of /proc/PID/stat).
    pub const START: usize = 8;
    /// 16 bytes: name of the program, NUL padded.
    pub const NAME: usize = 16;
    /// u32: version of the library, major << 16 | minor << 8 | patch.
    pub const LIB_VERSION: usize = 32;
    /// i32: descriptor of the pipe that wakes the process, so that it looks at the control page.
    pub const WAKE_FD: usize = 36;
    /// u64: inode of that pipe, 0 without one. Nothing is to be written to another file.
    pub const WAKE_INODE: usize = 40;
    /// u64 counters, in the order of [`super::COUNTERS`].
    pub const COUNTERS: usize = 64;
    /// u64 each: reason in the upper half, and in the lower how many connections ended on TCP for it;
    /// all zero where the list ends. The numbers make it readable whoever knows more reasons.
    pub const FALLBACKS: usize = 576;
    /// Entries of that list.
    pub const FALLBACK_CAP: usize = (LEN - FALLBACKS) / 8;
    /// Bytes of one record.
    pub const LEN: usize = 1024;
}

/// Offsets in a socket record (bytes).
pub mod socket {
    /// u32: see [`super::State`].
    pub const STATE: usize = 0;
    /// u32: see [`crate::reason::Reason`].
    pub const REASON: usize = 4;
    /// u32: index of the process record of the last user.
    pub const PROCESS: usize = 8;
    /// i32: descriptor number it was last used under.
    pub const FD: usize = 12;
    /// u64: the kernel's socket cookie, 0 while unknown.
    pub const COOKIE: usize = 16;
    /// u32: 0 unknown, 1 client (connect), 2 server (accept), 3 listener.
    pub const ROLE: usize = 24;
    /// u8: medium of the sending direction: 0 TCP, 1 shared memory, 2 RDMA.
    pub const TX_MEDIUM: usize = 28;
    /// u8: medium of the receiving direction.
    pub const RX_MEDIUM: usize = 29;
    /// u8: 2 from when RDMA carries the connection on, also after its end; else 0.
    pub const CARRIED: usize = 30;
    /// u32: bytes of the sending ring, 0 without one.
    pub const TX_RING: usize = 32;
    /// u32: bytes of the receiving ring, 0 without one.
    pub const RX_RING: usize = 36;
    /// u32: switches of the sending direction, odd = in memory.
    pub const TX_SWITCHES: usize = 40;
    /// u32: switches of the receiving direction, odd = in memory.
    pub const RX_SWITCHES: usize = 44;
    /// u32: pid of the peer process, 0 unknown.
    pub const PEER_PID: usize = 48;
    /// u32: uid of the peer process.
    pub const PEER_UID: usize = 52;
    /// u32: doorbell bytes sent on the TCP connection.
    pub const BELLS_TX: usize = 56;
    /// u32: doorbell bytes taken from the TCP connection.
    pub const BELLS_RX: usize = 60;
    /// u16: address family (AF_INET 2, AF_INET6 10), 0 while unknown.
    pub const FAMILY: usize = 64;
    /// u16: local port, host order.
    pub const LOCAL_PORT: usize = 66;
    /// u16: peer's port, host order.
    pub const PEER_PORT: usize = 68;
    /// 16 bytes: local address; IPv4 in the first four.
    pub const LOCAL_ADDR: usize = 72;
    /// 16 bytes: peer's address.
    pub const PEER_ADDR: usize = 88;
    /// u32: sends and receives before memory, or since it stays on TCP.
    pub const TCP_OPS: usize = 120;
    /// u32: the code of the Decline by which the peer refused SMC ([`crate::smc::diagnosis`]), 0 without one.
    pub const PEER_DIAGNOSIS: usize = 204;
    /// u64: payload bytes sent through memory (the producer cursor).
    pub const MEM_TX: usize = 256;
    /// u64: the peer's consumer cursor as last seen (MEM_TX minus this is in flight).
    pub const MEM_TX_SEEN: usize = 264;
    /// u64: payload bytes sent through TCP.
    pub const TCP_TX: usize = 272;
    /// u64: payload bytes received through memory (the consumer cursor).
    pub const MEM_RX: usize = 448;
    /// u64: the peer's producer cursor as last seen (this minus MEM_RX is unread).
    pub const MEM_RX_SEEN: usize = 456;
    /// u64: payload bytes received through TCP.
    pub const TCP_RX: usize = 464;
    /// Bytes of what the first libraries show; a record is at least this long.
    pub const PUBLIC_LEN: usize = 512;
    /// u64 for each of [`super::SIZES`]: sends while the direction was in memory, by what was asked.
    pub const TX_SIZES: usize = 896;
    /// The same: receives from memory, by what they got.
    pub const RX_SIZES: usize = 960;
    /// Bytes of the public part.
    pub const LEN: usize = 1024;
}

/// State of a socket record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// The record is not in use.
    Free = 0,
    /// On TCP, may be accelerated later.
    Tcp = 1,
    /// Proof and switch are under way.
    Negotiating = 2,
    /// At least one direction is in memory.
    Accelerated = 3,
    /// On TCP for good; the reason says why.
    Pinned = 4,
    /// A listening socket.
    Listening = 5,
    /// Ended; the record is about to be freed.
    Closed = 6,
}

impl State {
    /// The state with this number.
    pub const fn from_code(code: u32) -> Option<State> {
        Some(match code {
            0 => State::Free,
            1 => State::Tcp,
            2 => State::Negotiating,
            3 => State::Accelerated,
            4 => State::Pinned,
            5 => State::Listening,
            6 => State::Closed,
            _ => return None,
        })
    }

    /// One word for a column.
    pub const fn label(self) -> &'static str {
        match self {
            State::Free => "FREE",
            State::Tcp => "TCP",
            State::Negotiating => "NEGOTIATING",
            State::Accelerated => "ACCELERATED",
            State::Pinned => "PINNED",
            State::Listening => "LISTEN",
            State::Closed => "CLOSED",
        }
    }
}

/// Upper ends of the classes that sends and receives are counted in; the last has none.
pub const SIZES: [usize; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, usize::MAX];

/// The class of a size.
#[inline]
pub const fn size_class(bytes: usize) -> usize {
    // Two bits a class: the top bit of bytes - 1 is number 5 up to 64 bytes, 6 or 7 up to 256, and so on.
    let top = (bytes.saturating_sub(1) | 63).ilog2() as usize;
    let class = (top - 4) / 2;
    if class < SIZES.len() { class } else { SIZES.len() - 1 }
}

macro_rules! counters {
    ($($name:ident $label:literal $help:literal;)*) => {
        /// A counter of a process record; the number is its place in the array.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        #[allow(missing_docs)]
        pub enum Counter { $($name,)* }
        /// Name and meaning of each counter, in the order of the array (units in the text).
        pub const COUNTERS: &[(&str, &str)] = &[$(($label, $help),)*];
    };
}

counters! {
    Sockets "sockets" "eligible sockets made or accepted";
    Tracked "tracked" "eligible sockets in use now";
    Accelerated "accelerated" "connections that moved to memory at least once";
    SwitchTxMem "switch_tx_mem" "sending directions moved from TCP to memory";
    SwitchTxTcp "switch_tx_tcp" "sending directions moved from memory to TCP";
    SwitchRxMem "switch_rx_mem" "receiving directions that followed to memory";
    SwitchRxTcp "switch_rx_tcp" "receiving directions that followed to TCP";
    MemTxBytes "mem_tx_bytes" "payload bytes sent through memory";
    MemRxBytes "mem_rx_bytes" "payload bytes received through memory";
    TcpTxBytes "tcp_tx_bytes" "payload bytes sent through TCP by tracked connections";
    TcpRxBytes "tcp_rx_bytes" "payload bytes received through TCP by tracked connections";
    BellsTx "bells_tx" "doorbell bytes sent";
    BellsRx "bells_rx" "doorbell bytes taken off";
    EventWakes "event_wakes" "wakes of a peer's waiter through its eventfd";
    Sleeps "sleeps" "sleeps in the kernel of a waiter with connections in memory";
    SpinHits "spin_hits" "waits that polling ended";
    SpinMisses "spin_misses" "waits that polling did not end";
    RingFull "ring_full" "sends that found the ring full";
    Spills "spills" "sending directions moved to TCP because nobody could be woken";
    Announces "announces" "accepted connections announced to their peer";
    Offers "offers" "offers sent to a peer";
    OffersTaken "offers_taken" "offers of a peer taken";
    OffersRefused "offers_refused" "offers of a peer refused";
    ProofFailures "proof_failures" "proofs that failed";
    DiagQueries "diag_queries" "questions put to sock_diag";
    Memory "memory" "bytes of shared memory mapped now";
    HostileResets "hostile_resets" "connections reset because the peer broke the rules";
    Handovers "handovers" "connections returned to TCP for exec, a passed descriptor or drain";
    HandoverTimeouts "handover_timeouts" "hand-overs for which the peer did not answer in time";
    TooSmall "too_small" "sends larger than the whole ring";
    SpinTime "spin_us" "microseconds of processor time spent polling";
    WakesTimed "wakes_timed" "wakes of which the time from the ring to running is known";
    WakeTime "wake_us" "microseconds that these took, in all";
    TcpOps "tcp_ops" "sends and receives before memory, or of connections that stay on TCP";
    Tx64 "tx_64" "sends into memory of up to 64 bytes";
    Tx256 "tx_256" "sends of up to 256 bytes";
    Tx1K "tx_1k" "sends of up to 1 KiB";
    Tx4K "tx_4k" "sends of up to 4 KiB";
    Tx16K "tx_16k" "sends of up to 16 KiB";
    Tx64K "tx_64k" "sends of up to 64 KiB";
    Tx256K "tx_256k" "sends of up to 256 KiB";
    TxMore "tx_more" "sends of more";
    Rx64 "rx_64" "receives from memory of up to 64 bytes";
    Rx256 "rx_256" "receives of up to 256 bytes";
    Rx1K "rx_1k" "receives of up to 1 KiB";
    Rx4K "rx_4k" "receives of up to 4 KiB";
    Rx16K "rx_16k" "receives of up to 16 KiB";
    Rx64K "rx_64k" "receives of up to 64 KiB";
    Rx256K "rx_256k" "receives of up to 256 KiB";
    RxMore "rx_more" "receives of more";
    Rdma "rdma" "connections that RDMA carried";
    RdmaTxBytes "rdma_tx_bytes" "of mem_tx_bytes: through RDMA";
    RdmaRxBytes "rdma_rx_bytes" "of mem_rx_bytes: through RDMA";
    RdmaTx "rdma_sends" "of the sends into memory: those that RDMA carried";
    RdmaRx "rdma_receives" "of the receives from memory: those that RDMA carried";
    RingsKept "rings_kept" "rings kept until their sender waited itself (of a peer on its processor)";
}

impl Counter {
    /// Whether it says how much there is now, and not how much there was.
    pub const fn is_gauge(number: usize) -> bool {
        number == Counter::Tracked as usize || number == Counter::Memory as usize
    }
}

const _: () = assert!(process::COUNTERS + 8 * COUNTERS.len() <= process::FALLBACKS);
const _: () = assert!(Counter::Rx64 as usize == Counter::Tx64 as usize + SIZES.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_their_classes() {
        for (class, end) in SIZES.iter().enumerate() {
            assert_eq!(size_class(*end), class);
            assert_eq!(size_class(end.saturating_add(1)), (class + 1).min(SIZES.len() - 1));
        }
        assert_eq!(size_class(0), 0);
    }
}
