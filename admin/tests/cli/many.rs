//! A thousand processes with a page each, ten thousand connections: listed in a second, and right.
//!
//! The processes are real, as are their pages, descriptors and the kernel's TCP connections: `sleep`,
//! each with ten connections to one listener of the test. Times are printed, and not asserted.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;
use smcr_proto::page::{self, State, header, process, socket};

use super::bed::Bed;

const PROCESSES: usize = 1000;
const CONNECTIONS: usize = 10;
const SOCK_SIZE: usize = 1024;
const PROC_CAP: usize = 1024;
const SOCK_OFF: usize = header::LEN + PROC_CAP * process::LEN;
/// Lowest descriptor of a connection in `sleep`.
const FIRST: i32 = 10;

struct Crowd {
    children: Vec<Child>,
    _ends: Vec<TcpStream>,
    _listener: TcpListener,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn page() -> File {
    let page = File::from(memfd_create(page::MEMFD_NAME, MFdFlags::MFD_CLOEXEC).unwrap());
    page.set_len((SOCK_OFF + 65_536 * SOCK_SIZE) as u64)
        .unwrap();
    page
}

fn put(page: &File, at: usize, bytes: &[u8]) {
    page.write_all_at(bytes, at as u64).unwrap();
}

fn one(port: u16, ends: &mut Vec<TcpStream>, listener: &TcpListener) -> Child {
    let page = page();
    let mut streams = Vec::new();
    for i in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        ends.push(listener.accept().unwrap().0);
        let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let at = SOCK_OFF + i * SOCK_SIZE;
        let (state, reason) = if i % 2 == 0 {
            (State::Accelerated, 0u32)
        } else {
            (State::Tcp, 1)
        };
        put(&page, at + socket::STATE, &(state as u32).to_le_bytes());
        put(&page, at + socket::REASON, &reason.to_le_bytes());
        put(&page, at + socket::FD, &(FIRST + i as i32).to_le_bytes());
        put(&page, at + socket::ROLE, &1u32.to_le_bytes());
        let medium = u8::from(i % 2 == 0);
        put(&page, at + socket::TX_MEDIUM, &[medium, medium]);
        put(&page, at + socket::FAMILY, &2u16.to_le_bytes());
        put(&page, at + socket::LOCAL_PORT, &local.port().to_le_bytes());
        put(&page, at + socket::PEER_PORT, &peer.port().to_le_bytes());
        put(&page, at + socket::LOCAL_ADDR, &[127, 0, 0, 1]);
        put(&page, at + socket::PEER_ADDR, &[127, 0, 0, 1]);
        streams.push(stream);
    }
    let mut command = Command::new("sleep");
    command
        .arg("600")
        .stdin(OwnedFd::from(page.try_clone().unwrap()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let fds: Vec<i32> = streams.iter().map(|s| s.as_raw_fd()).collect();
    // SAFETY: between fork and exec: dup2 only, on numbers that were read before.
    unsafe {
        command.pre_exec(move || {
            for (i, fd) in fds.iter().enumerate() {
                // All are above the numbers that they get: `streams` was opened after the rest.
                if nix::libc::dup2(*fd, FIRST + i as i32) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap();
    let start: u64 = fields.split(' ').nth(19).unwrap().parse().unwrap();
    let at = header::LEN;
    put(&page, at + process::PID, &child.id().to_le_bytes());
    put(&page, at + process::ENABLED, &1u32.to_le_bytes());
    put(&page, at + process::START, &start.to_le_bytes());
    put(&page, at + process::NAME, b"sleep");
    put(&page, header::MAGIC, &page::MAGIC);
    for (at, n) in [
        (header::VERSION, page::VERSION as usize),
        (header::PROC_OFF, header::LEN),
        (header::PROC_SIZE, process::LEN),
        (header::PROC_CAP, PROC_CAP),
        (header::SOCK_OFF, SOCK_OFF),
        (header::SOCK_SIZE, SOCK_SIZE),
        (header::SOCK_CAP, 65_536),
        (header::SOCK_HIGH, CONNECTIONS),
    ] {
        put(&page, at, &(n as u32).to_le_bytes());
    }
    child
}

fn crowd() -> Crowd {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Numbers below are taken first, so that no connection gets one of those that `sleep` shall have.
    let low: Vec<File> = (0..FIRST + CONNECTIONS as i32)
        .map(|_| File::open("/dev/null").unwrap())
        .collect();
    let mut ends = Vec::new();
    let children = (0..PROCESSES)
        .map(|_| one(port, &mut ends, &listener))
        .collect();
    drop(low);
    Crowd {
        children,
        _ends: ends,
        _listener: listener,
    }
}

/// Needs some 11,000 descriptors; says so and ends where they cannot be had.
#[test]
fn ten_thousand_connections() {
    use nix::sys::resource::{Resource, getrlimit};
    let most = getrlimit(Resource::RLIMIT_NOFILE).unwrap().1;
    assert!(
        most > 12_000,
        "this test needs 12,000 descriptors; ulimit -n allows {most}"
    );
    let (bed, crowd) = (Bed::new(), crowd());
    let ours = |pid: &Value| {
        let pid = pid.as_u64().unwrap_or_default();
        crowd.children.iter().any(|c| u64::from(c.id()) == pid)
    };
    let json = |args: &[&str]| -> Value {
        let start = Instant::now();
        let text = bed.ok(args);
        println!("{args:?}: {} ms", start.elapsed().as_millis());
        serde_json::from_str(&text).unwrap()
    };
    let socks = json(&["sock", "--json"]);
    let socks: Vec<_> = socks.as_array().unwrap().iter().collect();
    let found = socks.iter().filter(|s| ours(&s["pid"])).count();
    assert_eq!(found, PROCESSES * CONNECTIONS);
    let fast = socks.iter().filter(|s| s["mode"] == "shm" && ours(&s["pid"]));
    assert_eq!(fast.count(), PROCESSES * CONNECTIONS / 2);
    let stats = json(&["stats", "-a", "--json"]);
    let processes = stats["processes"].as_array().unwrap();
    assert_eq!(
        processes.iter().filter(|p| ours(&p["pid"])).count(),
        PROCESSES
    );
    let start = Instant::now();
    bed.ok(&["top", "-c", "1"]);
    println!("top: {} ms", start.elapsed().as_millis());
}
