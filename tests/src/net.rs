//! Owns: a network namespace for each test, so that ports are free, bytes on `lo` can be counted
//! and everything that a test started can be found and ended by its process id.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A network namespace with `lo` up. Whatever still runs in it is killed when this is dropped.
pub struct Net {
    holder: Child,
    net: File,
    user: Option<File>,
    inode: PathBuf,
}

/// What has crossed `lo`, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lo {
    pub bytes: u64,
    pub packets: u64,
}

impl std::ops::Sub for Lo {
    type Output = Lo;
    fn sub(self, before: Lo) -> Lo {
        Lo { bytes: self.bytes - before.bytes, packets: self.packets - before.packets }
    }
}

impl Net {
    /// A new namespace. Root makes it directly, others inside a user namespace of their own.
    pub fn new() -> Result<Net> {
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let own_user = !uid.is_root();
        let uid_map = format!("0 {uid} 1\n");
        let gid_map = format!("0 {gid} 1\n");
        let mut command = Command::new("sleep");
        command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: the closure makes system calls on memory that the parent prepared, and nothing
        // else: no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                die_with_parent()?;
                let user = if own_user { libc::CLONE_NEWUSER } else { 0 };
                check(libc::unshare(libc::CLONE_NEWNET | user))?;
                if own_user {
                    put(c"/proc/self/setgroups", b"deny")?;
                    put(c"/proc/self/uid_map", uid_map.as_bytes())?;
                    put(c"/proc/self/gid_map", gid_map.as_bytes())?;
                }
                lo_up()
            });
        }
        let holder = command.spawn().context("a network namespace (as root or with user namespaces)")?;
        let ns = PathBuf::from(format!("/proc/{}/ns", holder.id()));
        Ok(Net {
            net: File::open(ns.join("net"))?,
            user: own_user.then(|| File::open(ns.join("user"))).transpose()?,
            inode: fs::read_link(ns.join("net"))?,
            holder,
        })
    }

    /// Makes `command` run in this namespace, and die with the thread that spawns it.
    pub fn enter(&self, command: &mut Command) {
        let net = self.net.as_raw_fd();
        let user = self.user.as_ref().map(|f| f.as_raw_fd());
        // SAFETY: system calls only; the descriptors outlive the spawn (`self` is borrowed by the
        // caller until then, and they are inherited by the fork).
        unsafe {
            command.pre_exec(move || {
                die_with_parent()?;
                if let Some(user) = user {
                    check(libc::setns(user, libc::CLONE_NEWUSER))?;
                }
                check(libc::setns(net, libc::CLONE_NEWNET))
            });
        }
    }

    /// Counters of `lo` now.
    pub fn lo(&self) -> Result<Lo> {
        let text = fs::read_to_string(format!("/proc/{}/net/dev", self.holder.id()))?;
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix("lo:")).context("no lo")?;
        let mut fields = line.split_whitespace();
        let mut next = || fields.next().and_then(|f| f.parse().ok()).context("net/dev");
        Ok(Lo { bytes: next()?, packets: next()? })
    }

    /// Waits till somebody listens on a TCP port here.
    pub fn wait_listen(&self, port: u16) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if self.listens(port)? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("nobody listens on port {port}")
    }

    /// Whether somebody listens on a TCP port here.
    pub fn listens(&self, port: u16) -> Result<bool> {
        let wanted = format!(":{port:04X}");
        for table in ["tcp", "tcp6"] {
            let text = fs::read_to_string(format!("/proc/{}/net/{table}", self.holder.id()))?;
            if text.lines().skip(1).any(|l| {
                let f: Vec<_> = l.split_whitespace().collect();
                f.len() > 3 && f[1].ends_with(&wanted) && f[3] == "0A"
            }) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A file of /proc/PID, as a process in this namespace sees it.
    pub fn read(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/{name}", self.holder.id()))?)
    }

    /// Connections of an IPv4 port that have not ended at this side, accepted or not.
    pub fn in_use(&self, port: u16) -> Result<usize> {
        let wanted = format!(":{port:04X}");
        let text = self.read("net/tcp")?;
        let open = |line: &&str| {
            let f: Vec<_> = line.split_whitespace().collect();
            // ESTABLISHED and CLOSE_WAIT.
            f.len() > 4 && f[1].ends_with(&wanted) && ["01", "08"].contains(&f[3])
        };
        Ok(text.lines().skip(1).filter(open).count())
    }

    /// The processes that are in this namespace, the holder left out.
    pub fn pids(&self) -> Vec<i32> {
        let Ok(dir) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        dir.flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
            .filter(|&pid| pid != self.holder.id() as i32)
            .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns == self.inode))
            .collect()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // A process may fork while it is looked for: until none is left.
        for _ in 0..100 {
            let pids = self.pids();
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// For a child before exec: it is killed when the thread that started it ends.
fn die_with_parent() -> io::Result<()> {
    // SAFETY: a plain system call.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes a small file without allocating.
fn put(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    // SAFETY: path and text are valid for their lengths; the descriptor is ours.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(fd)?;
        let n = libc::write(fd, text.as_ptr().cast(), text.len());
        let result = check(n as libc::c_int);
        libc::close(fd);
        result
    }
}

/// Sets `lo` up in the namespace of the caller.
fn lo_up() -> io::Result<()> {
    // SAFETY: ifreq is plain data, for which zeroes are valid; the name fits and is terminated.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(fd)?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let result = check(libc::ioctl(fd, libc::SIOCSIFFLAGS, &request));
        libc::close(fd);
        result
    }
}
