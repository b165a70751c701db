//! io_uring by liburing, whose own system calls pass every hook by: what the process has at its first ring stays on TCP.
//!
//! liburing may have been loaded later than this library, or into a scope of its own, so its functions are looked up when one is called.

use super::hooks;
use crate::sys::{self, Sysno};
use crate::table::life;
use libc::{c_int, c_uint, c_void, size_t};
use std::ffi::CStr;

hooks! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        life::on_io_uring();
        let Some(f) = real(c"io_uring_queue_init") else { return -libc::ENOSYS };
        // SAFETY: the function of this name, with the program's arguments.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_uint, *mut c_void, c_uint) -> c_int>(f)(entries, ring, flags) }
    }

    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
        life::on_io_uring();
        let Some(f) = real(c"io_uring_queue_init_params") else { return -libc::ENOSYS };
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_uint, *mut c_void, *mut c_void) -> c_int>(f)(entries, ring, params) }
    }

    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, size: size_t) -> c_int {
        type Function = extern "C" fn(c_uint, *mut c_void, *mut c_void, *mut c_void, size_t) -> c_int;
        life::on_io_uring();
        let Some(f) = real(c"io_uring_queue_init_mem") else { return -libc::ENOSYS };
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, Function>(f)(entries, ring, params, memory, size) }
    }

    /// Nothing but the system call; an error is a negative number.
    fn io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int {
        life::on_io_uring();
        let args = [entries as usize, params as usize, 0, 0, 0, 0];
        // SAFETY: the program's arguments.
        match unsafe { sys::call(Sysno::io_uring_setup, args) } {
            Ok(fd) => fd as c_int,
            Err(e) => -e.0,
        }
    }
}

/// The function of liburing that this library stands before.
fn real(name: &CStr) -> Option<*mut c_void> {
    const LIBRARIES: [&CStr; 2] = [c"liburing.so.2", c"liburing.so.1"];
    // SAFETY: NUL-terminated names; a library that is there is not loaded anew, and stays.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let others = LIBRARIES.iter().map(|library| {
        // SAFETY: as above.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
            if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) }
        }
    });
    std::iter::once(next).chain(others).find(|p| !p.is_null())
}
