//! Who has a Unix socket open, whether they have the library, and what descriptors of others are: asked of /proc.
//!
//! Used by `rendezvous::bequest`, where a message takes a connection to a process that nobody has named. Processes that this one may not look
//! at, or that are not in its /proc, are nobody.

use super::{Res, Sysno, call, diag, dir, fd, lines};
use std::ffi::CStr;

/// Whether all who have the peer of this Unix socket have the library, and there is one.
pub fn of_peer_have_library(unix: i32) -> bool {
    let Some(peer) = fd::stat(unix).and_then(|st| diag::unix_peer(st.st_ino)).ok() else { return false };
    let Some(own) = Object::of_library() else { return false };
    let (mut some, mut all) = (false, true);
    let look = |pid| {
        if all && has_open(pid, peer) {
            some = true;
            all = own.is_in(pid);
        }
    };
    dir::numbers(c"/proc", look).is_ok() && some && all
}

fn has_open(pid: i32, socket: u64) -> bool {
    let mut name = [0; 32];
    let wanted = fd::path(&mut name, format_args!("socket:[{socket}]\0")).map(CStr::to_bytes);
    let mut has = false;
    let look = |n: i32| has = has || link_of(pid as u32, n as u32, &mut [0; 64]) == wanted;
    let mut path = [0; 32];
    fd::path(&mut path, format_args!("/proc/{pid}/fd\0")).is_some_and(|p| dir::numbers(p, look).is_ok()) && has
}

/// What a descriptor of a process is. None: it is not there, is none of this process' business, or does not fit.
pub fn link_of(pid: u32, file: u32, buf: &mut [u8]) -> Option<&[u8]> {
    fd::link(fd::path(&mut [0; 48], format_args!("/proc/{pid}/fd/{file}\0"))?, buf)
}

/// Opens the file below it. The caller knows by [`link_of`] that this does nothing to it.
pub fn open_of(pid: u32, file: u32) -> Res<i32> {
    let mut path = [0; 48];
    let path = fd::path(&mut path, format_args!("/proc/{pid}/fd/{file}\0")).ok_or(super::Errno(libc::ENOENT))?;
    let flags = (libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: the path is NUL-terminated.
    unsafe { call(Sysno::openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }.map(|n| n as i32)
}

/// A mapped file, as /proc/PID/maps names it: device and inode.
struct Object {
    name: [u8; 48],
    len: usize,
}

impl Object {
    fn of_library() -> Option<Object> {
        let here = Self::of_library as *const () as usize;
        let found = lines::find_in(c"/proc/self/maps", |line| {
            let range = std::str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?;
            let (from, to) = range.split_once('-')?;
            let is_it = usize::from_str_radix(from, 16).ok()? <= here && here < usize::from_str_radix(to, 16).ok()?;
            let name = Self::name_in(line).filter(|name| is_it && name.len() <= 48)?;
            let mut own = Object { name: [0; 48], len: name.len() };
            own.name[..name.len()].copy_from_slice(name);
            Some(own)
        });
        found.ok().flatten()
    }

    fn is_in(&self, pid: i32) -> bool {
        let mut path = [0; 32];
        let Some(path) = fd::path(&mut path, format_args!("/proc/{pid}/maps\0")) else { return false };
        let found = lines::find_in(path, |line| (Self::name_in(line)? == &self.name[..self.len]).then_some(()));
        found.is_ok_and(|it| it.is_some())
    }

    /// "DEVICE INODE" of a line "FROM-TO RIGHTS OFFSET DEVICE INODE PATH".
    fn name_in(line: &[u8]) -> Option<&[u8]> {
        let mut spaces = line.iter().enumerate().filter(|(_, b)| **b == b' ').map(|(n, _)| n);
        let from = spaces.nth(2)? + 1;
        let to = spaces.nth(1).unwrap_or(line.len());
        Some(&line[from..to])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_this_process_is_held_by_a_program_with_its_own_code() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let (a, b): (std::os::fd::OwnedFd, std::os::fd::OwnedFd) = (a.into(), b.into());
        use std::os::fd::AsRawFd;
        assert!(of_peer_have_library(a.as_raw_fd()));
        let mut buf = [0; 64];
        let link = link_of(std::process::id(), b.as_raw_fd() as u32, &mut buf).unwrap();
        assert!(link.starts_with(b"socket:["));
        drop(b);
        assert!(!of_peer_have_library(a.as_raw_fd()), "nobody has it");
        assert!(link_of(std::process::id(), 1 << 20, &mut [0; 64]).is_none());
    }

    #[test]
    fn another_program_that_has_it_does_not_have_the_library() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let child = std::process::Command::new("sleep").arg("60").stdin(std::os::fd::OwnedFd::from(b)).spawn();
        use std::os::fd::AsRawFd;
        let has = of_peer_have_library(a.as_raw_fd());
        let mut child = child.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!has);
    }

    #[test]
    fn a_mapping_is_named_by_its_device_and_inode() {
        let line = b"7f01-7f02 r-xp 00001000 fe:00 1234                       /lib/a b.so";
        assert_eq!(Object::name_in(line), Some(&b"fe:00 1234"[..]));
        assert_eq!(Object::name_in(b"7f01-7f02 rw-p 00000000 00:00 0"), Some(&b"00:00 0"[..]));
        assert_eq!(Object::name_in(b"7f01-7f02"), None);
    }
}
