//! Descriptors: read, write, close, dup, flags, poll, epoll, eventfd, all raw.

use super::few::Brief;
use super::{Errno, Res, Sysno, call, unpolled};
use libc::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

/// Lowest number for descriptors of our own: above what select(2) and most programs use.
const PARK: c_int = 1024;
/// The same in a process with several threads: there the kernel waits for all processors (10 ms)
/// when a number beyond the present table is taken, and a table holds 64 at least.
const PARK_LOW: c_int = 48;

/// The lowest number that one of the library's own descriptors ever had.
static LOWEST_OWN: AtomicI32 = AtomicI32::new(c_int::MAX);

/// Numbers that descriptors of the library have had since they last were closed by it ([`close_own`]), a bit each, as far as they
/// are below the end of this.
static OWN: [AtomicU32; 1 << 11] = [const { AtomicU32::new(0) }; 1 << 11];

/// Whether the library may have a descriptor with this number. Who has opened it knows: nothing is found out about others' here.
#[inline]
pub fn may_be_own(fd: c_int) -> bool {
    fd >= LOWEST_OWN.load(Relaxed) && own_bit(fd).is_none_or(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// `fd` is the library's from now on.
pub fn note_own(fd: c_int) -> c_int {
    if let Some((word, bit)) = own_bit(fd) {
        word.fetch_or(bit, Relaxed);
    }
    LOWEST_OWN.fetch_min(fd, Relaxed);
    fd
}

fn own_bit(fd: c_int) -> Option<(&'static AtomicU32, u32)> {
    let n = usize::try_from(fd).ok()?;
    Some((OWN.get(n / 32)?, 1 << (n % 32)))
}

/// Closes one of the library's. While it is open, nobody else notes its number.
pub fn close_own(fd: c_int) {
    if let Some((word, bit)) = own_bit(fd) {
        word.fetch_and(!bit, Relaxed);
    }
    close(fd);
}

/// Moves an own descriptor out of the program's way, as far as that costs nothing.
pub fn park(fd: c_int) -> c_int {
    note_own(moved_away(fd))
}

fn moved_away(fd: c_int) -> c_int {
    let several = super::proc::has_threads();
    if several && fd >= PARK_LOW {
        return fd;
    }
    let places = if several { &[PARK_LOW][..] } else { &[PARK, 512, 192, PARK_LOW][..] };
    for min in places {
        if let Ok(high) = Brief::open(|| dup_from(fd, *min)) {
            return if several && high.fd() >= 64 && fd < 64 { fd } else { high.instead_of(fd) };
        }
    }
    fd
}

/// `fcntl(fd, F_DUPFD_CLOEXEC, min)`.
pub fn dup_from(fd: c_int, min: c_int) -> Res<c_int> {
    fcntl(fd, libc::F_DUPFD_CLOEXEC, min as usize).map(|n| n as c_int)
}

/// A duplicate of the library's own in a process with several threads, out of the program's way as far as that costs nothing.
pub fn another(fd: c_int) -> Res<c_int> {
    dup_from(fd, PARK_LOW).or_else(|_| dup_from(fd, 3)).map(note_own)
}

/// A descriptor that answers EBADF to whatever is done with it but closing (O_PATH, open(2)).
pub fn open_nothing() -> Res<c_int> {
    let (at, flags) = (libc::AT_FDCWD as usize, (libc::O_PATH | libc::O_CLOEXEC) as usize);
    // SAFETY: a NUL-terminated path.
    unsafe { call(Sysno::openat, [at, c"/".as_ptr() as usize, flags, 0, 0, 0]) }.map(|fd| fd as c_int)
}

/// `dup3`: `new` becomes a duplicate of `old`; what it was is closed.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> Res {
    // SAFETY: no pointers.
    unsafe { call(Sysno::dup3, [old as usize, new as usize, flags as usize, 0, 0, 0]) }
}

/// close(2); the result does not matter to any caller.
pub fn close(fd: c_int) {
    // SAFETY: close takes no pointer.
    let _ = unsafe { call(Sysno::close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// read(2).
///
/// # Safety
/// `buf` must be valid for writes of `len` bytes.
pub unsafe fn read(fd: c_int, buf: *mut u8, len: usize) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::read, [fd as usize, buf as usize, len, 0, 0, 0]) }
}

/// pread(2).
///
/// # Safety
/// `buf` must be valid for writes of `len` bytes.
pub unsafe fn pread(fd: c_int, buf: *mut u8, len: usize, off: i64) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::pread64, [fd as usize, buf as usize, len, off as usize, 0, 0]) }
}

/// As [`read`] where there is something now, else EAGAIN, whatever O_NONBLOCK says (preadv2(2), RWF_NOWAIT).
///
/// # Safety
/// `buf` must be valid for writes of `len` bytes.
pub unsafe fn read_now(fd: c_int, buf: *mut u8, len: usize) -> Res {
    let iov = libc::iovec { iov_base: buf.cast(), iov_len: len };
    const OWN_POSITION: usize = usize::MAX;
    let args = [fd as usize, &raw const iov as usize, 1, OWN_POSITION, OWN_POSITION, libc::RWF_NOWAIT as usize];
    // SAFETY: by the contract; the entry outlives the call.
    unsafe { call(Sysno::preadv2, args) }
}

/// write(2).
///
/// # Safety
/// `buf` must be valid for reads of `len` bytes.
pub unsafe fn write(fd: c_int, buf: *const u8, len: usize) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::write, [fd as usize, buf as usize, len, 0, 0, 0]) }
}

/// write(2) of a slice.
pub fn write_all(fd: c_int, buf: &[u8]) -> Res {
    // SAFETY: the slice is valid.
    unsafe { write(fd, buf.as_ptr(), buf.len()) }
}

/// fcntl(2) with an integer argument.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> Res {
    // SAFETY: only commands with integer arguments are passed by the callers in this crate.
    unsafe { call(Sysno::fcntl, [fd as usize, cmd as usize, arg, 0, 0, 0]) }
}

/// A lock of this process on a file (F_WRLCK, F_UNLCK), which ends with it. EAGAIN, EACCES: another one has it.
pub fn lock(fd: c_int, how: c_int) -> Res {
    // SAFETY: all zero is the whole of a file.
    let mut all: libc::flock = unsafe { std::mem::zeroed() };
    all.l_type = how as libc::c_short;
    // SAFETY: the structure lives through the call, and is only read.
    unsafe { call(Sysno::fcntl, [fd as usize, libc::F_SETLK as usize, std::ptr::from_ref(&all) as usize, 0, 0, 0]) }
}

/// O_NONBLOCK and the other file status flags.
pub fn status_flags(fd: c_int) -> Res<c_int> {
    fcntl(fd, libc::F_GETFL, 0).map(|n| n as c_int)
}

/// ioctl(2) that writes an int.
pub fn ioctl_int(fd: c_int, request: u64) -> Res<c_int> {
    let mut v: c_int = 0;
    // SAFETY: the kernel writes one int.
    unsafe { call(Sysno::ioctl, [fd as usize, request as usize, &mut v as *mut _ as usize, 0, 0, 0]) }?;
    Ok(v)
}

/// Bytes in the kernel's receive queue (SIOCINQ).
pub fn unread(fd: c_int) -> Res<usize> {
    ioctl_int(fd, libc::FIONREAD).map(|n| n.max(0) as usize)
}

/// Request of ioctl(2): whether the stream stands at its urgent mark.
pub const SIOCATMARK: u64 = 0x8905;

/// Whether the next byte of the kernel's stream stands behind an urgent one: [`unread`] counts nothing there (SIOCATMARK).
pub fn is_at_mark(fd: c_int) -> bool {
    ioctl_int(fd, SIOCATMARK).is_ok_and(|at| at != 0)
}

/// Bytes in the kernel's send queue that the peer has not acknowledged (SIOCOUTQ).
pub fn unacked(fd: c_int) -> Res<usize> {
    ioctl_int(fd, libc::TIOCOUTQ).map(|n| n.max(0) as usize)
}

/// eventfd2(2), non-blocking and close-on-exec.
pub fn eventfd() -> Res<c_int> {
    let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
    // SAFETY: no pointers.
    unsafe { call(Sysno::eventfd2, [0, flags, 0, 0, 0, 0]) }.map(|n| n as c_int)
}

/// pipe2(2), non-blocking and close-on-exec: the end to read from, then the one to write to.
pub fn pipe() -> Res<[c_int; 2]> {
    let mut ends = [-1; 2];
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: the kernel writes two ints.
    unsafe { call(Sysno::pipe2, [ends.as_mut_ptr() as usize, flags, 0, 0, 0, 0]) }?;
    Ok(ends)
}

/// Adds one to an eventfd.
pub fn event_set(fd: c_int) -> Res {
    write_all(fd, &1u64.to_ne_bytes())
}

/// Clears an eventfd.
pub fn event_clear(fd: c_int) {
    let mut b = [0u8; 8];
    // SAFETY: the buffer has the eight bytes that the kernel writes.
    let _ = unsafe { read(fd, b.as_mut_ptr(), 8) };
}

/// A new epoll set.
pub fn epoll_create() -> Res<c_int> {
    // SAFETY: no pointers.
    unsafe { call(Sysno::epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]) }.map(|n| n as c_int)
}

/// poll(2) on a slice; `timeout` in milliseconds.
pub fn poll(fds: &mut [libc::pollfd], timeout: c_int) -> Res {
    let ts = libc::timespec { tv_sec: i64::from(timeout / 1000), tv_nsec: i64::from(timeout % 1000) * 1_000_000 };
    let tsp = if timeout < 0 { std::ptr::null() } else { &raw const ts };
    // SAFETY: slice and timespec are valid for the call; no signal mask is given.
    match unsafe { call(Sysno::ppoll, [fds.as_mut_ptr() as usize, fds.len(), tsp as usize, 0, 8, 0]) } {
        Err(Errno(libc::EINVAL)) if !fds.is_empty() => unpolled::poll(fds, timeout),
        r => r,
    }
}

/// What poll says now of one descriptor.
pub fn poll_now(fd: c_int, events: i16) -> i16 {
    let mut p = [libc::pollfd { fd, events, revents: 0 }];
    match poll(&mut p, 0) {
        Ok(_) => p[0].revents,
        Err(_) => 0,
    }
}

/// Whether a socket has ended by an error, which the next call on it takes. ERR alone is the error queue.
pub fn is_broken(fd: c_int) -> bool {
    const BOTH: i16 = libc::POLLERR | libc::POLLHUP;
    poll_now(fd, 0) & BOTH == BOTH
}

/// epoll_ctl(2).
pub fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: Option<libc::epoll_event>) -> Res {
    let ptr = event.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the event outlives the call.
    unsafe { call(Sysno::epoll_ctl, [epfd as usize, op as usize, fd as usize, ptr as usize, 0, 0]) }
}

/// epoll_pwait(2) without a mask.
///
/// # Safety
/// `events` must be valid for writes of `max` events.
pub unsafe fn epoll_wait(epfd: c_int, events: *mut libc::epoll_event, max: c_int, ms: c_int) -> Res {
    // SAFETY: by the contract.
    unsafe { call(Sysno::epoll_pwait, [epfd as usize, events as usize, max as usize, ms as usize, 0, 8]) }
}

/// splice(2) without offsets.
pub fn splice(from: c_int, to: c_int, len: usize, flags: u32) -> Res {
    // SAFETY: no pointers.
    unsafe { call(Sysno::splice, [from as usize, 0, to as usize, 0, len, flags as usize]) }
}

/// Whether it is an epoll descriptor, as /proc says.
pub fn is_epoll(fd: c_int) -> bool {
    const IS: &[u8] = b"anon_inode:[eventpoll]";
    path(&mut [0; 32], format_args!("/proc/self/fd/{fd}\0")).is_some_and(|p| link(p, &mut [0; 32]) == Some(IS))
}

/// A path that ends with NUL, put together without memory of its own. None: it does not fit.
pub fn path<'a>(buf: &'a mut [u8], path: std::fmt::Arguments) -> Option<&'a std::ffi::CStr> {
    let mut free = &mut buf[..];
    free.write_fmt(path).ok()?;
    std::ffi::CStr::from_bytes_until_nul(buf).ok()
}

/// Where a link leads. None: it is none, is not to be read, or that does not fit.
pub fn link<'a>(path: &std::ffi::CStr, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0];
    // SAFETY: the kernel writes at most `buf.len()` bytes; the path is NUL-terminated.
    let n = unsafe { call(Sysno::readlinkat, args) }.ok()?;
    (n < buf.len()).then(|| &buf[..n])
}

/// lseek(2).
pub fn lseek(fd: c_int, off: i64, whence: c_int) -> Res {
    // SAFETY: no pointers.
    unsafe { call(Sysno::lseek, [fd as usize, off as usize, whence as usize, 0, 0, 0]) }
}

/// Whether the descriptor is open.
pub fn is_open(fd: c_int) -> bool {
    !matches!(fcntl(fd, libc::F_GETFD, 0), Err(Errno(libc::EBADF)))
}

/// Device and inode of a descriptor.
pub fn identity(fd: c_int) -> Res<(u64, u64)> {
    let st = stat(fd)?;
    Ok((st.st_dev, st.st_ino))
}

/// fstat(2).
pub fn stat(fd: c_int) -> Res<libc::stat> {
    let mut st = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the struct, which has its layout on 64-bit Linux.
    unsafe {
        call(Sysno::fstat, [fd as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        Ok(st.assume_init())
    }
}

/// stat(2), or lstat(2) unless it `follows` a link.
pub fn stat_path(path: &std::ffi::CStr, follows: bool) -> Res<libc::stat> {
    let mut st = std::mem::MaybeUninit::<libc::stat>::zeroed();
    let at = libc::AT_FDCWD as usize;
    let flags = if follows { 0 } else { libc::AT_SYMLINK_NOFOLLOW as usize };
    // SAFETY: the path is NUL-terminated; the kernel fills the struct, which has its layout on 64-bit Linux.
    unsafe {
        call(Sysno::newfstatat, [at, path.as_ptr() as usize, st.as_mut_ptr() as usize, flags, 0, 0])?;
        Ok(st.assume_init())
    }
}

/// open(2) for reading.
pub fn open_read(path: &std::ffi::CStr) -> Res<c_int> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: the path is NUL-terminated.
    unsafe { call(Sysno::openat, [at, path.as_ptr() as *const c_void as usize, flags, 0, 0, 0]) }.map(|n| n as c_int)
}

/// open(2) of a file that others may have put there: no link is followed, nothing is waited for.
pub fn open_untrusted(path: &std::ffi::CStr) -> Res<c_int> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: the path is NUL-terminated.
    unsafe { call(Sysno::openat, [at, path.as_ptr() as usize, flags as usize, 0, 0, 0]) }.map(|n| n as c_int)
}

/// Reads a small file whole, as much as fits.
pub fn read_file<'a>(path: &std::ffi::CStr, buf: &'a mut [u8]) -> Res<&'a [u8]> {
    let file = Brief::open(|| open_read(path))?;
    // SAFETY: the slice is valid for writes.
    unsafe { read(file.fd(), buf.as_mut_ptr(), buf.len()) }.map(|n| &buf[..n])
}
