//! Faults on demand: delays, failures and death at the steps of the transport and of its protocols. Only in
//! the build for tests (feature `faults`); in every other one these are empty functions that leave no code.
//!
//! `SMCR_FAULTS=SEED,DELAY,FAIL[,STEP,N]`: DELAY and FAIL are chances in 100,000 for each pass of a step; at
//! the Nth pass of STEP (a number of [`Step`]) the process kills itself. The tests draw them from a seed that
//! they print (`tests/tests/faults.rs`, docs/faults.md). `SMCR_FAIL=STEP,CHANCE[,AFTER]`: that step fails so often, once it has
//! been passed AFTER times, and no other fails. `SMCR_HOLD=STEP,MS`: each pass of STEP takes so long, for what happens when something
//! else comes in between. `SMCR_FORGE` is what a hostile RDMA peer sends (`link::forge`).
//! With `SMCR_STRANGERS=1` every peer is taken for one of another user (`transport::wakes`).
//! With `SMCR_LENIENT=1` every sleeping set has its rings kept (`engine::lenient`), wherever sender and sleeper run.
//! `SMCR_FAULT_COUNTS=FILE`: for each step, how often it was passed and what was done there, by all processes that name this
//! file (`tests/src/fired.rs` reads it, also when they are dead): u64 of `Event`, in its order.

/// Where something can happen. The numbers are the order here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Client: a region was made.
    RegionMade,
    /// Client: the offer went out, the record does not know it yet.
    OfferSent,
    /// Server: the region was mapped.
    RegionAdopted,
    /// Server: the nonce is on the socket, the header does not say so yet.
    NonceOnSocket,
    /// Client: the nonce was seen on the peer's socket.
    Verified,
    /// Client: the switch is marked, the proof is to follow.
    SwitchMarked,
    /// Client: the proof is in the stream.
    ProofSent,
    /// Server: the proof was taken.
    ProofTaken,
    /// Receiver: it has followed to memory, the sender does not know.
    FollowedToMemory,
    /// Sender: half of the bytes are in the ring.
    HalfCopied,
    /// Sender: all are, the cursor is not published.
    Copied,
    /// Sender: the cursor is published, nobody was woken.
    Published,
    /// Sender: the doorbell word says ringing.
    Ringing,
    /// Sender: the doorbell byte is sent and not counted.
    Uncounted,
    /// Receiver: the bytes were copied out, the cursor is not published.
    Taken,
    /// Receiver: the cursor is published, a waiting sender was not woken.
    GivenBack,
    /// Sender: no doorbell may be sent any more, the way back is not marked.
    GateClosed,
    /// Sender: the way back is marked, its own record does not know.
    BackMarked,
    /// Receiver: it has followed to TCP, the sender does not know.
    FollowedToTcp,
    /// Sender: a request to come back is taken, nothing is sent again yet.
    RequestTaken,
    /// Either: the end is marked, the kernel does not know.
    EndMarked,
    /// Fails: a memfd, its mapping, a waiter's eventfd.
    Memory,
    /// Fails: a message of the channel.
    Message,
    /// Fails: there is no descriptor to take a message with.
    Descriptor,
    /// Fails: the ring of a peer's waiter.
    Bell,
    /// Fails: the doorbell byte.
    Byte,
    /// Epoll: a member was looked at, and it is not noted yet what was found.
    Looked,
    /// RDMA; fails: opening a device.
    DeviceOpened,
    /// Fails: a registration of memory.
    Registered,
    /// Fails: making a queue pair.
    QueuePairMade,
    /// Fails: bringing it to RTR or RTS.
    QueuePairMoved,
    /// Fails: posting a receive.
    ReceivePosted,
    /// Fails: posting writes and their message.
    Posted,
    /// Fails: what was posted, though it may have arrived.
    SendCompleted,
    /// A message or a write has come, and nobody knows yet.
    Arrived,
    /// Some of a CLC message is to be sent.
    ClcSent,
    /// Some of one was taken.
    ClcTaken,
    /// Receiver: the ring was empty, and whether the stream has ended is not looked at yet.
    FoundEmpty,
    /// A relative: it holds the record no more, and what it had of the memory is not given back yet.
    Left,
    /// Epoll: nobody waits in a set that is about to be closed, and its number is still there.
    Unvisited,
    /// Server: reads are careful, and the program's options are known.
    Careful,
    /// A reader beside one that sleeps in the kernel is counted, and does not sleep yet.
    Outside,
    /// Sender: the doorbell word says that it is posted, and it is not.
    Posting,
    /// Sender: a ring is kept.
    Kept,
    /// A peer of the same user is taken for one of another (`SMCR_STRANGERS`).
    #[cfg(feature = "faults")]
    Stranger,
}

#[cfg(not(feature = "faults"))]
mod faults {
    use super::Step;

    /// A step is done.
    #[inline(always)]
    pub fn pass(_: Step) {}

    /// Whether it fails this time.
    #[inline(always)]
    pub const fn fails(_: Step) -> bool {
        false
    }

    /// Whether every peer is taken for one of another user.
    #[inline(always)]
    pub const fn has_strangers_only() -> bool {
        false
    }

    /// Whether every set is lenient.
    #[inline(always)]
    pub const fn is_lenient() -> bool {
        false
    }
}

#[cfg(feature = "faults")]
mod faults {
    use super::Step;
    use crate::sys::{self, Sysno, clock, fd, mem, proc};
    use std::ffi::CStr;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

    /// What can happen at a step.
    #[derive(Clone, Copy)]
    enum Event {
        Passed,
        Held,
        Late,
        Failed,
        Died,
    }

    /// Steps and events that there is room for in the file of counts.
    type Counts = [[AtomicU64; 8]; 64];
    static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(std::ptr::null_mut());

    /// Reads `SMCR_FAULT_COUNTS`: the file has the size of [`Counts`].
    pub fn count_in(path: &CStr) {
        let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDWR | libc::O_CLOEXEC) as usize, 0, 0, 0];
        // SAFETY: the path is NUL-terminated.
        let Ok(file) = (unsafe { sys::call(Sysno::openat, args) }) else { return };
        if fd::stat(file as i32).is_ok_and(|st| st.st_size as usize >= size_of::<Counts>())
            && let Ok(p) = mem::map_shared(file as i32, size_of::<Counts>(), true)
        {
            COUNTS.store(p.cast(), Release);
        }
        fd::close(file as i32);
    }

    fn count(step: Step, event: Event) {
        // SAFETY: null, or a mapping of that size, which is never unmapped; all of it are atomics. Acquire: pairs with the Release above.
        if let Some(counts) = unsafe { COUNTS.load(Acquire).as_ref() } {
            counts[step as usize][event as usize].fetch_add(1, Relaxed);
        }
    }

    static SEED: AtomicU64 = AtomicU64::new(1);
    static DELAY: AtomicU32 = AtomicU32::new(0);
    static FAIL: AtomicU32 = AtomicU32::new(0);
    static DEADLY: AtomicU32 = AtomicU32::new(u32::MAX);
    static LEFT: AtomicU32 = AtomicU32::new(0);

    /// Reads `SMCR_FAULTS`.
    pub fn start(text: &str) {
        let mut numbers = text.split(',').map(|n| n.parse::<u64>().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        SEED.store(next().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Relaxed);
        DELAY.store(next() as u32, Relaxed);
        FAIL.store(next() as u32, Relaxed);
        if let Some(step) = numbers.next() {
            LEFT.store(numbers.next().unwrap_or(1) as u32, Relaxed);
            DEADLY.store(step as u32, Relaxed);
        }
    }

    static FAILING: AtomicU32 = AtomicU32::new(u32::MAX);
    static FAILS: AtomicU32 = AtomicU32::new(0);
    static FINE: AtomicU32 = AtomicU32::new(0);

    /// Reads `SMCR_FAIL`.
    pub fn fail(text: &str) {
        let mut numbers = text.split(',').map(|n| n.parse().ok());
        let mut next = || numbers.next().flatten();
        let step = next().unwrap_or(u32::MAX);
        FAILS.store(next().unwrap_or(0), Relaxed);
        FINE.store(next().unwrap_or(0), Relaxed);
        FAILING.store(step, Relaxed);
    }

    /// The chance that a step fails now.
    fn odds(step: Step) -> u32 {
        match FAILING.load(Relaxed) {
            u32::MAX => FAIL.load(Relaxed),
            failing if failing != step as u32 => 0,
            _ if FINE.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() => 0,
            _ => FAILS.load(Relaxed),
        }
    }

    static HELD: AtomicU32 = AtomicU32::new(u32::MAX);
    static HOLD_MS: AtomicU32 = AtomicU32::new(0);

    /// Reads `SMCR_HOLD`.
    pub fn hold(text: &str) {
        if let Some((step, ms)) = text.split_once(',') {
            HOLD_MS.store(ms.parse().unwrap_or(0), Relaxed);
            HELD.store(step.parse().unwrap_or(u32::MAX), Relaxed);
        }
    }

    static STRANGERS: AtomicU32 = AtomicU32::new(0);

    /// Reads `SMCR_STRANGERS`.
    pub fn make_strangers(text: &str) {
        STRANGERS.store(u32::from(text == "1"), Relaxed);
    }

    /// Whether every peer is taken for one of another user.
    pub fn has_strangers_only() -> bool {
        let all = STRANGERS.load(Relaxed) != 0;
        if all {
            count(Step::Stranger, Event::Passed);
        }
        all
    }

    static LENIENT: AtomicU32 = AtomicU32::new(0);

    /// Reads `SMCR_LENIENT`.
    pub fn make_lenient(text: &str) {
        LENIENT.store(u32::from(text == "1"), Relaxed);
    }

    /// Whether every set is lenient.
    pub fn is_lenient() -> bool {
        LENIENT.load(Relaxed) != 0
    }

    static FORGERY: Mutex<Option<&'static str>> = Mutex::new(None);
    static FORGES: AtomicU32 = AtomicU32::new(0);

    /// Reads `SMCR_FORGE`.
    pub fn plan_forgery(text: &'static str) {
        if let Ok(mut plan) = FORGERY.lock() {
            *plan = Some(text);
            FORGES.store(1, Relaxed);
        }
    }

    /// What is to be forged, once.
    pub fn forgery() -> Option<&'static str> {
        let due = FORGES.load(Relaxed) != 0 && FORGES.swap(0, Relaxed) != 0;
        FORGERY.lock().ok().filter(|_| due)?.take()
    }

    fn chance(of: u32) -> bool {
        of != 0 && clock::mix(&SEED) % 100_000 < u64::from(of)
    }

    /// A step is done: the process may die here, or be late.
    pub fn pass(step: Step) {
        count(step, Event::Passed);
        if DEADLY.load(Relaxed) == step as u32 && LEFT.fetch_sub(1, Relaxed) == 1 {
            count(step, Event::Died);
            proc::kill_self();
        }
        if HELD.load(Relaxed) == step as u32 {
            count(step, Event::Held);
            let _ = fd::poll(&mut [], HOLD_MS.load(Relaxed) as i32);
        }
        if chance(DELAY.load(Relaxed)) {
            count(step, Event::Late);
            match clock::mix(&SEED) % 16 {
                0 => drop(fd::poll(&mut [], 30 + (clock::mix(&SEED) % 300) as i32)), // stuck
                1..4 => drop(fd::poll(&mut [], 1 + (clock::mix(&SEED) % 3) as i32)),
                n => (0..n * 4).for_each(|_| proc::yield_now()),
            }
        }
    }

    /// Whether it fails this time.
    pub fn fails(step: Step) -> bool {
        pass(step);
        let fails = chance(odds(step));
        if fails {
            count(step, Event::Failed);
        }
        fails
    }
}

#[cfg(feature = "faults")]
pub use faults::{count_in, fail, forgery, hold, make_lenient, make_strangers, plan_forgery, start};
pub use faults::{fails, has_strangers_only, is_lenient, pass};
