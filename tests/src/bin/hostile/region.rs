//! Owns: a region as the library lays it out (`preload/src/transport/region.rs`), to be filled with
//! what the library would never write; and the memfds that a region may come in.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

pub const RING_MAX: usize = 256 * 1024;
pub const LEN: usize = 4096 + 2 * RING_MAX;
/// Ring 1 ends with this many bytes of a page; behind it the header, and then ring 0.
pub const HEADER_AT: usize = RING_MAX + 1408;
const HEADER: usize = 1152;
/// The file has an annex for each direction behind that.
pub const FILE_LEN: usize = LEN + 2 * (8 << 20) + 2 * (64 << 20);
const MAGIC: u64 = u64::from_le_bytes(*b"SMCRSHM\x09");
const DIRS: usize = 128;
const DIR: usize = 512;

/// Offsets in a direction.
pub mod at {
    pub const HEAD: usize = 0;
    pub const BASE: usize = 8;
    pub const SIZE: usize = 16;
    pub const AT_KERNEL: usize = 64;
    pub const AT_RING: usize = 96;
    pub const TAIL: usize = 128;
    pub const BELL: usize = 256;
    pub const BELLS: usize = 260;
    pub const PASSED: usize = 320;
    pub const CTL: usize = 324;
    pub const FROZEN: usize = 328;
    pub const SWITCH: usize = 448;
    pub const FIN: usize = 452;
}

/// Offsets in the header.
pub const SERVER: usize = 8;
pub const NONCE: usize = 16;

/// What the region's descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Right,
    NoSeals,
    /// Sealed against growing and sealing only: it can shrink under the reader.
    Shrinkable,
    TooShort,
    TooLong,
    WrongMagic,
    HugeTlb,
    Pipe,
    /// A file that is not a memfd.
    File,
    /// A directory of /proc.
    Proc,
}

pub struct Region {
    pub fd: OwnedFd,
    map: *mut u8,
}

fn check(n: libc::c_int) -> io::Result<libc::c_int> {
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n) }
}

impl Region {
    /// Makes one; kinds that can't be mapped have private memory instead.
    pub fn new(kind: Kind) -> io::Result<Region> {
        let fd = descriptor(kind)?;
        let (flags, from) = match kind {
            Kind::Pipe | Kind::Proc | Kind::TooShort => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            _ => (libc::MAP_SHARED, fd.as_raw_fd()),
        };
        let len = if kind == Kind::HugeTlb { 2 << 20 } else { LEN };
        // SAFETY: a new mapping.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, from, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let region = Region { fd, map: map.cast() };
        let magic = if kind == Kind::WrongMagic { MAGIC ^ 1 << 60 } else { MAGIC };
        region.u64(0).store(magic, Relaxed);
        for dir in 0..2 {
            region.d32(dir, at::SIZE).store(64 * 1024, Relaxed);
            region.d32(dir, at::BELL).store(0, Relaxed);
        }
        Ok(region)
    }

    /// Where the first page lies that anybody has written to.
    pub fn first_page(&self) -> io::Result<usize> {
        // SAFETY: a plain system call.
        let at = unsafe { libc::lseek(self.fd.as_raw_fd(), 0, libc::SEEK_DATA) };
        usize::try_from(at).map_err(|_| io::Error::last_os_error())
    }

    /// A word anywhere in the region.
    pub fn word(&self, off: usize) -> &AtomicU64 {
        assert!(off.is_multiple_of(8) && off + 8 <= LEN);
        // SAFETY: inside the mapping, aligned, an atomic.
        unsafe { &*self.map.add(off).cast() }
    }

    /// A word of the header.
    pub fn u64(&self, off: usize) -> &AtomicU64 {
        assert!(off + 8 <= HEADER);
        self.word(HEADER_AT + off)
    }

    pub fn u32(&self, off: usize) -> &AtomicU32 {
        assert!(off.is_multiple_of(4) && off + 4 <= HEADER);
        // SAFETY: as above.
        unsafe { &*self.map.add(HEADER_AT + off).cast() }
    }

    /// A 64-bit field of direction 0 (to the server) or 1.
    pub fn d64(&self, dir: usize, off: usize) -> &AtomicU64 {
        self.u64(DIRS + dir * DIR + off)
    }

    pub fn d32(&self, dir: usize, off: usize) -> &AtomicU32 {
        self.u32(DIRS + dir * DIR + off)
    }

    /// Copies into or out of a ring, byte by byte.
    pub fn put(&self, dir: usize, pos: u64, bytes: &[u8]) {
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: the offset stays in the ring.
            unsafe { self.cell(dir, pos + i as u64).write_volatile(*b) };
        }
    }

    pub fn take(&self, dir: usize, pos: u64, bytes: &mut [u8]) {
        for (i, b) in bytes.iter_mut().enumerate() {
            // SAFETY: the offset stays in the ring.
            *b = unsafe { self.cell(dir, pos + i as u64).read_volatile() };
        }
    }

    fn cell(&self, dir: usize, pos: u64) -> *mut u8 {
        let size = (self.d32(dir, at::SIZE).load(Relaxed) as usize).clamp(1, RING_MAX);
        let off = pos.wrapping_sub(self.d64(dir, at::BASE).load(Relaxed)) as usize % size;
        let start = if dir == 0 { HEADER_AT + HEADER } else { HEADER_AT - size };
        // SAFETY: below RING_MAX.
        unsafe { self.map.add(start + off) }
    }
}

fn descriptor(kind: Kind) -> io::Result<OwnedFd> {
    let memfd = |flags: u32, len: usize| -> io::Result<OwnedFd> {
        // SAFETY: plain system calls; the descriptor is ours.
        unsafe {
            let fd = check(libc::memfd_create(c"smcr-region".as_ptr(), libc::MFD_ALLOW_SEALING | flags))?;
            let fd = OwnedFd::from_raw_fd(fd);
            check(libc::ftruncate(fd.as_raw_fd(), len as i64))?;
            Ok(fd)
        }
    };
    let all = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let (fd, bits) = match kind {
        Kind::Right | Kind::WrongMagic => (memfd(0, FILE_LEN)?, all),
        Kind::NoSeals => (memfd(0, FILE_LEN)?, 0),
        Kind::Shrinkable => (memfd(0, FILE_LEN)?, libc::F_SEAL_GROW | libc::F_SEAL_SEAL),
        Kind::TooShort => (memfd(0, LEN)?, all),
        Kind::TooLong => (memfd(0, FILE_LEN + 4096)?, all),
        Kind::HugeTlb => (memfd(libc::MFD_HUGETLB, 2 << 20)?, all),
        Kind::Pipe => {
            let (r, _w) = io::pipe()?;
            return Ok(r.into());
        }
        Kind::File => {
            let path = std::env::temp_dir().join(format!("hostile-{}", std::process::id()));
            let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            file.set_len(FILE_LEN as u64)?;
            return Ok(file.into());
        }
        Kind::Proc => return Ok(std::fs::File::open("/proc/self")?.into()),
    };
    // SAFETY: plain system call on a descriptor of ours.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, bits) })?;
    Ok(fd)
}
