//! vfork and clone(2): children with the parent's memory, and such with a stack of their own.
//!
//! The first return twice in one frame, so their hooks are jumps. What a fork through libc means for connections is in [`super::process`].

use super::process::{forking, in_child, present};
use crate::family::process::is_vfork_child;
use crate::real;
use crate::table::child;
use libc::{c_int, c_void, pid_t};

/// clone(2) with the parent's memory but not as a thread: what vfork is. Its arguments are on their way to
/// the real function; the third are the flags. Without that memory: [`apart`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
/// # Safety
/// As for the function of this name in libc.
pub unsafe extern "C" fn clone() {
    core::arch::naked_asm!(
        "test edx, {memory}",
        "jz {apart}",
        "mov eax, edx",
        "and eax, {both}",
        "cmp eax, {memory}",
        "jne 2f",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "mov byte ptr [rip + {mark}], 1",
        "2: jmp qword ptr [rip + {real}]",
        apart = sym apart,
        both = const libc::CLONE_VM | libc::CLONE_THREAD,
        memory = const libc::CLONE_VM,
        before = sym before,
        mark = sym crate::family::process::SMCR_VFORK_USED,
        real = sym real::slot::clone,
    )
}

/// The hook notes that the process uses vfork (from then on the table asks whether it runs in such a child) and goes on in the real function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
/// # Safety
/// As for the function of this name in libc.
pub unsafe extern "C" fn vfork() {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "mov byte ptr [rip + {mark}], 1",
        "jmp qword ptr [rip + {real}]",
        before = sym before,
        mark = sym crate::family::process::SMCR_VFORK_USED,
        real = sym real::slot::vfork,
    )
}

/// Before a child that has the parent's memory, and may close what its program is not to have before anybody can ask for that.
#[cfg(target_arch = "x86_64")]
extern "C" fn before() {
    if !is_vfork_child() {
        present(child::unpair);
    }
}

/// What a child of [`apart`] begins with.
struct Begin {
    run: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// clone(2) without the parent's memory: a fork with a stack of its own.
///
/// # Safety
/// As for the function in libc. Where the program has given fewer arguments, the flags say so, and libc looks at no more.
#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn apart(
    run: *const c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut pid_t,
    tls: *mut c_void,
    child: *mut pid_t,
) -> c_int {
    if run.is_null() || stack.is_null() {
        // SAFETY: the program's arguments, which libc refuses.
        return unsafe { real::clone(run, stack, flags, argument, parent, tls, child) };
    }
    // SAFETY: the program's function, of this type.
    let begin = Begin { run: unsafe { std::mem::transmute::<*const c_void, unsafe extern "C-unwind" fn(*mut c_void) -> c_int>(run) }, argument };
    let begin = std::ptr::from_ref(&begin).cast_mut().cast();
    // SAFETY: the program's arguments; the child has a copy of what `begin` points to.
    forking(flags as u64, || unsafe { real::clone(begin_apart as *const c_void, stack, flags, begin, parent, tls, child) })
}

/// # Safety
/// `begin` must point to a [`Begin`].
#[cfg(target_arch = "x86_64")]
unsafe extern "C-unwind" fn begin_apart(begin: *mut c_void) -> c_int {
    // SAFETY: by the contract.
    let Begin { run, argument } = unsafe { begin.cast::<Begin>().read() };
    in_child();
    // SAFETY: the program's.
    unsafe { run(argument) }
}
