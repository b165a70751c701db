//! Mappings: memfds with seals, shared and read-only maps, and the check of a memfd that a peer sent.

use super::{Errno, Res, Sysno, call};
use libc::c_int;
use std::ffi::CStr;

const F_SEAL_FUTURE_WRITE: c_int = 0x0010;
const F_ADD_SEALS: c_int = 1033;
const F_GET_SEALS: c_int = 1034;
const TMPFS_MAGIC: i64 = 0x0102_1994;
const SIZE_SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A memfd of `len` bytes whose size nobody can change any more.
pub fn memfd(name: &CStr, len: usize) -> Res<c_int> {
    let fd = memfd_unsealed(name, len)?;
    if let Err(e) = seal(fd, SIZE_SEALS) {
        super::fd::close(fd);
        return Err(e);
    }
    Ok(fd)
}

/// A memfd that others can map for reading only; the mapping made before stays writable.
pub fn memfd_for_readers(name: &CStr, len: usize) -> Res<(c_int, *mut u8)> {
    let fd = memfd_unsealed(name, len)?;
    match map_shared(fd, len, true) {
        Ok(p) if seal(fd, F_SEAL_FUTURE_WRITE | SIZE_SEALS).is_ok() => Ok((fd, p)),
        Ok(p) => {
            unmap(p, len);
            super::fd::close(fd);
            Err(Errno(libc::ENOSYS))
        }
        Err(e) => {
            super::fd::close(fd);
            Err(e)
        }
    }
}

fn memfd_unsealed(name: &CStr, len: usize) -> Res<c_int> {
    // A memfd is a file: beyond RLIMIT_FSIZE its growth would raise SIGXFSZ, which ends the program.
    if super::proc::limit(libc::RLIMIT_FSIZE as usize).is_some_and(|most| most < len as u64) {
        return Err(Errno(libc::EFBIG));
    }
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { call(Sysno::memfd_create, [name.as_ptr() as usize, flags, 0, 0, 0, 0]) }?;
    // SAFETY: no pointers.
    if let Err(e) = unsafe { call(Sysno::ftruncate, [fd, len, 0, 0, 0, 0]) } {
        super::fd::close(fd as c_int);
        return Err(e);
    }
    Ok(fd as c_int)
}

fn seal(fd: c_int, seals: c_int) -> Res {
    super::fd::fcntl(fd, F_ADD_SEALS, seals as usize)
}

/// Whether it is a file in memory: neither this question nor its close asks anybody outside of the kernel.
pub fn is_in_memory(fd: c_int) -> bool {
    super::fd::fcntl(fd, F_GET_SEALS, 0).is_ok()
}

/// Whether a memfd of a peer can be mapped without danger: on tmpfs (hugetlb memfds raise SIGBUS),
/// of exactly this size, and sealed against every change of size.
pub fn is_safe_memfd(fd: c_int, len: usize) -> bool {
    let Ok(seals) = super::fd::fcntl(fd, F_GET_SEALS, 0) else { return false };
    if seals as c_int & SIZE_SEALS != SIZE_SEALS {
        return false;
    }
    let Ok(st) = super::fd::stat(fd) else { return false };
    if st.st_size != len as i64 {
        return false;
    }
    let mut fs = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills the struct.
    unsafe {
        call(Sysno::fstatfs, [fd as usize, fs.as_mut_ptr() as usize, 0, 0, 0, 0]).is_ok()
            && i128::from(fs.assume_init().f_type) == i128::from(TMPFS_MAGIC)
    }
}

/// Maps a descriptor shared.
pub fn map_shared(fd: c_int, len: usize, write: bool) -> Res<*mut u8> {
    let prot = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    mmap(len, prot, libc::MAP_SHARED, fd, 0)
}

/// Maps a descriptor in one step over what is mapped at `old`: who looks there meanwhile sees one or
/// the other.
pub fn map_over(old: *mut u8, fd: c_int, len: usize, write: bool) -> Res<*mut u8> {
    let prot = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
    // SAFETY: replaces a mapping of ours of the same length, of which only atomics are used.
    unsafe { call(Sysno::mmap, [old as usize, len, prot as usize, flags, fd as usize, 0]) }.map(|p| p as *mut u8)
}

/// Maps the file behind a shared mapping once more, `len` bytes of it from where that begins.
pub fn map_again(old: *mut u8, len: usize) -> Res<*mut u8> {
    // SAFETY: with an old length of 0 the old mapping stays (mremap(2)); the new one is where the kernel chooses.
    unsafe { call(Sysno::mremap, [old as usize, 0, len, libc::MREMAP_MAYMOVE as usize, 0, 0]) }.map(|p| p as *mut u8)
}

/// Private zeroed memory of our own (never through the program's allocator).
pub fn map_private(len: usize) -> Res<*mut u8> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    mmap(len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0)
}

/// Zeroed memory of our own that forked children share.
pub fn map_anonymous(len: usize) -> Res<*mut u8> {
    mmap(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
}

/// Empty private memory in one step over a mapping of ours.
pub fn empty(p: *mut u8, len: usize) -> Res {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED) as usize;
    // SAFETY: replaces a mapping of ours of this length, of which only bytes and atomics are used.
    unsafe { call(Sysno::mmap, [p as usize, len, prot, flags, usize::MAX, 0]) }
}

/// Moves a fresh mapping in one step to where another of ours lies, which is gone then: who looks there
/// meanwhile sees one or the other.
pub fn move_over(old: *mut u8, fresh: *mut u8, len: usize) -> Res {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    // SAFETY: both are mappings of ours of this length, of which only atomics are used.
    unsafe { call(Sysno::mremap, [fresh as usize, len, len, flags, old as usize, 0]) }
}

fn mmap(len: usize, prot: c_int, flags: c_int, fd: c_int, offset: usize) -> Res<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { call(Sysno::mmap, [0, len, prot as usize, flags as usize, fd as usize, offset]) }.map(|p| p as *mut u8)
}

/// Unmaps; the caller has made sure that nobody uses the memory any more.
pub fn unmap(p: *mut u8, len: usize) {
    // SAFETY: only mappings made here are passed, see each caller.
    let _ = unsafe { call(Sysno::munmap, [p as usize, len, 0, 0, 0, 0]) };
}

/// Maps a part of a descriptor shared; forked children have it not.
pub fn map_for_us_alone(fd: c_int, len: usize, offset: usize) -> Res<*mut u8> {
    let p = mmap(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, offset)?;
    // SAFETY: acts on that mapping.
    let marked = unsafe { call(Sysno::madvise, [p as usize, len, libc::MADV_DONTFORK as usize, 0, 0, 0]) };
    marked.inspect_err(|_| unmap(p, len)).map(|_| p)
}

/// Gives the memory behind a part of a shared mapping back: it reads as zero from now on, in every
/// process that maps it.
pub fn give_back(p: *mut u8, len: usize) -> Res {
    // SAFETY: acts on a shared mapping of ours; zero bytes are valid for what lies there.
    unsafe { call(Sysno::madvise, [p as usize, len, libc::MADV_REMOVE as usize, 0, 0, 0]) }
}

/// Takes a part of a shared mapping out of this process's page tables; its memory stays.
pub fn let_go(p: *mut u8, len: usize) -> Res {
    // SAFETY: acts on a shared mapping of ours; the next access finds the same memory again.
    unsafe { call(Sysno::madvise, [p as usize, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) }
}

/// Marks a private page to be zeroed in forked children.
pub fn wipe_on_fork(p: *mut u8, len: usize) -> Res {
    // SAFETY: acts on a private mapping of ours.
    unsafe { call(Sysno::madvise, [p as usize, len, libc::MADV_WIPEONFORK as usize, 0, 0, 0]) }
}

/// Asks for the line of the cache at `p`, which may be anywhere: a hint that reads nothing.
#[inline(always)]
pub fn fetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// As [`fetch`], to be written soon: no other processor has it then.
#[inline(always)]
pub fn fetch_to_write(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction never faults; processors that lack it take it for none.
    unsafe {
        core::arch::asm!("prefetchw [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}
