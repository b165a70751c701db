//! A program's link to a cgroup, by the bpf(2) calls that make it last and end it.
//!
//! aya 0.14 attaches cgroup sockopt programs, but keeps their links to itself, so that they end with the
//! loader.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where in a cgroup a program is attached (`enum bpf_attach_type`).
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Hook {
    SockOps = 3,
    GetSockOpt = 21,
    SetSockOpt = 22,
}

const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

/// `struct { ... } link_create` of `union bpf_attr`.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    hook: u32,
    flags: u32,
}

/// The members of `union bpf_attr` for BPF_OBJ_PIN and BPF_OBJ_GET.
#[repr(C)]
struct ObjPin {
    path: u64,
    object: u32,
    flags: u32,
}

/// `struct { ... } link_detach` of `union bpf_attr`.
#[repr(C)]
struct LinkDetach {
    link: u32,
}

/// Attaches beside whatever else is attached there (a link always is one of several).
pub(crate) fn create(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, hook: Hook) -> io::Result<OwnedFd> {
    let fd = bpf(LINK_CREATE, &LinkCreate { program: program.as_raw_fd() as u32, target: cgroup.as_raw_fd() as u32, hook: hook as u32, flags: 0 })?;
    // SAFETY: BPF_LINK_CREATE returns a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the link a name on a BPF file system; it lasts until the name is removed.
pub(crate) fn pin(link: OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjPin { path: path.as_ptr() as u64, object: link.as_raw_fd() as u32, flags: 0 };
    bpf(OBJ_PIN, &attr).map(drop)
}

/// Ends what the link of that name does, now: when only its name is removed the kernel lets go of it some time later.
pub(crate) fn detach(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd = bpf(OBJ_GET, &ObjPin { path: path.as_ptr() as u64, object: 0, flags: 0 })?;
    // SAFETY: BPF_OBJ_GET returns a new descriptor, which nobody else knows.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let attr = LinkDetach { link: link.as_raw_fd() as u32 };
    bpf(LINK_DETACH, &attr).map(drop)
}

fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads size_of::<T>() bytes of `attr` and takes the rest of its union as zero;
    // the path that ObjPin points to lives in the caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
