//! Directories of the cgroup2 hierarchy: where it is mounted, and which one has an id.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// The topmost cgroup2 directory that this process sees, also beside version 1 hierarchies.
pub fn root() -> Option<PathBuf> {
    find_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

pub(crate) fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// A cgroup's id is the inode number of its directory.
pub(crate) fn id(path: &Path) -> std::io::Result<u64> {
    Ok(fs::metadata(path)?.ino())
}

pub(crate) fn path_of(id: u64) -> Option<PathBuf> {
    let mut rest = vec![root()?];
    while let Some(path) = rest.pop() {
        if fs::metadata(&path).is_ok_and(|meta| meta.ino() == id) {
            return Some(path);
        }
        // Unreadable or just removed: not the one.
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                rest.push(entry.path());
            }
        }
    }
    None
}

/// Field 5 of mountinfo is the mount point, with octal escapes; the type follows the lone dash.
fn find_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next()? != "cgroup2" {
            return None;
        }
        Some(PathBuf::from(mount.split(' ').nth(4)?.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_is_found_beside_version_1() {
        let text = "\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu
40 30 0:36 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:10 master:1 - cgroup2 cgroup2 rw
";
        assert_eq!(find_mount(text), Some(PathBuf::from("/sys/fs/cgroup/uni fied")));
        assert_eq!(find_mount("31 30 0:27 / /x rw - cgroup cgroup rw\n"), None);
    }
}
