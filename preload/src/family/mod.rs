//! The family page: state that a process shares with the children it forks, and shows to smcrctl.
//!
//! One memfd per family, made at the first eligible socket, holds a record of each process and of
//! each socket (`proto::page` has the public layout). A forked child finds cursors, locks and
//! counters of an inherited connection here, so both ends of the fork use one stream. The fd stays
//! open (parked high) only so that smcrctl finds it in /proc; losing it does no harm.
//!
//! Used by every layer above `sys`; uses `sys` and `proto` only.

pub mod apart;
pub mod ended;
pub mod half;
pub mod holders;
pub mod links;
pub mod lock;
mod noted;
pub mod process;
mod sets;
pub mod sock;
pub mod values;

use crate::log;
use crate::sys::clock::Seldom;
use crate::sys::{self, Errno, Res, free_list, mem};
use smcr_proto::page::{self, header};
use sock::Sock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Room for process records.
pub const PROC_CAP: usize = 1024;
/// Room for socket records.
pub const SOCK_CAP: usize = 65_536;
const PROC_OFF: usize = header::LEN;
const SOCK_OFF: usize = PROC_OFF + PROC_CAP * page::process::LEN;
const SOCK_SIZE: usize = size_of::<Sock>();
const LINK_OFF: usize = SOCK_OFF + SOCK_CAP * SOCK_SIZE;
const LEN: usize = LINK_OFF + links::CAP * page::link::LEN;
/// Private part of the header: head of the list of free records {tag: 32, index + 1: 32}.
const FREE_LIST: usize = 1024;
/// Private part of the header: what the ends of connections have taught (`rendezvous::worth`).
const LESSONS_OFF: usize = 2048;
/// Entries of it.
pub const LESSONS: usize = 256;
const _: () = assert!(LESSONS_OFF + 4 * LESSONS <= header::LEN);

static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static FD: AtomicI32 = AtomicI32::new(-1);
static MAKING: AtomicU32 = AtomicU32::new(0);

/// The family page, made at the first call; an error where the system refuses.
pub fn open() -> Res<*mut u8> {
    let base = BASE.load(Acquire); // pairs with the Release in `make`
    if !base.is_null() {
        return Ok(base);
    }
    make()
}

/// The page if there is one.
#[inline]
pub fn base() -> Option<*mut u8> {
    let base = BASE.load(Acquire); // pairs with the Release in `make`
    (!base.is_null()).then_some(base)
}

/// The descriptor kept open for smcrctl, or -1.
pub fn descriptor() -> i32 {
    FD.load(Relaxed)
}

/// The descriptor moved (the program wanted its number).
pub fn set_descriptor(fd: i32) {
    FD.store(fd, Relaxed);
}

/// With fewer descriptors than these a program has none to spare: the library needs about eight.
const FEW_DESCRIPTORS: u64 = 32;

/// Each socket tries it again where there is none.
#[cold]
fn make() -> Res<*mut u8> {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let made = try_make();
    if let Err(Errno(errno)) = made
        && !IS_TOLD.swap(true, Relaxed)
    {
        log::warn!(target: "smcr::family", errno, "no page for this process: its connections are plain TCP, and smcrctl does not see them");
    }
    made
}

fn try_make() -> Res<*mut u8> {
    if sys::proc::descriptor_limit().is_some_and(|most| most < FEW_DESCRIPTORS) {
        return Err(Errno(libc::EMFILE));
    }
    // One thread makes it; another that comes meanwhile waits for it.
    if MAKING.swap(1, AcqRel) != 0 {
        for _ in 0..10_000 {
            if let Some(base) = base() {
                return Ok(base);
            }
            sys::proc::yield_now();
        }
        return Err(Errno(libc::EAGAIN));
    }
    if let Some(base) = base() {
        MAKING.store(0, Release);
        return Ok(base); // made since this thread looked
    }
    let made = (|| {
        let fd = mem::memfd(c"smcr-family", LEN)?;
        match mem::map_shared(fd, LEN, true) {
            Ok(p) => Ok((fd, p)),
            Err(e) => {
                sys::fd::close(fd);
                Err(e)
            }
        }
    })();
    let (fd, p) = match made {
        Ok(v) => v,
        Err(e) => {
            MAKING.store(0, Release);
            return Err(e);
        }
    };
    let put = |off: usize, v: u32| at::<AtomicU32>(p, off).store(v, Relaxed);
    put(header::VERSION, page::VERSION);
    put(header::PROC_OFF, PROC_OFF as u32);
    put(header::PROC_SIZE, page::process::LEN as u32);
    put(header::PROC_CAP, PROC_CAP as u32);
    put(header::SOCK_OFF, SOCK_OFF as u32);
    put(header::SOCK_SIZE, SOCK_SIZE as u32);
    put(header::SOCK_CAP, SOCK_CAP as u32);
    put(header::LINK_OFF, LINK_OFF as u32);
    put(header::LINK_SIZE, page::link::LEN as u32);
    put(header::LINK_CAP, links::CAP as u32);
    // Written last: a reader that sees the magic sees a header.
    at::<AtomicU64>(p, header::MAGIC).store(u64::from_le_bytes(page::MAGIC), Release);
    FD.store(fd, Relaxed);
    process::register(p);
    BASE.store(p, Release);
    FD.store(sys::fd::park(fd), Relaxed);
    MAKING.store(0, Release);
    Ok(p)
}

/// The thread that was making the page is not in a forked child.
pub fn forget_in_child() {
    if base().is_none() {
        MAKING.store(0, Relaxed);
    }
}

/// A field of the page. All fields are atomics, so a shared reference is sound for any number of
/// processes.
fn at<T>(base: *mut u8, off: usize) -> &'static T {
    debug_assert!(off + size_of::<T>() <= LEN && off.is_multiple_of(align_of::<T>()));
    // SAFETY: `off` is a multiple of the alignment inside the mapping, which is never unmapped; T is
    // an atomic or a struct of atomics, for which any bytes are valid.
    unsafe { &*base.add(off).cast::<T>() }
}

/// The socket record with this index.
pub fn sock(base: *mut u8, index: u32) -> &'static Sock {
    at(base, SOCK_OFF + (index as usize % SOCK_CAP) * SOCK_SIZE)
}

/// What the ends of connections have taught.
pub fn lessons(base: *mut u8) -> &'static [AtomicU32; LESSONS] {
    at(base, LESSONS_OFF)
}

/// The record in which this address lies.
pub fn sock_of(address: usize) -> Option<&'static Sock> {
    let base = base()?;
    let index = address.checked_sub(base as usize + SOCK_OFF)? / SOCK_SIZE;
    (index < SOCK_CAP).then(|| sock(base, index as u32))
}

/// The same record for as long as the process lives.
pub fn record(sock: &Sock) -> &'static Sock {
    // SAFETY: records lie in the page alone, which is never unmapped.
    unsafe { &*std::ptr::from_ref(sock) }
}

/// The index of a socket record.
pub fn index_of(sock: &Sock) -> u32 {
    let base = BASE.load(Relaxed) as usize + SOCK_OFF;
    ((std::ptr::from_ref(sock) as usize - base) / SOCK_SIZE) as u32
}

/// In the list of free records each is named by its index and 1.
const NAME_BITS: u32 = 32;

/// Takes a free socket record.
pub fn take_sock() -> Res<&'static Sock> {
    let base = open()?;
    let named = |name: u64| sock(base, name as u32 - 1);
    let free = free_list::take(at(base, FREE_LIST), NAME_BITS, |name| u64::from(named(name).next_free.load(Relaxed)));
    if let Some(name) = free {
        return Ok(named(name));
    }
    let high = at::<AtomicU32>(base, header::SOCK_HIGH);
    let mut n = high.load(Relaxed);
    while (n as usize) < SOCK_CAP {
        match high.compare_exchange_weak(n, n + 1, AcqRel, Relaxed) {
            Ok(_) => return Ok(sock(base, n)),
            Err(v) => n = v,
        }
    }
    // Processes that died did not give back what they held. Where there are none, the next sockets don't ask again at once.
    static REAPED: Seldom = Seldom::untried();
    if REAPED.unless_in_vain(|| process::reap_dead(base)) {
        return take_sock();
    }
    Err(Errno(libc::ENFILE))
}

/// Gives back what processes held that are gone.
pub fn reap_dead() {
    if let Some(base) = base() {
        process::reap_dead(base);
    }
}

/// A process of the family is gone: what it held alone is free again. True if anything became free.
fn reap(base: *mut u8, process: u32) -> bool {
    let high = at::<AtomicU32>(base, header::SOCK_HIGH).load(Acquire);
    let mut any = false;
    for s in (0..high).map(|i| sock(base, i)) {
        if !s.let_go_in(process) {
            continue;
        }
        if s.holders.fetch_sub(1, AcqRel) == 1 {
            ended::count_lost(base, s);
            s.set_state(page::State::Free);
            // Release: whose link it is sees by this that nobody has it any more (`link::slot`).
            s.link.store(0, Release);
            give_back(s);
            any = true;
        } else {
            s.bury_locks();
        }
    }
    any
}

/// Gives a record back; nobody may use it any more.
pub fn give_back(s: &'static Sock) {
    if let Some(base) = base() {
        give_back_in(base, s, index_of(s));
    }
}

fn give_back_in(base: *mut u8, s: &'static Sock, index: u32) {
    // A thread that is in the kernel for the connection that it was (`engine::within`) counts nothing in it.
    s.generation.fetch_add(1, Relaxed);
    free_list::give(at(base, FREE_LIST), NAME_BITS, u64::from(index) + 1, |next| s.next_free.store(next as u32, Relaxed));
}

/// Records in use below this index, for walks.
pub fn high() -> u32 {
    base().map_or(0, |b| at::<AtomicU32>(b, header::SOCK_HIGH).load(Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_saw_no_page_and_comes_late_finds_the_one_that_was_made_meanwhile() {
        let first = open().unwrap();
        assert_eq!(make(), Ok(first));
        assert_eq!(make(), open());
    }

    #[test]
    fn the_locks_of_one_that_died_are_free_for_who_holds_the_record_as_well() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let (base, s, place) = (open().unwrap(), take_sock().unwrap(), PROC_CAP as u32 - 1);
        s.reset();
        s.holders.store(2, Relaxed);
        s.held_in(place);
        s.tx.lock.owner.store(pid, Relaxed);
        s.rx.lock.owner.store(sys::proc::tid(), Relaxed);
        reap(base, place);
        assert_eq!((s.holders.load(Relaxed), s.tx.lock.is_taken(), s.rx.lock.is_taken()), (1, false, true));
        s.rx.lock.reset();
        give_back(s);
    }
}
