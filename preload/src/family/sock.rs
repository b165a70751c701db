//! One TCP socket that may be accelerated: its record in the family page.
//!
//! The first 512 bytes agree with `proto::page::socket`, so that smcrctl can read them; what the
//! engine alone needs lies between and behind. Every field is an atomic: the record is used by all
//! threads of all processes of the family. Cursors are private to the family: what the peer sees is
//! a copy that we publish, never what we compute with.

use crate::layout::RegionHeader;
use crate::log;
use crate::sys::thread;
use smcr_proto::page::{self, State, socket as field};
use smcr_proto::reason::Reason;
use std::mem::offset_of;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

pub use super::half::Half;
pub use super::values::{aside, flag, medium, role, step};

/// The record.
#[repr(C, align(64))]
pub struct Sock {
    /// [`State`].
    pub state: AtomicU32,
    /// [`Reason`].
    pub reason: AtomicU32,
    /// Process record of the last user.
    pub process: AtomicU32,
    /// Descriptor of the last use.
    pub fd: AtomicI32,
    /// SO_COOKIE, 0 unknown.
    pub cookie: AtomicU64,
    /// [`role`].
    pub role: AtomicU32,
    /// Medium of sending.
    pub tx_medium: AtomicU8,
    /// Medium of receiving.
    pub rx_medium: AtomicU8,
    /// [`medium::RDMA`] from when a link carries it on, also after its end.
    pub carried: AtomicU8,
    /// [`aside`] bits: it stays on TCP for programs that may use it.
    pub aside: AtomicU8,
    /// Ring bytes.
    pub tx_ring: AtomicU32,
    /// Ring bytes.
    pub rx_ring: AtomicU32,
    /// Copy of `tx.switches`.
    pub tx_switches: AtomicU32,
    /// Copy of `rx.switches`.
    pub rx_switches: AtomicU32,
    /// Pid of the peer.
    pub peer_pid: AtomicU32,
    /// Uid of the peer.
    pub peer_uid: AtomicU32,
    /// Doorbells sent.
    pub bells_tx: AtomicU32,
    /// Doorbells taken off.
    pub bells_rx: AtomicU32,
    /// Family and ports: packed as four u16.
    pub names: [AtomicU16; 4],
    /// Local address.
    pub local: [AtomicU64; 2],
    /// Peer's address.
    pub remote: [AtomicU64; 2],
    // -- from here on the engine's own
    /// [`flag`] bits.
    pub flags: AtomicU32,
    /// Processes of the family that hold it.
    pub holders: AtomicU32,
    /// Goes up when the record is taken into use, and when it is given back.
    pub generation: AtomicU32,
    /// Free list.
    pub next_free: AtomicU32,
    /// Operations seen on TCP.
    pub ops: AtomicU32,
    /// Operation count at which rendezvous looks again.
    pub next_ops: AtomicU32,
    /// Rendezvous state (`rendezvous::step`).
    pub step: AtomicU32,
    /// The thread that works on the rendezvous, 0 none.
    pub stepping: AtomicU32,
    /// Tick before which rendezvous does not look again.
    pub next_tick: AtomicU64,
    /// Operation count at which rendezvous gives up; from the proof on, the count at which the connecting side had it.
    pub deadline: AtomicU64,
    /// Failed attempts.
    pub tries: AtomicU32,
    /// Peer slot + 1 (`transport::peers`), 0 none.
    pub peer: AtomicU32,
    /// The mapped region, null without one.
    pub region: AtomicPtr<RegionHeader>,
    /// Nonce that goes into the stream.
    pub nonce: [AtomicU64; 2],
    /// With [`Sock::heir`]: 1 where that is a relative that went apart ([`super::apart`]), not a program.
    pub apart: AtomicU32,
    /// KiB that had gone over TCP when the connecting side last looked at the peer's socket; wraps.
    pub looked_kib: AtomicU32,
    /// Bytes over TCP at which rendezvous looks, whatever the operations are.
    pub next_bytes: AtomicU64,
    /// Goes up before and after connect(2) with AF_UNSPEC: a call that waited across that has nothing to do with the next connection.
    pub disconnects: AtomicU32,
    /// Code of the peer's Decline, 0 without one. For smcrctl: it stands in what was padding, which is 0 in records of older libraries.
    pub peer_diagnosis: AtomicU32,
    /// Sending half, at 256.
    pub tx: Half,
    /// Receiving half, at 448.
    pub rx: Half,
    /// SO_RCVTIMEO in ns, 0 none.
    pub recv_timeout: AtomicU64,
    /// SO_SNDTIMEO in ns, 0 none.
    pub send_timeout: AtomicU64,
    /// SO_RCVLOWAT of the program.
    pub low_water: AtomicU32,
    /// With [`flag::OWES`]: the annex is sent first, from here on.
    pub annex_from: AtomicU32,
    /// SO_ERROR that the program has not fetched.
    pub error: AtomicU32,
    /// SO_RCVBUF and SO_SNDBUF of the program where it set them, else 0.
    pub buffer_limit: AtomicU32,
    /// Nonce to be seen on the peer's socket (its SO_MAX_PACING_RATE). Of a connection over a link: reads of a program that was not seen
    /// to wait, and that found nothing (`engine::linked`).
    pub rate_nonce: AtomicU64,
    /// SO_MAX_PACING_RATE before we used it.
    pub rate_before: AtomicU64,
    /// The peer's socket cookie (client side). While the names are not known, which lesson the port has (`rendezvous::worth`).
    /// On the accepting side, from the nonce on, when it awaits a proof (`engine::begin`).
    pub peer_cookie: AtomicU64,
    /// Threads that wait for room in the ring.
    pub writers: AtomicU32,
    /// Threads that wait for data in a blocking call, poll or select.
    pub readers: AtomicU32,
    /// Hooked epoll sets that have it as a member.
    pub sets: AtomicU32,
    /// Those of them in which its waiter may be one that we never see, and a bit (`super::sets`).
    pub unseen: AtomicU32,
    /// With [`flag::OWES`]: the ring is sent again from here on. Of a listener: seconds of TCP_DEFER_ACCEPT that the kernel's does not
    /// have (`rendezvous::deferred`).
    pub owed: AtomicU64,
    /// Tick at which a part of the proof was first seen; 0 none.
    pub proof_since: AtomicU64,
    /// Number of the connection in `link`, plus 1; 0 without one.
    pub link: AtomicU32,
    /// Where it ends.
    pub annex_to: AtomicU32,
    /// Processes of the family that hold it: a bit for each process record.
    pub held_by: [AtomicU64; super::PROC_CAP / 64],
    /// SO_PEEK_OFF of the program + 1, while the kernel's is off; 0 none.
    pub peek_off: AtomicU32,
    /// Number of what other programs have a copy of, of what was taken up (`engine::heirs`); 0 none. Written with the receiving lock held.
    pub shared: AtomicU32,
    /// Tick at which the present step of the rendezvous began.
    pub since: AtomicU64,
    /// Of a connection that exec left to another program: the process that may take it over; 0 none.
    pub heir: AtomicU32,
    /// Of one that this program has from the one before exec: the process it was left to, while others may
    /// hold it of whom this family does not know; else 0.
    pub legacy: AtomicU32,
    /// What was received when a full ring was last looked at, and how long it is no more (`engine::stuck`).
    pub rested: AtomicU64,
    /// Sends while in memory by size, changed under the sending lock; then receives, under the other.
    pub sizes: [[AtomicU64; page::SIZES.len()]; 2],
}

const _: () = assert!(size_of::<Sock>() == 1024);
const _: () = assert!(offset_of!(Sock, cookie) == field::COOKIE);
const _: () = assert!(offset_of!(Sock, tx_medium) == field::TX_MEDIUM);
const _: () = assert!(offset_of!(Sock, carried) == field::CARRIED);
const _: () = assert!(offset_of!(Sock, ops) == field::TCP_OPS);
const _: () = assert!(offset_of!(Sock, tx_ring) == field::TX_RING);
const _: () = assert!(offset_of!(Sock, peer_pid) == field::PEER_PID);
const _: () = assert!(offset_of!(Sock, bells_tx) == field::BELLS_TX);
const _: () = assert!(offset_of!(Sock, names) == field::FAMILY);
const _: () = assert!(offset_of!(Sock, local) == field::LOCAL_ADDR);
const _: () = assert!(offset_of!(Sock, remote) == field::PEER_ADDR);
const _: () = assert!(offset_of!(Sock, peer_diagnosis) == field::PEER_DIAGNOSIS);
const _: () = assert!(offset_of!(Sock, tx) == field::MEM_TX);
const _: () = assert!(offset_of!(Sock, rx) == field::MEM_RX);
const _: () = assert!(offset_of!(Sock, sizes) == field::TX_SIZES);
const _: () = assert!(field::RX_SIZES == field::TX_SIZES + 8 * page::SIZES.len());
const _: () = assert!(field::MEM_TX_SEEN == field::MEM_TX + offset_of!(Half, seen));
const _: () = assert!(field::TCP_RX == field::MEM_RX + offset_of!(Half, tcp));
const _: () = assert!(medium::TCP == 0 && State::Free as u32 == 0);
const _: () = assert!(page::socket::PUBLIC_LEN <= size_of::<Sock>());

impl Sock {
    /// Makes a record that was just taken ready for a new socket, held by nobody yet but the caller. All that is not named here
    /// is 0 in a fresh record.
    pub fn reset(&self) {
        let generation = self.generation.load(Relaxed);
        // A loop that stays one: each connection comes by, and what it costs is code that is not in the cache.
        for line in std::hint::black_box(self.lines()) {
            line.iter().for_each(|w| w.store(0, Relaxed));
        }
        self.rate_before.store(u64::MAX, Relaxed);
        self.low_water.store(1, Relaxed);
        self.holders.store(1, Relaxed);
        self.generation.store(generation.wrapping_add(1), Relaxed);
        self.state.store(State::Tcp as u32, Release);
    }

    fn lines(&self) -> &[[AtomicU64; 8]] {
        // SAFETY: the record is that long and aligned, and all of its fields are atomics, for which any bytes are valid; so it may be
        // written while others look at it.
        unsafe { &*std::ptr::from_ref(self).cast::<[[AtomicU64; 8]; size_of::<Sock>() / 64]>() }
    }

    /// Takes the record back to where a fresh socket stands, for connect(2) after a disconnect. What
    /// belongs to the descriptor stays.
    pub fn start_again(&self) {
        // That the socket shows the option is to be taken back (`rendezvous::mark`).
        let stays = flag::NONBLOCK | flag::SEEN | flag::UNSEEN | flag::FORKED | flag::MARKED | flag::NOBODY;
        let (sets, unseen) = (self.sets.load(Relaxed), self.unseen.load(Relaxed));
        let (flags, holders) = (self.flags.load(Relaxed) & stays, self.holders.load(Relaxed));
        let (process, fd) = (self.process.load(Relaxed), self.fd.load(Relaxed));
        let disconnects = self.disconnects.load(Relaxed);
        let limit = self.buffer_limit.load(Relaxed);
        // Threads that are in a call on it come out of it in a moment.
        let counts = [&self.tx.in_kernel, &self.rx.in_kernel, &self.readers, &self.writers];
        let in_calls = counts.map(|n| n.load(Relaxed));
        let held: [u64; super::PROC_CAP / 64] = std::array::from_fn(|i| self.held_by[i].load(Relaxed));
        self.reset();
        self.generation.fetch_sub(1, Relaxed);
        for (w, v) in self.held_by.iter().zip(held) {
            w.store(v, Relaxed);
        }
        for (n, v) in counts.iter().zip(in_calls) {
            n.store(v, Relaxed);
        }
        self.sets.store(sets, Relaxed);
        self.unseen.store(unseen, Relaxed);
        self.holders.store(holders, Relaxed);
        self.process.store(process, Relaxed);
        self.fd.store(fd, Relaxed);
        self.disconnects.store(disconnects, Relaxed);
        self.buffer_limit.store(limit, Relaxed);
        self.flags.store(flags, Release);
        self.regard_sets();
    }

    /// Counts a send or receive of this size. The caller holds the lock of the direction, so that a
    /// plain load and store are enough.
    #[inline]
    pub fn count_size(&self, way: usize, bytes: usize) {
        let class = if bytes <= page::SIZES[0] { 0 } else { page::size_class(bytes) };
        let n = &self.sizes[way][class];
        n.store(n.load(Relaxed) + 1, Relaxed);
    }

    /// The program ends this connection and may begin another one: calls that wait end.
    pub fn is_disconnected(&self) {
        self.disconnects.fetch_add(1, Relaxed); // who sees anything of the next one has it by the kernel's lock on the socket
    }

    /// Whether that has been done since `disconnects` was read.
    #[inline]
    pub fn is_another(&self, since: u32) -> bool {
        self.disconnects.load(Relaxed) != since
    }

    /// Which connection the record stands for: another number once it is another's, or its program has disconnected it.
    #[inline]
    pub fn connection(&self) -> u64 {
        u64::from(self.generation.load(Relaxed)) << 32 | u64::from(self.disconnects.load(Relaxed))
    }

    /// Whether a flag is set.
    #[inline]
    pub fn has(&self, f: u32) -> bool {
        self.flags.load(Relaxed) & f != 0
    }

    /// Sets flags.
    pub fn set(&self, f: u32) {
        self.flags.fetch_or(f, AcqRel);
    }

    /// Clears flags.
    pub fn clear(&self, f: u32) {
        self.flags.fetch_and(!f, AcqRel);
    }

    /// Sets or clears a flag.
    pub fn put(&self, f: u32, on: bool) {
        if on { self.set(f) } else { self.clear(f) }
    }

    /// Notes why it is on TCP.
    pub fn note(&self, r: Reason) {
        if log::tells_decisions() {
            self.tell(r);
        }
        self.reason.store(r.code(), Relaxed);
    }

    /// Looks repeat what they find. Of a process that has restricted itself each call may be the end.
    #[cold]
    fn tell(&self, r: Reason) {
        let is_said = matches!(r, Reason::None | Reason::NotWorthIt | Reason::Seccomp) || self.reason.load(Relaxed) == r.code();
        if !is_said {
            log::debug!(target: "smcr::reason", fd = self.fd.load(Relaxed), reason = r.label(), "on TCP");
        }
    }

    /// Sets the state for smcrctl.
    pub fn set_state(&self, s: State) {
        self.state.store(s as u32, Relaxed);
    }

    /// The region's header.
    #[inline]
    pub fn region(&self) -> Option<&'static RegionHeader> {
        let p = self.region.load(Acquire); // pairs with the Release that published the mapping
        // SAFETY: a non-null pointer is a mapping that stays until `engine::close` has seen no user;
        // all fields are atomics.
        (!p.is_null()).then(|| unsafe { &*p })
    }

    /// The same, where rings and annex lie around it: not where page and rings are a link's, for as long as it has them.
    #[inline]
    pub fn region_of_peers(&self) -> Option<&'static RegionHeader> {
        // Acquire: as in `link::slot`; both locks are held where it is given up.
        self.region().filter(|_| self.link.load(Acquire) == 0)
    }

    /// What has gone through TCP, both ways, in bytes.
    #[inline]
    pub fn carried(&self) -> u64 {
        self.tx.tcp.load(Relaxed) + self.rx.tcp.load(Relaxed)
    }

    /// From here on [`Sock::kib_since_look`] counts.
    pub fn count_kib(&self) {
        self.looked_kib.store((self.carried() >> 10) as u32, Relaxed);
    }

    /// KiB that have gone through TCP since [`Sock::count_kib`].
    pub fn kib_since_look(&self) -> u32 {
        ((self.carried() >> 10) as u32).wrapping_sub(self.looked_kib.load(Relaxed))
    }

    /// Whether it is an end of a connection; not a listener, nor a socket that is neither yet.
    pub fn is_connection(&self) -> bool {
        matches!(self.role.load(Relaxed), role::CLIENT | role::SERVER)
    }

    /// Whether a link is the other end of the rings.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.has(flag::LINKED)
    }

    /// Whether nobody but the calling thread can use the record now: the process has one thread, and no
    /// other process was ever given the socket.
    #[inline(always)]
    pub fn is_alone(&self) -> bool {
        !self.has(flag::FORKED) && thread::is_only()
    }

    /// Whether a program that was started with it may use it, of which this family would not know.
    #[inline]
    pub fn is_aside(&self) -> bool {
        self.aside.load(Relaxed) != 0
    }

    /// Whether it can leave its link for TCP.
    #[inline]
    pub fn can_return(&self) -> bool {
        const BOTH: u32 = flag::LINKED | flag::RETURNS;
        self.flags.load(Relaxed) & BOTH == BOTH
    }

    /// Whether sending goes through memory now.
    #[inline]
    pub fn tx_in_memory(&self) -> bool {
        self.tx_medium.load(Acquire) != medium::TCP // pairs with the Release of the switch
    }

    /// Somebody may have died with a lock of it.
    pub fn bury_locks(&self) {
        self.tx.lock.bury();
        self.rx.lock.bury();
        self.rx.leaving.bury();
    }

    /// Whether receiving goes through memory now.
    #[inline]
    pub fn rx_in_memory(&self) -> bool {
        self.rx_medium.load(Acquire) != medium::TCP // pairs with the Release of the switch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_taken_again_is_as_a_fresh_one() {
        // SAFETY: atomics, for which all zero is a value.
        let (fresh, used): (Box<Sock>, Box<Sock>) = unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        for w in used.lines().as_flattened() {
            w.store(u64::MAX, Relaxed);
        }
        used.generation.store(6, Relaxed);
        fresh.generation.store(6, Relaxed);
        for s in [&fresh, &used] {
            s.reset();
            assert_eq!((s.generation.load(Relaxed), s.holders.load(Relaxed), s.low_water.load(Relaxed)), (7, 1, 1));
            assert_eq!((s.rate_before.load(Relaxed), s.state.load(Relaxed)), (u64::MAX, State::Tcp as u32));
        }
        let differ = |(a, b): &(&AtomicU64, &AtomicU64)| a.load(Relaxed) != b.load(Relaxed);
        assert_eq!(fresh.lines().as_flattened().iter().zip(used.lines().as_flattened()).filter(differ).count(), 0);
        assert!(!used.tx_in_memory() && !used.rx_in_memory() && !used.tx.lock.is_taken());
    }

    #[test]
    fn a_socket_that_was_disconnected_shows_the_option_still() {
        // SAFETY: as above.
        let s: Box<Sock> = unsafe { Box::new(std::mem::zeroed()) };
        s.reset();
        s.set(flag::MARKED | flag::NOBODY | flag::UNASKED | flag::PINNED);
        s.role.store(role::CLIENT, Relaxed);
        s.start_again();
        let kept = [flag::MARKED, flag::NOBODY, flag::UNASKED, flag::PINNED].map(|f| s.has(f));
        assert_eq!((kept, s.role.load(Relaxed)), ([true, true, false, false], 0));
    }
}
