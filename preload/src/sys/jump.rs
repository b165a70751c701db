//! Where a jump of libc's goes on: the stack pointer in a `jmp_buf` and in a `ucontext_t`.
//!
//! glibc keeps the stack pointer of a `jmp_buf` scrambled with a word of the thread's (x86-64: since 2.4, what sanitizers rely on as
//! well). Whether this one does is tried once; where not, no jump is known.

use libc::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static KNOWN: AtomicBool = AtomicBool::new(false);

/// More than glibc's.
#[repr(C, align(16))]
struct Buffer([usize; 64]);

type SetJmp = unsafe extern "C" fn(*mut Buffer) -> c_int;

/// Finds out how libc keeps it. Called by the constructor. The next definition, as in `real`: a program may have one of its own that
/// is not ready before its own constructors (ThreadSanitizer's).
#[inline(never)]
pub fn start() {
    let mut buffer = Buffer([0; 64]);
    let here = std::ptr::from_ref(&buffer) as usize;
    // SAFETY: a NUL-terminated name.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"_setjmp".as_ptr()) };
    if next.is_null() {
        return;
    }
    // SAFETY: the symbol has this C type.
    let set = unsafe { std::mem::transmute::<*mut c_void, SetJmp>(next) };
    // SAFETY: room enough, and nobody jumps there.
    let came = unsafe { set(&mut buffer) };
    let at = stack_pointer(&buffer.0);
    KNOWN.store(came == 0 && at.abs_diff(here) < 4096, Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn stack_pointer(words: &[usize]) -> usize {
    const RSP: usize = 6;
    let guard: usize;
    // SAFETY: reads a word of the thread's control block.
    unsafe {
        core::arch::asm!("mov {0}, qword ptr fs:[0x30]", out(reg) guard, options(pure, readonly, nostack));
    }
    words[RSP].rotate_right(17) ^ guard
}

#[cfg(not(target_arch = "x86_64"))]
fn stack_pointer(_: &[usize]) -> usize {
    0
}

/// Where the stack will be after a longjmp there; None: not known.
///
/// # Safety
/// `buffer` must be what the program gives to longjmp.
pub unsafe fn target(buffer: *const c_void) -> Option<usize> {
    if !KNOWN.load(Relaxed) || buffer.is_null() {
        return None;
    }
    // SAFETY: by the contract: its first eight words are registers.
    let words = unsafe { std::slice::from_raw_parts(buffer.cast::<usize>(), 8) };
    Some(stack_pointer(words))
}

/// The same of setcontext.
///
/// # Safety
/// `context` must be what the program gives to setcontext.
pub unsafe fn target_of_context(context: *const libc::ucontext_t) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract.
    return unsafe { context.as_ref() }.map(|c| c.uc_mcontext.gregs[libc::REG_RSP as usize] as usize);
    #[cfg(not(target_arch = "x86_64"))]
    None
}
