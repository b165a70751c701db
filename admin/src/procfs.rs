//! What /proc says of processes, their descriptors and their TCP sockets. Used by `scan`, by whatever names a process, and by
//! `bench` to look at itself.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};

/// The numbers of all processes that this user can see.
pub fn pids() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?;
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    Ok(names.filter_map(|n| n.parse().ok()).collect())
}

/// The user that a process belongs to; none if there is no such process. Of one that hides itself
/// (PR_SET_DUMPABLE) that is root, see [`user`].
pub fn owner(pid: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// The user of a process, whether it hides itself or not.
pub fn user(pid: u32) -> Option<u32> {
    status(&pid.to_string(), "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// What a descriptor refers to, as the name of its link says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A socket with this inode.
    Socket(u64),
    /// A memfd with this name.
    Memory(String),
    Other,
}

/// The descriptors of a process and what they refer to, as far as they can still be read. To list them takes
/// less than to read them: root without CAP_SYS_PTRACE, as in a container, may do the first alone.
pub fn descriptors(pid: u32) -> io::Result<Vec<(i32, Kind)>> {
    let path = format!("/proc/{pid}/fd");
    // One look-up of the directory for all its links.
    let dir = File::open(&path)?;
    let mut found = Vec::new();
    let mut refused = false;
    for entry in fs::read_dir(&path)? {
        let Ok(name) = entry.map(|e| e.file_name()) else { continue };
        let Some(number) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
        match readlinkat(&dir, name.as_os_str()) {
            Ok(link) => found.push((number, kind_of_link(&link))),
            Err(error) => refused |= error == Errno::EACCES,
        }
    }
    if refused && found.is_empty() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(found)
}

/// What a descriptor of a process refers to, found without opening it: to open a device, a terminal or a pipe
/// does something.
pub fn place(pid: u32, fd: i32) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_PATH.bits());
    options.open(format!("/proc/{pid}/fd/{fd}")).ok()
}

/// Opens that very file.
pub fn open_place(place: &File, options: &mut OpenOptions) -> Option<File> {
    options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
    options.open(format!("/proc/self/fd/{}", place.as_raw_fd())).ok()
}

fn kind_of_link(link: &OsStr) -> Kind {
    let Some(link) = link.to_str() else { return Kind::Other };
    if let Some(inode) = socket_of_link(link) {
        return Kind::Socket(inode);
    }
    match link.strip_prefix("/memfd:") {
        Some(name) => Kind::Memory(name.strip_suffix(" (deleted)").unwrap_or(name).into()),
        None => Kind::Other,
    }
}

/// The inode of the socket that a descriptor is.
pub fn socket_inode(pid: u32, fd: i32) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    socket_of_link(link.to_str()?)
}

/// The inodes of the sockets among descriptors.
pub fn sockets(fds: &[(i32, Kind)]) -> HashMap<i32, u64> {
    let inode = |(fd, kind): &(i32, Kind)| match kind {
        Kind::Socket(inode) => Some((*fd, *inode)),
        _ => None,
    };
    fds.iter().filter_map(inode).collect()
}

fn socket_of_link(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// When a process started, in clock ticks since boot.
pub fn start_time(pid: u32) -> Option<u64> {
    Some(name_and_start(pid)?.1)
}

/// The name of a process, at most 15 bytes, and when it started: one look for both.
pub fn name_and_start(pid: u32) -> Option<(String, u64)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let name = stat.split_once('(')?.1.rsplit_once(") ")?.0.to_string();
    Some((name, start_of_stat(&stat)?))
}

/// Field 22; the name in field 2 may have blanks and brackets of its own.
fn start_of_stat(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(22 - 3)?.parse().ok()
}

/// The name of a process, at most 15 bytes.
pub fn name(pid: u32) -> Option<String> {
    Some(name_and_start(pid)?.0)
}

/// A process's number as it sees itself.
pub fn own_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// A line of /proc/PID/status.
pub fn status(pid: &str, key: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().to_string())
}

/// True if the library is mapped into a process; none if one may not look.
pub fn has_library(pid: u32) -> Option<bool> {
    maps(pid, "libsmcr.so")
}

/// True if a process maps a file of this name, or one that it is the beginning of.
pub fn maps(pid: u32, name: &str) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let files = maps.lines().filter_map(|l| l.rsplit_once('/'));
    Some(files.into_iter().any(|(_, file)| file.starts_with(name)))
}

/// Which network namespace a process is in.
pub fn network(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// A line of /proc/net/tcp or tcp6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpLine {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub listening: bool,
    pub uid: u32,
    pub inode: u64,
}

/// The TCP sockets of the network namespace of a process.
pub fn tcp(pid: &str) -> Vec<TcpLine> {
    let read = |file| fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    let texts = [read("tcp"), read("tcp6")];
    let lines = texts.iter().flat_map(|t| t.lines().skip(1));
    lines.filter_map(tcp_line).collect()
}

/// The same by inode.
pub fn tcp_by_inode(pid: u32) -> HashMap<u64, TcpLine> {
    let lines = tcp(&pid.to_string()).into_iter();
    lines.filter(|l| l.inode != 0).map(|l| (l.inode, l)).collect()
}

fn tcp_line(line: &str) -> Option<TcpLine> {
    let mut words = line.split_whitespace().skip(1);
    let local = tcp_address(words.next()?)?;
    let peer = tcp_address(words.next()?)?;
    let listening = words.next()? == "0A";
    let uid = words.nth(3)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(TcpLine { local, peer, listening, uid, inode })
}

/// The kernel prints addresses as words of the machine.
fn tcp_address(word: &str) -> Option<SocketAddr> {
    let (addr, port) = word.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip = match addr.len() {
        8 => {
            let word = u32::from_str_radix(addr, 16).ok()?;
            IpAddr::V4(Ipv4Addr::from(word.to_ne_bytes()))
        }
        32 => {
            let mut bytes = [0; 16];
            for (i, to) in bytes.chunks_mut(4).enumerate() {
                let word = u32::from_str_radix(addr.get(8 * i..8 * i + 8)?, 16).ok()?;
                to.copy_from_slice(&word.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_do_not_hide_the_start() {
        let rest = (4..=22).map(|i| i.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_of_stat(&format!("7 (a) (b c)) S {rest} 23")), Some(22));
        assert_eq!(start_of_stat("7 (a"), None);
        let own = start_time(std::process::id());
        assert!(own.is_some_and(|t| t > 0));
    }

    #[test]
    fn sockets_of_the_kernel() {
        let line = "   1: 0100007F:1F90 0200007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        let got = tcp_line(line).unwrap();
        assert_eq!(got.local.to_string(), "127.0.0.1:8080");
        assert_eq!(got.peer.to_string(), "127.0.0.2:49153");
        assert_eq!((got.uid, got.inode, got.listening), (1000, 4711, false));
        let six = tcp_address("00000000000000000000000001000000:0050").unwrap();
        assert_eq!(six.to_string(), "[::1]:80");
        assert_eq!(kind_of_link("socket:[12]".as_ref()), Kind::Socket(12));
        assert_eq!(kind_of_link("/memfd:a b (deleted)".as_ref()), Kind::Memory("a b".into()));
        assert_eq!(kind_of_link("/x/socket:[12]".as_ref()), Kind::Other);
        assert_eq!(tcp_line("garbage"), None);
    }
}
