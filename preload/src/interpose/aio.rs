//! Asynchronous I/O. glibc's aio_* reads and writes from threads of its own and the kernel's io_submit from nowhere, past every
//! hook: a connection that is named there returns to TCP first, and stays.

use super::hooks;
use crate::real;
use crate::sys::probe::is_there;
use crate::sys::{self, Sysno};
use crate::table::{self, life};
use libc::{aiocb, c_int, c_long, c_ulong, c_void, sigevent};
use smcr_proto::reason::Reason;

// Those with 64 take the same structure where long has 64 bits.
hooks! {
    fn aio_read(one: *mut aiocb) -> c_int {
        leave_posix(one);
        // SAFETY: the program's arguments.
        unsafe { real::aio_read(one) }
    }

    fn aio_read64(one: *mut aiocb) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { aio_read(one) }
    }

    fn aio_write(one: *mut aiocb) -> c_int {
        leave_posix(one);
        // SAFETY: the program's arguments.
        unsafe { real::aio_write(one) }
    }

    fn aio_write64(one: *mut aiocb) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { aio_write(one) }
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, sig: *mut sigevent) -> c_int {
        leave_each(list, n.into(), leave_posix);
        // SAFETY: the program's arguments.
        unsafe { real::lio_listio(mode, list, n, sig) }
    }

    fn lio_listio64(mode: c_int, list: *const *mut aiocb, n: c_int, sig: *mut sigevent) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { lio_listio(mode, list, n, sig) }
    }

    /// Of libaio, which is nothing but the system call; an error is a negative number. libaio's own is not looked for: where there is
    /// none, dlsym calls malloc, and the call that made it may be that of an allocator which just begins.
    fn io_submit(context: c_ulong, n: c_long, list: *mut c_void) -> c_int {
        before_io_submit(list.cast(), n);
        let args = [context as usize, n as usize, list as usize, 0, 0, 0];
        // SAFETY: the program's arguments.
        match unsafe { sys::call(Sysno::io_submit, args) } {
            Ok(n) => n as c_int,
            Err(e) => -e.0,
        }
    }
}

/// io_submit(2) by its number. What only polls (IOCB_CMD_POLL) is a waiter as every other that the library does not see.
pub fn before_io_submit(list: *const *mut Iocb, n: c_long) {
    leave_each(list, n, |one| {
        if is_there(one, 1) {
            // SAFETY: found just now; the kernel reads it as well.
            let Iocb { opcode, fd, .. } = unsafe { one.read_unaligned() };
            if matches!(opcode, PREAD | PWRITE | PREADV | PWRITEV) {
                leave(fd as c_int);
            }
        }
    });
}

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;

/// The beginning of struct iocb (linux/aio_abi.h); key and flags change places with the byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Iocb {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
}

fn leave_each<T>(list: *const *mut T, n: c_long, leave: impl Fn(*mut T)) {
    if !(1..=MOST).contains(&n) || !is_there(list, n as usize) {
        return;
    }
    for i in 0..n as usize {
        // SAFETY: within the list, both of whose ends were found; the called function reads it as well.
        leave(unsafe { list.add(i).read_unaligned() });
    }
}

/// More requests than any queue takes are refused or cut.
const MOST: c_long = 1 << 20;

fn leave_posix(one: *mut aiocb) {
    if is_there(one, 1) {
        // SAFETY: found just now; the called function reads it as well.
        leave(unsafe { (*one).aio_fildes });
    }
}

fn leave(fd: c_int) {
    if let Some(s) = table::sock(fd) {
        life::hand_over(s, fd, Reason::Asynchronous);
    }
}
