//! What the library keeps for each thread, and the full fence of the hot path.
//!
//! `thread_local!` in a shared library goes through `__tls_get_addr` at each use; the block below lies
//! in the static TLS area (initial-exec model), where one load and one addition find it. A library that
//! is preloaded always has room there.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};

/// One thread's block; all zero at its start.
#[repr(C, align(64))]
pub struct Thread {
    /// Kernel's thread id, 0 unknown (`family::process`).
    pub tid: Cell<u32>,
    /// Waits that polling ended and that are not counted yet (`engine::spin`).
    pub hits: Cell<u32>,
    /// Tick until which this thread does not poll.
    pub no_spin_until: Cell<u64>,
    /// Tick until which this thread does not yield.
    pub no_yield_until: Cell<u64>,
    /// Tick at which poll or select last asked the kernel.
    pub polled: Cell<u64>,
    /// Tick at which a wait that polls last let in signals of its mask (`engine::signals`).
    pub let_in: Cell<u64>,
    /// Ticks of polling that are not counted yet.
    pub spent: Cell<u64>,
    /// Tick at which it last began to poll in vain (`engine::spin`).
    pub missed: Cell<u64>,
    /// Tick at which the peer says to have ended its last sleep; 0: it does not say, or that has been looked at.
    pub rung: Cell<u64>,
    /// How often in a row it had nothing.
    pub in_vain: Cell<u32>,
    /// Numbers of pages of the program's that were there (`sys::probe`).
    pub pages: [Cell<u32>; 4],
    /// Number of its processor + 1, where rseq does not tell (`engine::spin`).
    pub cpu: Cell<u32>,
    /// Tick before which it does not yield to find out whether others want its processor.
    pub ask_at: Cell<u64>,
    /// Ticks from the last such question, which had a no for an answer, to that one.
    pub ask_gap: Cell<u64>,
    /// Ticks that its last yield took.
    pub yield_took: Cell<u64>,
    /// Rings that it keeps (`engine::kept`), and the tick of the first one.
    pub kept: Cell<u32>,
    pub kept_at: Cell<u64>,
    /// Tick from which it keeps any, and ticks of the last rest.
    pub keeps_from: Cell<u64>,
    pub keep_rest: Cell<u64>,
    /// The peer, the waiter's word and the number of the sleep of each.
    pub rings: [Cell<(u32, u32, u32)>; 6],
    /// Numbers of descriptors that it uses now (`sys::held`).
    pub held: [AtomicI32; 4],
    /// The kernel call that it is inside (`engine::within`).
    pub within: Note,
    /// Locks that it holds or is about to take (`family::lock`).
    pub locks: [Note; 8],
    /// Generation of the record in which it is inside that call.
    pub within_since: AtomicU32,
    /// Handlers of the program that have run in it, and in the upper half those of them that interrupt; wraps (`engine::handlers`).
    pub handled: Cell<u64>,
    /// What that was when its last receive began to poll (`engine::fast`).
    pub handled_before: Cell<u64>,
    /// Pieces of work that it is in, in which no handler is to run (`sys::postponed`).
    pub works: Cell<u32>,
    /// The fork that it is in has counted for its child (`table::child`).
    pub counts: Cell<bool>,
    /// The stack pointer at which the last one came that waits for their end; 0: none does; 1: it is not known.
    pub postponed: Cell<usize>,
    /// The signals that are blocked behind it.
    pub mask: Cell<u64>,
    /// Calls without a lock that it is in (`engine::inside`), and which of these places are taken, one bit each.
    pub calls: [Call; CALLS],
    pub in_calls: Cell<u32>,
    /// The waiter by which it is about to sleep: it looks for itself, and is not to be woken by what it finds (`link::cover`).
    pub about: Cell<u32>,
}

/// Calls without a lock that are told apart: one, and those of handlers that interrupted it.
pub const CALLS: usize = 8;

/// One of them.
pub struct Call {
    /// Index of the record.
    pub sock: Cell<u32>,
    pub generation: Cell<u32>,
    /// Where on the stack it is.
    pub at: Cell<usize>,
}

/// Something that a call has in its hands. The handlers of its thread read and write it, too.
pub struct Note {
    /// The address of the lock, or of the other thing; 0: free.
    pub lock: AtomicUsize,
    /// Where on the stack the call is; 0: not known yet.
    pub at: AtomicUsize,
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<Thread>() == 576);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss.smcr_thread,\"awT\",@nobits",
    ".balign 64",
    ".globl smcr_thread_block",
    ".hidden smcr_thread_block",
    ".type smcr_thread_block, @object",
    ".size smcr_thread_block, 576",
    "smcr_thread_block:",
    ".zero 576",
    ".popsection",
);

/// Runs `f` with the calling thread's block.
#[inline(always)]
pub fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
    f(here())
}

/// The calling thread's block, which can't leave the thread: its cells are not for others.
#[inline(always)]
pub fn here() -> &'static Thread {
    let p: *const Thread;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the thread pointer and the offset of the block, which the loader has filled in.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + smcr_thread_block@GOTTPOFF]",
            out(reg) p,
            options(pure, readonly, nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        thread_local! {
            static BLOCK: Thread = const {
                Thread {
                    tid: Cell::new(0),
                    hits: Cell::new(0),
                    no_spin_until: Cell::new(0),
                    no_yield_until: Cell::new(0),
                    polled: Cell::new(0),
                    let_in: Cell::new(0),
                    spent: Cell::new(0),
                    missed: Cell::new(0),
                    rung: Cell::new(0),
                    in_vain: Cell::new(0),
                    pages: [const { Cell::new(0) }; 4],
                    cpu: Cell::new(0),
                    ask_at: Cell::new(0),
                    ask_gap: Cell::new(0),
                    yield_took: Cell::new(0),
                    kept: Cell::new(0),
                    kept_at: Cell::new(0),
                    keeps_from: Cell::new(0),
                    keep_rest: Cell::new(0),
                    rings: [const { Cell::new((0, 0, 0)) }; 6],
                    held: [const { AtomicI32::new(0) }; 4],
                    within: Note { lock: AtomicUsize::new(0), at: AtomicUsize::new(0) },
                    locks: [const { Note { lock: AtomicUsize::new(0), at: AtomicUsize::new(0) } }; 8],
                    within_since: AtomicU32::new(0),
                    handled: Cell::new(0),
                    handled_before: Cell::new(0),
                    works: Cell::new(0),
                    counts: Cell::new(false),
                    postponed: Cell::new(0),
                    mask: Cell::new(0),
                    calls: [const { Call { sock: Cell::new(0), generation: Cell::new(0), at: Cell::new(0) } }; CALLS],
                    in_calls: Cell::new(0),
                    about: Cell::new(0),
                }
            };
        }
        p = BLOCK.with(std::ptr::from_ref);
    }
    // SAFETY: the block lives as long as the thread, and the reference is of no use in another one (it is
    // not Send); all fields are cells or atomics that the thread alone uses, zero bytes are valid.
    unsafe { &*p }
}

/// glibc's own word, which says whether the process has had one thread only; else one that says no.
static ONLY: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::from_ref(&SEVERAL).cast_mut());
static SEVERAL: AtomicU8 = AtomicU8::new(0);

/// Looks up what [`is_only`] needs; called by the constructor.
pub fn start() {
    // SAFETY: dlsym with a NUL-terminated name; the symbol is a `char` of glibc (2.32 and later).
    let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !p.is_null() {
        ONLY.store(p.cast(), Relaxed);
    }
}

/// Whether the calling thread is the only one of its process: glibc says so until the first
/// pthread_create, which orders its store before all that the new thread does.
#[inline(always)]
pub fn is_only() -> bool {
    // SAFETY: a byte that lives as long as libc, or our own.
    unsafe { &*ONLY.load(Relaxed) }.load(Relaxed) != 0
}

/// Whether the calling thread runs on its alternate signal stack now.
pub fn is_on_alternate_stack() -> bool {
    alternate_stack().is_some()
}

/// The calling thread's alternate signal stack, if it runs there now.
pub fn alternate_stack() -> Option<Range<usize>> {
    let mut now = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    let args = [0, std::ptr::from_mut(&mut now) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes one struct of this layout.
    let _ = unsafe { super::call(super::Sysno::sigaltstack, args) };
    let begin = now.ss_sp as usize;
    (now.ss_flags & libc::SS_ONSTACK != 0).then(|| begin..begin + now.ss_size)
}

/// fence(SeqCst) as the hot path wants it: on x86-64 a locked instruction on the own stack, which
/// orders as mfence does at half its price.
#[inline(always)]
pub fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes nothing: it adds no bit to a word of the own stack.
    unsafe {
        core::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_block() {
        with(|t| t.tid.set(7));
        let other = std::thread::spawn(|| with(|t| t.tid.get())).join();
        assert_eq!(other.ok(), Some(0));
        assert_eq!(with(|t| t.tid.get()), 7);
    }
}
