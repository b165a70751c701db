//! fdopen, dprintf, fclose, freopen: stdio reads, writes and closes inside libc, past the hooks, so a
//! socket that becomes a FILE stays on TCP. It may become one without a call of stdio's: a duplicate under a FILE's number.

use super::{guarded, hooks};
use crate::family::process;
use crate::family::sock::Sock;
use crate::real;
use crate::sys::probe::is_there;
use crate::table::{self, life};
use libc::{FILE, c_char, c_int, c_void};
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        to_tcp(fd);
        // SAFETY: the program's arguments.
        unsafe { real::fdopen(fd, mode) }
    }

    fn fclose(file: *mut FILE) -> c_int {
        forget(file);
        // SAFETY: the program's argument.
        unsafe { real::fclose(file) }
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        forget(file);
        // SAFETY: the program's arguments.
        unsafe { real::freopen(path, mode, file) }
    }

    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        forget(file);
        // SAFETY: the program's arguments.
        unsafe { real::freopen64(path, mode, file) }
    }

    fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
        to_tcp(fd);
        // SAFETY: the program's arguments.
        unsafe { real::vdprintf(fd, format, args) }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int {
        to_tcp(fd);
        // SAFETY: the program's arguments.
        unsafe { real::__vdprintf_chk(fd, flag, format, args) }
    }
}

fn to_tcp(fd: c_int) {
    if let Some(s) = table::sock(fd) {
        guarded(|| {
            life::hand_over(s, fd, Reason::Stdio);
        });
    }
}

/// A duplicate has this number now. On those of stdin, stdout and stderr it is on TCP anyway (`life::on_dup`), and while it is there only.
pub fn on_placed(fd: c_int) {
    if fd > 2 && table::sock(fd).is_some_and(Sock::is_connection) && !process::is_vfork_child() && has_file(fd) {
        to_tcp(fd);
    }
}

/// What is known of glibc's FILE, whose beginning programs are compiled with (`getc_unlocked`).
#[repr(C)]
struct File {
    _buffers: [usize; 13],
    next: *const File,
    number: c_int,
}

/// Where glibc keeps the first of all that are open; null in a libc without it.
static FIRST: AtomicPtr<*const File> = AtomicPtr::new(std::ptr::null_mut());

/// Called by the constructor: a dup2 in a signal handler may look nothing up.
pub fn start() {
    // SAFETY: a NUL-terminated name.
    FIRST.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_IO_list_all".as_ptr()) }.cast(), Relaxed);
}

/// Whether a FILE has that number. glibc's lock is not taken: a child that was made while another thread had it would wait for ever.
/// So what that thread opens or closes in this moment may be missed.
fn has_file(fd: c_int) -> bool {
    const MOST: usize = 10_000;
    let first = FIRST.load(Relaxed);
    if first.is_null() {
        return false;
    }
    // SAFETY: glibc's variable.
    let mut at = unsafe { first.read_volatile() };
    for _ in 0..MOST {
        if !is_there(at, 1) {
            return false;
        }
        // SAFETY: it can be read, whatever it is: what another thread's fclose frees in this moment stays with the allocator, which gives back
        // whole areas only.
        let (next, number) = unsafe { ((&raw const (*at).next).read_unaligned(), (&raw const (*at).number).read_unaligned()) };
        if number == fd {
            return true;
        }
        at = next;
    }
    false
}

fn forget(file: *mut FILE) {
    if file.is_null() {
        return;
    }
    // SAFETY: the program's FILE; the function only reads its number.
    let fd = unsafe { libc::fileno(file) };
    if fd >= 0 && table::get(fd).is_some() {
        guarded(|| life::before_close(fd));
    }
}

/// dprintf has variable arguments, which a Rust function can't take: the argument registers are kept,
/// the socket goes to TCP, and the real function gets the call as it came.
macro_rules! variadic {
    ($name:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        /// # Safety
        /// As for the function of this name in libc.
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub rsp, 200",
                "mov [rsp], rdi", "mov [rsp+8], rsi", "mov [rsp+16], rdx", "mov [rsp+24], rcx",
                "mov [rsp+32], r8", "mov [rsp+40], r9", "mov [rsp+48], rax",
                "movups [rsp+64], xmm0", "movups [rsp+80], xmm1", "movups [rsp+96], xmm2",
                "movups [rsp+112], xmm3", "movups [rsp+128], xmm4", "movups [rsp+144], xmm5",
                "movups [rsp+160], xmm6", "movups [rsp+176], xmm7",
                "call {before}",
                "mov rdi, [rsp]", "mov rsi, [rsp+8]", "mov rdx, [rsp+16]", "mov rcx, [rsp+24]",
                "mov r8, [rsp+32]", "mov r9, [rsp+40]", "mov rax, [rsp+48]",
                "movups xmm0, [rsp+64]", "movups xmm1, [rsp+80]", "movups xmm2, [rsp+96]",
                "movups xmm3, [rsp+112]", "movups xmm4, [rsp+128]", "movups xmm5, [rsp+144]",
                "movups xmm6, [rsp+160]", "movups xmm7, [rsp+176]",
                "add rsp, 200",
                "mov r11, [rip + {real}]",
                "jmp r11",
                before = sym before_dprintf,
                real = sym real::slot::$name,
            )
        }
    };
}

variadic!(dprintf);
variadic!(__dprintf_chk);

extern "C" fn before_dprintf(fd: c_int) {
    to_tcp(fd);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_files_are_found() {
        start();
        // SAFETY: a file that is there, closed once.
        unsafe {
            let file = libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr());
            let number = libc::fileno(file);
            assert!(number > 2 && has_file(number) && has_file(2) && !has_file(12_345));
            libc::fclose(file);
        }
    }
}
