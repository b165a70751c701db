//! execl, execlp and execle: libc has them call its own execve, past the hook of that, so they are made into calls of the
//! hooks of execv, execvp and execve.
//!
//! A Rust function can't take variable arguments: each entry keeps the argument registers, and says where those are and where the
//! arguments on the stack begin. On other processors than x86-64 they are not hooked (as dprintf, docs/interpose.md).

#![cfg(target_arch = "x86_64")]

use super::process::{execv, execve, execvp};
use crate::sys::{self, Errno, mem};
use libc::{c_char, c_int};

type Text = *const c_char;

/// More arguments than fit here come into a mapping.
const FEW: usize = 256;

macro_rules! variadic {
    ($name:ident, $with:ident) => {
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        /// # Safety
        /// As for the function of this name in libc.
        pub unsafe extern "C-unwind" fn $name() {
            core::arch::naked_asm!(
                "sub rsp, 56",
                "mov [rsp], rdi", "mov [rsp+8], rsi", "mov [rsp+16], rdx", "mov [rsp+24], rcx",
                "mov [rsp+32], r8", "mov [rsp+40], r9",
                "mov rdi, rsp",
                "lea rsi, [rsp+64]",
                "call {with}",
                "add rsp, 56",
                "ret",
                with = sym $with,
            )
        }
    };
}

variadic!(execl, with_path);
variadic!(execlp, with_name);
variadic!(execle, with_environment);

extern "C-unwind" fn with_path(registers: *const Text, stack: *const Text) -> c_int {
    // SAFETY: the program's path and arguments.
    with(registers, stack, |path, argv, _| unsafe { execv(path, argv) })
}

extern "C-unwind" fn with_name(registers: *const Text, stack: *const Text) -> c_int {
    // SAFETY: as above.
    with(registers, stack, |name, argv, _| unsafe { execvp(name, argv) })
}

extern "C-unwind" fn with_environment(registers: *const Text, stack: *const Text) -> c_int {
    // SAFETY: as above; behind the end of the arguments stands the environment.
    with(registers, stack, |path, argv, behind| unsafe { execve(path, argv, behind().cast()) })
}

/// Calls `exec` with the first argument, the array of the others up to the null that ends them, and what gives the one behind that.
fn with(registers: *const Text, stack: *const Text, exec: impl FnOnce(Text, *const Text, &dyn Fn() -> Text) -> c_int) -> c_int {
    // SAFETY: the first six are in the registers, the others on the stack. None is read behind the null, but for execle's environment.
    let argument = |i: usize| unsafe { if i < 6 { *registers.add(i) } else { *stack.add(i - 6) } };
    let count = (1..).take_while(|i| !argument(*i).is_null()).count() + 1;
    let behind = || argument(1 + count);
    let mut few = [std::ptr::null(); FEW];
    if count <= FEW {
        few.iter_mut().zip(1..=count).for_each(|(to, i)| *to = argument(i));
        return exec(argument(0), few.as_ptr(), &behind);
    }
    let bytes = count * size_of::<Text>();
    let Ok(many) = mem::map_private(bytes) else {
        sys::set_errno(Errno(libc::ENOMEM));
        return -1;
    };
    for i in 0..count {
        // SAFETY: a fresh mapping of so many.
        unsafe { many.cast::<Text>().add(i).write(argument(i + 1)) };
    }
    let r = exec(argument(0), many.cast(), &behind);
    mem::unmap(many, bytes); // it came back: it has failed
    r
}
