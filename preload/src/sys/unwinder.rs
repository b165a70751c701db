//! The unwinder of libgcc_s, loaded when something unwinds. Nobody calls it by its Rust name: the standard library's panics do.
//!
//! Only a panic of ours needs it, and it would be a quarter of what this library adds to the start of each program (80 us: one file
//! more to map and to relocate). So its functions are defined here, for this library alone (hidden, or a program's exceptions would
//! come this way), and go on to libgcc_s by the words of `FOUND`. It has to be that file, not a copy of our own: one process has
//! one unwinder.

#![cfg(target_arch = "x86_64")]

use libc::c_void;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

macro_rules! functions {
    ($($index:literal $name:literal)*) => {
        const NAMES: &[&CStr] = &[$(match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!(),
        }),*];

        core::arch::global_asm!(
            // all arguments are kept: some of these functions look at their caller's registers, so this is no frame of its own
            ".text",
            "smcr_unwinder_find:",
            ".cfi_startproc",
            "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push r11",
            ".cfi_adjust_cfa_offset 56",
            "call {find}",
            "pop r11", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
            ".cfi_adjust_cfa_offset -56",
            "lea r10, [rip + {found}]",
            "jmp qword ptr [r10 + r11 * 8]",
            ".cfi_endproc",
            $(
                concat!(".hidden ", $name), concat!(".globl ", $name), concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                concat!("mov r11, qword ptr [rip + {found} + 8 * ", $index, "]"),
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                concat!("2: mov r11d, ", $index),
                "jmp smcr_unwinder_find",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
            )*
            find = sym find,
            found = sym FOUND,
        );
    };
}

functions! {
    0 "_Unwind_Backtrace"
    1 "_Unwind_DeleteException"
    2 "_Unwind_GetDataRelBase"
    3 "_Unwind_GetIP"
    4 "_Unwind_GetIPInfo"
    5 "_Unwind_GetLanguageSpecificData"
    6 "_Unwind_GetRegionStart"
    7 "_Unwind_GetTextRelBase"
    8 "_Unwind_RaiseException"
    9 "_Unwind_Resume"
    10 "_Unwind_SetGR"
    11 "_Unwind_SetIP"
}

/// Relaxed: who finds a word empty looks for the functions itself.
static FOUND: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

extern "C" fn find() {
    // SAFETY: names that end with a zero.
    let library = unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        missing();
    }
    for (word, name) in FOUND.iter().zip(NAMES) {
        // SAFETY: as above; the library is never closed.
        let function = unsafe { libc::dlsym(library, name.as_ptr()) };
        if function.is_null() {
            missing();
        }
        word.store(function, Relaxed);
    }
}

/// As glibc does where it needs it for pthread_exit.
fn missing() -> ! {
    const TEXT: &[u8] = b"libsmcr: a defect, and libgcc_s.so.1 is needed to go on\n";
    let _ = super::fd::write_all(2, TEXT);
    // SAFETY: no argument.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_is_caught() {
        assert_eq!(crate::sys::caught(|| if std::hint::black_box(true) { panic!("on purpose") } else { 1 }), None);
        assert!(super::FOUND.iter().all(|word| !word.load(super::Relaxed).is_null()));
    }
}
