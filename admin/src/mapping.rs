//! A control page mapped into memory. Used by `store`. With `inherited` all unsafe code of smcrctl.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use smcr_proto::control::{LEN, WORDS};

/// The first [`LEN`] bytes of a file, shared with everybody who maps it.
pub struct Mapping {
    start: NonNull<c_void>,
}

impl Mapping {
    /// Maps a file that has all its bytes; writable if asked, and then so must the file be.
    pub fn new(file: &File, writable: bool) -> io::Result<Mapping> {
        if file.metadata()?.len() < LEN as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut access = ProtFlags::PROT_READ;
        if writable {
            access |= ProtFlags::PROT_WRITE;
        }
        let len = const { NonZeroUsize::new(LEN).expect("a page has bytes") };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Mapping { start })
    }

    /// The words; of a mapping that is not writable they may only be loaded.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, LEN = 8 * WORDS bytes long and lives as long as
        // self. Other processes change the memory, which atomics are made for; every bit pattern
        // is an AtomicU64. The file is not made shorter while in use (rule of the control page).
        unsafe { std::slice::from_raw_parts(self.start.cast::<AtomicU64>().as_ptr(), WORDS) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference from `words` outlives self.
        let _ = unsafe { munmap(self.start, LEN) };
    }
}
