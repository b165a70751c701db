//! clone(2), raw: a process that shares our memory and nothing else, on a stack of its own. Used by [`super::porter`].

use super::{Errno, Res};
use std::sync::atomic::AtomicU32;

/// Not as a thread, without a signal at its end, with our memory and a copy of our table.
const HOW: usize = (libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::CLONE_UNTRACED) as usize;

/// Starts `work` with its argument; its number. The kernel sets `inside` to 0 when the process is out of our memory.
///
/// # Safety
/// `top` is the end of a stack that nobody else uses until then. `work` uses nothing that libc keeps for a thread.
#[cfg(target_arch = "x86_64")]
pub unsafe fn start<T: Sync>(top: *mut u8, work: extern "C" fn(&'static T) -> !, with: &'static T, inside: &AtomicU32) -> Res<u32> {
    let r: isize;
    // SAFETY: the child has its own stack, calls `work` with what was in two registers, and never comes back.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => r,
            in("rdi") HOW,
            in("rsi") top,
            in("rdx") 0usize,
            in("r10") inside.as_ptr(),
            in("r8") 0usize,
            in("r12") std::ptr::from_ref(with),
            in("r13") work,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if r < 0 { Err(Errno(-r as i32)) } else { Ok(r as u32) }
}

/// As for the other machine.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub unsafe fn start<T: Sync>(top: *mut u8, work: extern "C" fn(&'static T) -> !, with: &'static T, inside: &AtomicU32) -> Res<u32> {
    let r: isize;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") HOW => r,
            in("x1") top,
            in("x2") 0usize,
            in("x3") 0usize,
            in("x4") inside.as_ptr(),
            in("x20") std::ptr::from_ref(with),
            in("x21") work,
        );
    }
    if r < 0 { Err(Errno(-r as i32)) } else { Ok(r as u32) }
}
