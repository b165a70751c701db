//! Directories: the names in one, raw.
//!
//! Used by `verbs::port` for what /sys shows of RDMA devices, and where /proc is asked for descriptors.

use super::few::Brief;
use super::{Res, Sysno, call};
use libc::c_int;

/// Place of the length and of the name in a linux_dirent64.
const LENGTH: usize = 16;
const NAME: usize = 19;

/// Calls `f` with each name in a directory, but for those that begin with a dot.
pub fn names(path: &std::ffi::CStr, mut f: impl FnMut(&[u8])) -> Res<()> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: the path is NUL-terminated.
    let dir = Brief::open(|| unsafe { call(Sysno::openat, [at, path.as_ptr() as usize, flags, 0, 0, 0]) }.map(|fd| fd as c_int))?;
    let mut buf = [0u8; 2048];
    while let Ok(n @ 1..) =
        // SAFETY: the kernel writes into the array, at most its length.
        unsafe { call(Sysno::getdents64, [dir.fd() as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0]) }
    {
        let mut entries = &buf[..n];
        while entries.len() > NAME {
            let len = usize::from(u16::from_ne_bytes([entries[LENGTH], entries[LENGTH + 1]]));
            let Some(entry) = entries.get(NAME..len) else { break };
            let name = entry.split(|b| *b == 0).next().unwrap_or(&[]);
            if !name.is_empty() && name[0] != b'.' {
                f(name);
            }
            entries = &entries[len..];
        }
    }
    Ok(())
}

/// As [`names`], for those that are numbers.
pub fn numbers(path: &std::ffi::CStr, mut f: impl FnMut(i32)) -> Res<()> {
    names(path, |name| std::str::from_utf8(name).ok().and_then(|n| n.parse().ok()).into_iter().for_each(&mut f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_a_directory() {
        let mut found = Vec::new();
        names(c"/proc/self/ns", |n| found.push(String::from_utf8_lossy(n).into_owned())).unwrap();
        assert!(found.iter().any(|n| n == "net"), "{found:?}");
        assert!(names(c"/proc/self/no-such", |_| ()).is_err());
    }
}
