//! Wakes a process that sleeps, so that it looks at the control page at once. Used by `drain`.
//!
//! The library keeps a pipe for this, and shows its number and inode in the family page. The page
//! belongs to the process, which may have closed the pipe or be a liar: the file is looked at before
//! it is opened, and a byte goes into that very pipe or nowhere.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nix::sys::statfs::FsType;

use crate::procfs;

/// Of pipes without a name (PIPEFS_MAGIC).
const PIPEFS: FsType = FsType(0x5049_5045);

/// Rings the pipe with this number and inode of a process; false if it is not there.
pub fn ring(pid: u32, fd: i32, inode: u64) -> bool {
    try_ring(pid, fd, inode).is_some()
}

fn try_ring(pid: u32, fd: i32, inode: u64) -> Option<()> {
    let place = procfs::place(pid, fd)?;
    let meta = place.metadata().ok()?;
    // A named pipe is somebody else's, whoever has it open.
    let is_nameless = nix::sys::statfs::fstatfs(&place).ok()?.filesystem_type() == PIPEFS;
    if inode == 0 || !meta.file_type().is_fifo() || meta.ino() != inode || !is_nameless {
        return None;
    }
    let mut pipe = procfs::open_place(&place, OpenOptions::new().write(true))?;
    // A full pipe has rung already.
    match pipe.write_all(&[1]) {
        Ok(()) => Some(()),
        Err(e) => (e.kind() == std::io::ErrorKind::WouldBlock).then_some(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::AsRawFd;

    fn inode(pipe: &PipeReader) -> u64 {
        let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        std::fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn only_the_pipe_that_is_meant_gets_a_byte() {
        let me = std::process::id();
        let (mut reader, writer) = pipe().unwrap();
        let number = inode(&reader);
        assert!(!ring(me, reader.as_raw_fd(), number + 1));
        assert!(!ring(me, reader.as_raw_fd(), 0));
        let file = tempfile::tempfile().unwrap();
        let of_file = file.metadata().unwrap().ino();
        assert!(!ring(me, file.as_raw_fd(), of_file));
        assert_eq!(file.metadata().unwrap().len(), 0);
        // One that has a name is somebody's own.
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("fifo");
        nix::unistd::mkfifo(&name, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let named = OpenOptions::new().read(true).write(true).open(&name).unwrap();
        assert!(!ring(me, named.as_raw_fd(), named.metadata().unwrap().ino()));
        assert!(ring(me, reader.as_raw_fd(), number));
        drop(writer);
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, [1]);
    }
}
